// The plan of a choice, figure for figure what `pagoda plan --json` answers.

import { EVERY_TOKEN, Refusal } from "./layers.js";
import { GIB, fixed, grouped, inGib, whole } from "./numbers.js";
import { LONGEST, has, spread } from "./pool.js";
import { speedFloor } from "./speed.js";
import { before, firstSeen, readSubject, visited } from "./subject.js";

const DEFAULT_SHARE = 0.5;
const DEFAULT_CAP_BYTES = 4 * GIB;

/**
 * The plan. `request` has fields of the planner's `PlanRequest`; those not given are null.
 * Throws `Refusal` for what cannot be, or does not fit: then with what is known as `partial`.
 */
export function makePlan(tables, request) {
  const subject = readSubject(tables, request);
  const { low, high } = fill(subject);
  return { ...shape(subject), ...outcome(subject, low, high) };
}

/** The longest request that fits even where all else takes most; 0: not one token. */
export function certainLength(tables, request) {
  const subject = readSubject(tables, request);
  const most = subject.longest ?? LONGEST;
  return Math.min(most, subject.pool.longestContext(blocksIn(subject.pool, cacheBytes(subject, true)), 1));
}

/** Requests of each of these lengths that fit at once, at least and at most: for the chart. */
export function usersAt(tables, request, contexts) {
  const subject = readSubject(tables, { ...request, context: null, shared_prefix: 0 });
  return contexts.map((context) => {
    const shared = Math.min(request.shared_prefix, context);
    const ends = [true, false].map((least) => {
      const blocks = blocksIn(subject.pool, cacheBytes({ ...subject, length: context }, least));
      return Math.min(subject.pool.numUsers(blocks, context, shared), subject.batch[1]);
    });
    return { context, low: ends[0], high: ends[1] };
  });
}

// Memory, and what fits into it

const sum = (parts, end) => parts.reduce((total, part) => total + part[end], 0);
const blocksIn = (pool, bytes) => Math.floor(Math.max(0, bytes) / pool.blockBytes);

function share({ rules, request, kind }) {
  return rules.pagoda && kind === "CPU" ? 1 : (request.gpu_memory_utilization ?? rules.utilization);
}

function requested(subject) {
  return Math.ceil(subject.device.bytes * share(subject));
}

/** Bytes for the cache where all else takes most (`least`), or least. */
function cacheBytes(subject, least) {
  const left = Math.max(0, requested(subject) - sum(subject.parts, least ? "high" : "low"));
  const { rules, request, pool, length, kind } = subject;
  if (!rules.pagoda || kind === "GPU") return left;
  if (request.gpu_memory_utilization !== null) return Math.trunc(left * request.gpu_memory_utilization);
  const longest = pool.numBlocks(length) * pool.blockBytes;
  return Math.min(Math.trunc(left * DEFAULT_SHARE), Math.max(DEFAULT_CAP_BYTES, longest));
}

function fill(subject) {
  const { pool, length } = subject;
  const missing = sum(subject.parts, "low") - requested(subject);
  const partial = () => ({ ...shape(subject), ...memoryOf(subject, null, null) });
  if (missing >= 0) {
    const reason = `The weights and what runs beside them need ${inGib(missing)} more on each device`;
    throw new Refusal("model", reason, { ...partial(), missing_bytes: missing });
  }
  const [low, high] = [true, false].map((least) => answer(subject, cacheBytes(subject, least)));
  const short = pool.numBlocks(length) - high.num_blocks;
  if (short > 0) {
    const needed = pool.numBlocks(length) * pool.blockBytes - high.available_bytes;
    const reason = `A request of ${whole(length)} tokens needs ${inGib(needed)} more on each device`;
    const known = { ...shape(subject), ...memoryOf(subject, low, high), missing_bytes: needed, low, high, is_refused: true };
    throw new Refusal("max_model_len", reason, known);
  }
  return { low, high };
}

