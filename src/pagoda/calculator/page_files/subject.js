// What is planned: model, device, engine and flags, compared with one another.

import { LATENT, Refusal } from "./layers.js";
import { HeldWeights, Weights, partsBeside } from "./memory.js";
import { whole } from "./numbers.js";
import { CODES_OF_LATENTS, buildPool, has, pagodaPool, rankLayers } from "./pool.js";
import { keepsAll, parseRetention } from "./retention.js";

const ENCODER_TOKENS = 1500;
const FLOATS = new Set(["float32", "bfloat16", "float16"]);

/** Numbers that a token visits: all but experts not chosen, and tables looked up in every layer. */
export const visited = ([embedding, head, other, , active, lookedUp = 0]) =>
  active + (head && embedding) + other - lookedUp;

/** Numbers of ranks among which the model's heads can be split evenly. */
export function allowedRanks(model, most) {
  const sizes = Array.from({ length: most }, (_, index) => index + 1);
  return sizes.filter((size) => indivisible(model, size) === null);
}

/** Formats that the model's cache can be stored in. */
export function allowedFormats(tables, request, names) {
  return names.filter((name) => {
    try {
      readSubject(tables, { ...request, kv_cache_dtype: name });
      return true;
    } catch (refused) {
      if (!(refused instanceof Refusal)) throw refused;
      return refused.field !== "kv_cache_dtype";
    }
  });
}

/** A request with all that follows from it before any memory is looked at. */
export function readSubject(tables, request) {
  const model = tables.models[request.model];
  const rules = tables.engines[request.engine];
  const device = tables.devices[request.gpu];
  const ranks = request.tensor_parallel_size;
  const retention = parseRetention(request.kv_retention ?? "full", tables.pagoda);
  if (retention === null) throw new Refusal("kv_retention", "full, window:1024 or streaming:sinks=4,window=1020");
  const { kind, batch, refused } = rules.pagoda ? device.pagoda : { kind: device.cpu ? "CPU" : "GPU", batch: device.batch };
  const row = rules.pagoda ? model.pagoda : model;
  if (rules.pagoda && ranks > 1) throw new Refusal("tensor_parallel_size", "Pagoda runs on one device");
  const isQuantised = tables.pagoda.quantizations.includes(request.quantization);
  if (rules.pagoda && !isQuantised && ![null, "none"].includes(request.quantization)) {
    throw new Refusal("quantization", `Pagoda has ${tables.pagoda.quantizations.join(", ")}`);
  }
  if (!rules.pagoda) requireNoRetention(request, retention);
  if (refused) throw new Refusal("gpu", refused);
  const refusal = row.refused ?? (kind === "GPU" ? row.refused_on_gpus : undefined);
  if (refusal !== undefined) throw new Refusal(...tables.pagoda.refusals[refusal]);
  const dtype = dtypeOf(tables, request, kind);
  const madeFor = rules.extends_yarn && !rules.pagoda ? model.extended : row.longest;
  const longest = longestWith(tables, retention, madeFor);
  const length = lengthOf(request, madeFor, longest);
  if (rules.pagoda && isQuantised && kind === "GPU") {
    throw new Refusal("quantization", "Pagoda quantises weights on CPUs alone");
  }
  const context = contextOf(request, length);
  const odd = indivisible(model, ranks);
  if (odd) throw new Refusal("tensor_parallel_size", odd);
  if (rules.pagoda) {
    requireStored(tables, model, request.kv_cache_dtype, ["auto", dtype, ...tables.pagoda.formats[kind]], kind);
  }
  const { weights, quantization, assumed } = weightsOf(request, model, rules, kind);
  requireKept(tables, retention, madeFor);
  if (rules.pagoda && kind === "GPU" && has(model, LATENT)) requireWhole(request, retention);
  const requestsChoose = Boolean(request.request_kv_retention);
  const asked = { tables, request, model, rules, device, ranks, kind, batch, dtype, retention, requestsChoose, madeFor, longest, length, context };
  const how = howKept(asked);
  const layers = rankLayers(tables, model, how);
  const keepsWindows = !rules.pagoda && !rules.forms_groups;
  const cached = { ...how, keepsAll: keepsWindows, latentForm: rules.latent_form, heads: model.heads };
  const pooled = rankLayers(tables, model, cached);
  const pool = rules.pagoda ? pagodaPool(pooled, batch[0], asked) : buildPool(model, pooled, poolOptions(asked));
  const parts = partsBeside(tables, model, { ...asked, pool }, weights);
  const active = row.active ?? model.numbers[4];
  return { ...asked, active, weights, quantization, assumed, layers, pool, parts };
}

function requireNoRetention(request, retention) {
  const reason = "vLLM keeps every token that a layer sees";
  if (!keepsAll(retention)) throw new Refusal("kv_retention", reason);
  if (request.request_kv_retention) throw new Refusal("request_kv_retention", reason);
}

