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

  /** Bytes that a step of so many sequences reads: of experts those that some token chose. */
  readBytes(tokens) {
    const chosen = (count, each) => (count ? 1 - (1 - each / count) ** tokens : 1);
    return roundEven(((this.head * this.plain + this.inside(chosen)) * this.scale) / 8);
  }

  inside(shareOf) {
    return this.parts.reduce((sum, [attention, mlp, experts, count, each]) => {
      const dense = (attention + mlp) * this.layer;
      return sum + (dense + experts * this.expert * shareOf(count, each));
    }, 0);
  }
}

/** The weights as Pagoda holds them: bytes in all, and bytes that a step reads. */
export class HeldWeights {
  constructor([total, read]) {
    this.totalBytes = total;
    this.read = read;
  }

  rankBytes() {
    return this.totalBytes;
  }

  readBytes() {
    return this.read;
  }
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