function answer(subject, available) {
  const { pool, request, context, madeFor, longest: most, batch } = subject;
  const blocks = blocksIn(pool, available);
  const longest = pool.longestContext(blocks, request.users ?? 1, request.shared_prefix);
  const isAny = madeFor === null && longest === LONGEST;
  const tokens = printedTokens(subject, blocks);
  const concurrency = printedConcurrency(subject, blocks, tokens);
  return {
    available_bytes: available,
    num_blocks: blocks,
    size_bytes: blocks * pool.blockBytes,
    num_tokens: tokens,
    concurrency,
    users: Math.min(pool.numUsers(blocks, context, request.shared_prefix), batch[1]),
    longest_context: isAny ? null : Math.min(longest, subject.length),
    longest_held: isAny ? null : Math.min(longest, most ?? longest),
    lines: blocks < pool.numBlocks(subject.length) ? [] : lines(subject, available, tokens, concurrency),
  };
}

const PRINTS = {
  tokens_of_requests: (pool, blocks, length) =>
    Math.trunc((blocks / pool.numBlocks(length)) * length),
  tokens_of_groups: (pool, blocks) => Math.floor(blocks / pool.groups.length) * pool.blockSize,
  tokens_of_blocks: (pool, blocks) => blocks * pool.blockSize,
};

function printedTokens({ rules, pool, length }, blocks) {
  if (rules.pagoda) return Math.floor((blocks * length) / pool.numBlocks(length));
  return PRINTS[rules.prints](pool, blocks, length);
}

function printedConcurrency({ rules, pool, length }, blocks, tokens) {
  const counts = rules.pagoda || rules.counts_blocks;
  return counts ? blocks / pool.numBlocks(length) : tokens / length;
}

function lines({ rules, kind, length }, available, tokens, concurrency) {
  const size = `${kind} KV cache size: ${whole(tokens)} tokens`;
  const most = `Maximum concurrency for ${whole(length)} tokens per request: ${fixed(concurrency, 2)}x`;
  const told = rules.pagoda || rules.tells_one_line ? [`${size}, ${most}`] : [size, most];
  return [`Available KV cache memory: ${inGib(available)}`, ...told];
}

// The answers

/** What is known before any memory is looked at. */
function shape(subject) {
  const { request, model, rules, pool, length, context, weights } = subject;
  const kinds = {};
  for (const id of spread(model.order).flat()) {
    const { kind } = model.layers[id];
    kinds[kind] = (kinds[kind] ?? 0) + 1;
  }
  const growing = pool.groups.filter(({ layer }) => layer.shares === EVERY_TOKEN);
  return {
    model: request.model,
    source: model.source,
    model_type: model.type,
    engine: rules.label,
    release: rules.release,
    gpu: request.gpu,
    num_devices: subject.ranks,
    tensor_parallel_size: subject.ranks,
    dtype: subject.dtype,
    quantization: subject.quantization,
    kv_cache_dtype: request.kv_cache_dtype,
    kv_retention: request.kv_retention ?? "full",
    block_size: pool.blockSize,
    max_model_len: length,
    context,
    users_wanted: request.users,
    shared_prefix: request.shared_prefix,
    parameters: model.numbers[3],
    active_parameters: visited(model.numbers),
    weights_bytes: weights.totalBytes,
    layer_kinds: kinds,
    groups: pool.groups.map((group) => ({
      kind: group.layer.kind,
      window: group.layer.window ?? null,
      sinks: group.layer.sinks ?? 0,
      num_layers: group.pages.length,
      block_size: group.blockSize,
      page_bytes: Math.max(...group.pages),
      blocks_per_request: pool.blocksIn(group, length),
    })),
    block_bytes: pool.blockBytes,
    token_bytes: growing.reduce((total, { blockSize }) => total + pool.blockBytes / blockSize, 0),
    sequence_bytes: pool.numBlocks(length) * pool.blockBytes,
    context_bytes: pool.numBlocks(context) * pool.blockBytes,
    wanted_bytes: wantedBlocks(subject) * pool.blockBytes,
  };
}

function outcome(subject, low, high) {
  const { device, request } = subject;
  const users = Math.max(1, Math.min(high.users, request.users ?? high.users));
  const speed = device.bandwidth ? speedFloor(subject, users) : null;
  const refused = refusals(subject);
  return {
    ...memoryOf(subject, low, high),
    ...costs(subject, low, high, speed),
    low,
    high,
    is_exact: low.available_bytes === high.available_bytes,
    speed,
    warnings: [...doubts(subject), ...refused, ...shortages(subject, low, high)],
    refusals: refused,
  };
}