/** A window takes a block at least, and sees no more than the model was made for. */
function requireKept({ pagoda: { block_size: size } }, retention, madeFor) {
  if (keepsAll(retention)) return;
  if (retention.window < size) throw new Refusal("kv_retention", `a window of at least one block, ${size} tokens`);
  if (madeFor !== null && retention.window + retention.sinks > madeFor) {
    throw new Refusal("kv_retention", `at most ${whole(madeFor)} tokens, which the model was made for`);
  }
}

/** Kernels that meet latents on a GPU have no windows. */
function requireWhole(request, retention) {
  const reason = "on a GPU a model of latent attention keeps every token";
  if (!keepsAll(retention)) throw new Refusal("kv_retention", reason);
  if (request.request_kv_retention) throw new Refusal("request_kv_retention", reason);
}

/** Tokens of the longest request; null: it is not known. */
export function longestWith(tables, retention, madeFor) {
  if (madeFor === null || keepsAll(retention)) return madeFor;
  return Math.max(madeFor, tables.pagoda.most_positions);
}

/** Pagoda stores what its kernels for the device know, and codes of heads that can be cut. */
function requireStored(tables, model, asked, known, kind) {
  const { layers } = model;
  const name = tables.aliases[asked] ?? asked;
  if (has(model, LATENT)) {
    const plain = known.filter((each) => each === "auto" || FLOATS.has(each));
    if (plain.includes(name) || CODES_OF_LATENTS.has(name)) return;
    throw new Refusal("kv_cache_dtype", `of latents Pagoda has ${[...plain, ...CODES_OF_LATENTS].join(", ")} on a ${kind}`);
  }
  if (!known.includes(name)) throw new Refusal("kv_cache_dtype", `Pagoda has ${known.join(", ")} on a ${kind}`);
  const multiple = tables.pagoda.head_multiples[name] ?? 1;
  const odd = layers.map((spec) => (spec.attention ?? spec).head_size).find((size) => size % multiple);
  if (odd) {
    throw new Refusal("kv_cache_dtype", `codes take heads of a multiple of ${multiple} numbers, not ${odd}`);
  }
}

function weightsOf({ quantization: asked }, model, rules, kind) {
  if (rules.pagoda) {
    const rows = model.pagoda.weights;
    const row = kind === "CPU" ? rows[asked ?? ""] : (rows.GPU ?? rows.none);
    return { weights: new HeldWeights(row), quantization: row[4], assumed: row[5] ?? [] };
  }
  const row = model.weights[asked ?? ""];
  if (row === undefined) throw new Refusal("quantization", "vLLM quantises to other types");
  return { weights: new Weights(model, row), quantization: row[4], assumed: [] };
}

/** What the engine computes in on CPUs, or on GPUs. */
export function dtypeOf(tables, { model: name, engine, gpu, quantization }, kind) {
  const model = tables.models[name];
  if (!tables.engines[engine].pagoda) return tables.devices[gpu].dtypes?.[model.dtype] ?? model.dtype;
  const { dtype, quantizations } = tables.pagoda;
  return quantizations.includes(quantization) ? dtype : model.pagoda.dtypes?.[kind];
}

function lengthOf({ max_model_len: asked }, madeFor, longest) {
  if (asked === null && madeFor === null) throw new Refusal("max_model_len", "the config does not say it");
  if (asked !== null && longest !== null && asked > longest) {
    throw new Refusal("max_model_len", `at most ${whole(longest)}, the positions the model was made for`);
  }
  return asked ?? madeFor;
}

function contextOf({ context: asked, shared_prefix: shared }, length) {
  const context = asked ?? length;
  if (context > length) throw new Refusal("context", `at most the longest request, ${whole(length)}`);
  if (shared > context) throw new Refusal("shared_prefix", `at most the context, ${whole(context)}`);
  return context;
}

function howKept({ request, model, rules, device, ranks, batch, dtype, retention }) {
  const hasEncoder = has(model, "cross attention");
  return {
    ranks,
    dtype,
    retention,
    kvDtype: request.kv_cache_dtype,
    packsSparseLatents: device.packs_sparse_latents,
    codesLatents: rules.pagoda,
    numStates: rules.shares_states ? 2 : 1,
    encoderTokens: hasEncoder ? Math.max(batch[0], ENCODER_TOKENS) : null,
  };
}

function poolOptions({ rules, device, batch }) {
  const batches = rules.runs_ahead && !device.cpu ? 2 : 1;
  return { rules, blockSize: device.block_size, underWay: batch[0] * batches };
}

function indivisible({ heads, layers }, size) {
  if (heads % size) return `must divide the model’s ${heads} attention heads`;
  const counts = layers.map((spec) => (spec.attention ?? spec).num_kv_heads ?? size);
  const odd = counts.find((count) => count % size && size % count);
  return odd === undefined ? null : `must divide the ${odd} KV heads, or be a multiple of them`;
}

/** The first line of releases in which a form of the cache was seen. */
export function firstSeen({ formats_seen: seen }, format) {
  return seen.find(([name]) => format.startsWith(name))?.[1] ?? [0, 0];
}

/** Whether a line of releases, [major, minor], is before another. */
export const before = (one, other) => one[0] < other[0] || (one[0] === other[0] && one[1] < other[1]);
