// What one change would buy, and what would make it fit: the plan again with a flag more.

import { LATENT, Refusal } from "./layers.js";
import { certainLength, makePlan } from "./plan.js";
import { before, firstSeen } from "./subject.js";

const LARGEST_GROUP = 64;
const LENGTHS = [32_768, 8192, 2048];
const INT4_CACHE = "int4_per_token_head";
const PAGODA_CACHES = {
  "int8 cache": "int8_per_token_head",
  "int4 cache": "int4",
  "int4 cache, uncalibrated": INT4_CACHE,
};
const LATENT_CACHES = { "int8 cache": "int8_per_group" };
const SMALL_CHECKPOINT = "a checkpoint in 4 bits";
const INT4_WEIGHTS = "gptq"; // what such a checkpoint is planned for as, since every GPU takes it: no flag makes one
const PAGODA_WEIGHTS = ["q8_0", "q4_k"]; // what is worth a try with Pagoda on CPUs

/** Changes that the engine would start with, each with its figures. */
export function alternatives(tables, request, plan) {
  const found = Object.entries(changes(tables, request, plan)).map(([name, change]) =>
    tried(tables, request, plan, name, change),
  );
  if (!tables.engines[request.engine].pagoda) found.push(moreDevices(tables, request, plan));
  return found.filter((other) => other !== null);
}

/** Single flags with which a choice that does not fit would: the smallest of each. */
export function waysToFit(tables, request) {
  const tries = [];
  if (!tables.engines[request.engine].pagoda) {
    for (const factor of [2, 4, 8, 16]) {
      tries.push({ tensor_parallel_size: request.tensor_parallel_size * factor });
    }
    tries.push({ quantization: "fp8" }, { quantization: INT4_WEIGHTS });
  } else {
    tries.push(...PAGODA_WEIGHTS.map((quantization) => ({ quantization })));
  }
  if (request.context === null || request.max_model_len === null) {
    const certain = certainLength(tables, request);
    const lengths = certain >= LENGTHS.at(-1) ? [certain, ...LENGTHS] : LENGTHS;
    for (const length of lengths) tries.push({ max_model_len: length });
  }
  const found = {};
  for (const change of tries) {
    const [name] = Object.keys(change);
    if (!found[name] && fits(tables, { ...request, ...change })) found[name] = change;
  }
  return Object.values(found).map((change) => ({ change, flags: flagsOf(change) || SMALL_CHECKPOINT }));
}

/** Nothing for a checkpoint in 4 bits. */
export function flagsOf(change) {
  if (change.quantization === INT4_WEIGHTS) return "";
  return Object.entries(change)
    .map(([name, value]) => `--${name.replaceAll("_", "-")} ${value}`)
    .join(" ");
}

function fits(tables, request) {
  const plan = planThatStarts(tables, request);
  return plan !== null && plan.low.concurrency >= 1;
}

function planThatStarts(tables, request) {
  try {
    const plan = makePlan(tables, request);
    return plan.refusals.length ? null : plan;
  } catch (refused) {
    if (refused instanceof Refusal) return null;
    throw refused;
  }
}

function changes(tables, request, plan) {
  const found = {};
  const rules = tables.engines[request.engine];
  if (!rules.pagoda) {
    if (request.kv_cache_dtype === "auto") {
      found["fp8 cache"] = { kv_cache_dtype: "fp8" };
      const isKnown = !before(rules.line, firstSeen(tables, INT4_CACHE));
      if (!(LATENT in plan.layer_kinds) && isKnown) found["int4 cache"] = { kv_cache_dtype: INT4_CACHE };
    }
    if (plan.quantization === null) {
      found["fp8 weights"] = { quantization: "fp8" };
      found[SMALL_CHECKPOINT] = { quantization: INT4_WEIGHTS };
    }
  } else {
    const caches = LATENT in plan.layer_kinds ? LATENT_CACHES : PAGODA_CACHES;
    for (const [name, format] of Object.entries(caches)) {
      if (request.kv_cache_dtype === "auto") found[name] = { kv_cache_dtype: format };
    }
    const weights = plan.quantization === null ? PAGODA_WEIGHTS : [];
    for (const quantization of weights) found[`${quantization} weights`] = { quantization };
  }
  if (plan.context > 1) {
    const half = Math.floor(plan.context / 2);
    if (request.shared_prefix === 0) found["half of each prompt shared"] = { shared_prefix: half };
    // Else nothing of a request would be its own.
    if (half > request.shared_prefix) found["half the context"] = { context: half };
  }
  return found;
}

function tried(tables, request, plan, name, change) {
  const other = planThatStarts(tables, { ...request, ...change });
  return other && compared(name, flagsOf(change), change, plan, other);
}

/** The next number of ranks that divides the heads. */
function moreDevices(tables, request, plan) {
  const size = request.tensor_parallel_size;
  for (let larger = size + 1; larger <= Math.min(2 * size, LARGEST_GROUP); larger++) {
    const change = { tensor_parallel_size: larger };
    const other = planThatStarts(tables, { ...request, ...change });
    if (other === null) continue;
    const more = other.num_devices - plan.num_devices;
    const name = `${more} more device${more > 1 ? "s" : ""}`;
    return compared(name, flagsOf(change), change, plan, other);
  }
  return null;
}

/** Null where it would buy nothing. */
function compared(name, flags, change, plan, other) {
  const hasMore = ["low", "high"].some(
    (end) => other[end].users > plan[end].users || other[end].num_tokens > plan[end].num_tokens,
  );
  if (!hasMore || other.high.users < plan.high.users) return null;
  return {
    name,
    flags,
    change,
    users_low: other.low.users,
    users_high: other.high.users,
    tokens_low: other.low.num_tokens,
    tokens_high: other.high.num_tokens,
    gain: plan.high.users ? other.high.users / plan.high.users : null,
  };
}