/** An hour of a user, at most and at least, and a million tokens of output, at least. */
function costs({ request, ranks }, low, high, speed) {
  if (request.price === null) return { cost_per_user: null, cost_per_million_tokens: null };
  const hourly = request.price * ranks;
  const all = [low, high].map(({ users }) => Math.min(users, request.users ?? users));
  return {
    cost_per_user: low.users ? all.map((users) => hourly / users) : null,
    cost_per_million_tokens: speed && (hourly / (speed.total_tokens_per_s * 3600)) * 1e6,
  };
}

function memoryOf(subject, low, high) {
  const kept = subject.device.bytes - requested(subject);
  const [least, most] = low && high ? [low.size_bytes, high.size_bytes] : [0, 0];
  return {
    device_bytes: subject.device.bytes,
    memory: [
      ...subject.parts,
      { name: "KV cache", low: least, high: most, source: "whole blocks" },
      ...(kept ? [{ name: "left by utilization", low: kept, high: kept, source: `1 - ${share(subject)}` }] : []),
    ],
  };
}

/** Blocks of all the requests that are to fit, reserved ones included. */
function wantedBlocks({ pool, request, context }) {
  const shared = pool.sharedBlocks(request.shared_prefix);
  return shared + (pool.numBlocks(context) - shared) * (request.users ?? 1) + pool.reserved;
}

function shortages(subject, low, high) {
  const { pool, request, context, length, batch } = subject;
  const short = [];
  if (low.concurrency < 1) {
    short.push(
      `one request of ${whole(length)} tokens perhaps fits: only if activations ` +
        "and runtime stay near their lower bounds",
    );
  }
  const wanted = request.users;
  if (wanted !== null && wanted > batch[1]) {
    short.push(`${whole(wanted)} users do not run at once: max_num_seqs is ${whole(batch[1])}`);
  } else if (wanted === null && high.users === batch[1]) {
    short.push(`users are bound by max_num_seqs, ${whole(batch[1])} where nothing is said`);
  }
  const held = [low, high].map((end) => pool.numUsers(end.num_blocks, context, request.shared_prefix));
  if (wanted !== null && wanted > held[0]) {
    const [least, most] = [high, low].map(({ num_blocks: blocks }) =>
      grouped(((wantedBlocks(subject) - blocks) * pool.blockBytes) / GIB, 2),
    );
    const missing = low.num_blocks === high.num_blocks ? least : `${least} – ${most}`;
    const never = wanted > held[1];
    short.push(
      `${whole(wanted)} users of ${whole(context)} tokens ${never ? "do" : "may"} not fit: ` +
        `${never ? missing : `up to ${most}`} GiB are missing on each device`,
    );
  }
  return short;
}

/** What the device certainly cannot do. */
function refusals({ request, rules, device, quantization }) {
  if (rules.pagoda || !rules.runs_ahead || !device.refused) return [];
  const { weights, caches } = device.refused;
  const told = [];
  if (weights.includes(quantization)) told.push(`weights in ${quantization} are refused on ${request.gpu}`);
  if (caches.some((name) => request.kv_cache_dtype.startsWith(name))) {
    told.push(`a cache in ${request.kv_cache_dtype} is refused on ${request.gpu}`);
  }
  return told;
}

function doubts({ tables, request, model, rules, device, assumed }) {
  const chunked = has(model, "chunked attention") && !rules.runs_ahead && rules.forms_groups;
  const told = [...((rules.pagoda ? model.pagoda : model).assumed ?? []), ...assumed];
  const seen = firstSeen(tables, request.kv_cache_dtype);
  if (!rules.pagoda && before(rules.line, seen)) {
    told.push(
      `a cache in ${request.kv_cache_dtype} was seen in vllm ${seen.join(".")} and later: ` +
        `${rules.version} may refuse it`,
    );
  }
  if (rules.is_newer) {
    told.push(`vllm ${rules.version} is not known: planned for by the rules of ${tables.newest.join(".")}`);
  }
  if (!device.vendor && rules.pagoda) told.push("no device is named: taken for the CPUs of a machine of that memory");
  if (!device.vendor && rules.runs_ahead && !rules.pagoda && has(model, "sliding window")) {
    told.push("no device is named: taken for a GPU, which schedules a second batch ahead");
  }
  if (chunked && !rules.pagoda) {
    told.push("releases before 0.20 may keep chunks whole, and hold fewer requests");
  }
  if (device.derived) told.push("the device's memory follows from its catalogue and was not read on one");
  return told;
}
