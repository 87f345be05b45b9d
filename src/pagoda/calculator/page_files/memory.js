// Where one device's memory goes: weights, and what is a range until the engine has run.

import { spread } from "./pool.js";
import { ceilDiv } from "./layers.js";
import { whole } from "./numbers.js";

const MIB = 2 ** 20;
const LOADER_SHARE = 0.01;
const LOADER_BYTES = 32 * MIB;

/** As Python rounds: halves to even. */
export function roundEven(value) {
  const below = Math.floor(value);
  if (value - below !== 0.5) return Math.round(value);
  return below % 2 ? below + 1 : below;
}

/**
 * The share of a layer's experts that a step of so many tokens reads, as is expected of an even
 * router that sends each to `chosen` of them: see `pagoda.sizing.experts_read`.
 */
const shareRead = (chosen, tokens) => 1 - power(1 - chosen, tokens);

/** By squaring: what browsers make of `**` may be wrong in its last bit even where it could be exact. */
function power(base, exponent) {
  if (!exponent) return 1;
  const rest = power(base * base, Math.floor(exponent / 2));
  return exponent % 2 ? base * rest : rest;
}

/** A model's weights under a row of its table: plain bits, layers', experts', scale. */
export class Weights {
  constructor(model, row) {
    [this.plain, this.layer, this.expert, this.scale] = row;
    const [embedding, head, other] = model.numbers;
    this.outside = embedding + head + other;
    this.head = head || embedding;
    this.parts = spread(model.part_order).map((id) => model.parts[id]);
  }

  get totalBits() {
    return this.outside * this.plain + this.inside(() => 1);
  }

  get totalBytes() {
    return roundEven((this.totalBits * this.scale) / 8);
  }

  rankBytes(ranks) {
    return roundEven((this.totalBits * this.scale) / 8 / ranks);
  }

  /** Bytes that a step of so many sequences reads. */
  readBytes(tokens) {
    const share = (count, each) => (count ? shareRead(each / count, tokens) : 1);
    return roundEven(((this.head * this.plain + this.inside(share)) * this.scale) / 8);
  }

  inside(shareOf) {
    return this.parts.reduce((sum, [attention, mlp, experts, count, each]) => {
      const dense = (attention + mlp) * this.layer;
      return sum + (dense + experts * this.expert * shareOf(count, each));
    }, 0);
  }
}

/** The weights as Pagoda holds them, under a row of its table. */
export class HeldWeights {
  constructor([total, always, experts, chosen]) {
    this.totalBytes = total;
    this.always = always;
    this.experts = experts;
    this.chosen = chosen;
  }

  rankBytes() {
    return this.totalBytes;
  }

  readBytes(tokens) {
    return this.always + roundEven(this.experts * shareRead(this.chosen, tokens));
  }
}

/** The share of all experts that a step of so many tokens reads; null: there are none. */
export function expertsRead({ parts, part_order: order }, tokens) {
  const own = spread(order).map((id) => parts[id]);
  const all = own.reduce((sum, [, , experts]) => sum + experts, 0);
  if (!all) return null;
  const read = ([, , experts, count, each]) => (count ? experts * shareRead(each / count, tokens) : 0);
  return own.reduce((sum, part) => sum + read(part), 0) / all;
}

/** The parts beside the cache, each at least and at most. */
export function partsBeside(tables, model, asked, weights) {
  const { rules, device, ranks, dtype } = asked;
  const stored = weights.rankBytes(ranks);
  const held = {
    name: "weights",
    low: stored,
    high: stored + Math.trunc(stored * LOADER_SHARE) + LOADER_BYTES,
    source: "numbers × bits; 1% for the loader",
  };
  if (rules.pagoda) return [held, ...partsOfPagoda(tables.pagoda, model.pagoda, asked)];
  const parts = [
    held,
    { name: "activations", ...activations(model, asked, dtype === "float32" ? 4 : 2) },
    { name: "runtime", ...(ranks === 1 ? tables.runtime.one : tables.runtime.several) },
  ];
  return device.cpu ? parts : [...parts, { name: "CUDA graphs", ...rules.graphs }];
}

/** What Pagoda takes beside the weights: on a GPU what its engine measures at its start. */
function partsOfPagoda(own, row, { device, batch, length, pool, requestsChoose }) {
  const angles = row.angles * length;
  if (device.pagoda.kind === "CPU") {
    const { low, high, source } = own.process;
    return [{ name: "runtime", low: low + angles, high: high + angles, source }];
  }
  const [tokens, sequences] = batch;
  const [plain, withSinks] = row.steps[tokens];
  const seesSinks = requestsChoose || pool.groups.some(({ layer }) => layer.sinks > 0);
  const low = (seesSinks ? withSinks : plain) + angles;
  const tables = (sequences + own.graph_tables) * pool.groups.length;
  const blocks = 4 * tables * ceilDiv(length, own.block_size);
  const high = low + blocks + own.sampler_bytes;
  return [
    { name: "activations", low, high, source: own.step_source },
    { name: "runtime", ...own.runtime },
    { name: "CUDA graphs", ...own.graphs },
  ];
}

function activations(model, { rules, ranks, batch }, bytes) {
  const [tokens, sequences] = batch;
  const [least, most] = rules.logits_copies;
  const logits = sequences * model.vocabulary * 4;
  const gateAndUp = tokens * 2 * ceilDiv(model.intermediate, ranks) * bytes;
  const hidden = tokens * model.hidden * bytes;
  return {
    low: Math.trunc(least * logits) + Math.floor(gateAndUp / 2),
    high: Math.trunc(most * logits) + 3 * gateAndUp + 8 * hidden + 256 * MIB,
    source:
      `vLLM ${rules.release} profiles ${whole(tokens)} tokens in ${whole(sequences)} sequences; ` +
      `the logits are held ${least} to ${most} times`,
  };
}
