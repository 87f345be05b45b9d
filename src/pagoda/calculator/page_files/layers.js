// What a layer keeps on one rank: bytes of a block, blocks of a request, bytes read a token.

import { KEEPS_ALL, narrowed } from "./retention.js";

export class Refusal extends Error {
  /** `partial`: figures that are known all the same. */
  constructor(field, reason, partial = null) {
    super(reason);
    Object.assign(this, { field, partial });
  }
}

export const ceilDiv = (amount, size) => Math.ceil(amount / size);
const times = (count, size, bits) => ceilDiv(count * size * bits, 8);

/** The layer of a spec from the tables; `how` says how it is run and stored. */
export function keptOf(spec, how) {
  const own = how.keepsAll && WINDOWED.has(spec.kind) ? { kind: FULL, ...spec.attention } : keeping(spec, how.retention);
  if (own.kind === LATENT && how.latentForm === "expanded") {
    return KINDS[FULL]({ num_kv_heads: Math.max(1, how.heads), head_size: EXPANDED_SIZE }, how);
  }
  return KINDS[own.kind](own, how);
}

/** The layer where no more than `retention` stays of a sequence. */
function keeping(spec, retention) {
  const whole = { [FULL]: KEEPS_ALL, [LATENT]: KEEPS_ALL };
  const seen = { ...whole, [SLIDING]: { window: spec.length, sinks: spec.sinks } }[spec.kind];
  const kept = seen && narrowed(seen, retention);
  if (!kept || (kept.window === seen.window && kept.sinks === seen.sinks)) return spec;
  return { kind: SLIDING, attention: spec.attention ?? spec, length: kept.window, sinks: kept.sinks };
}

export const FULL = "full attention";
export const SLIDING = "sliding window";
export const LATENT = "latent attention";
export const STATE = "recurrent state";
export const EVERY_TOKEN = "full";
/** Pagoda's: eight bits a number, a float32 scale for a group of them, the shared key in bfloat16. */
export const LATENT_CODES = "eight bits a group";
const LATENT_GROUP = 128;
const EXPANDED_SIZE = 256;
const PADDED_BYTES = 256;
const WINDOWED = new Set([SLIDING, "chunked attention"]);

const KINDS = {
  [FULL]: (spec, how) => {
    const kept = vectors(spec, how);
    return {
      ...kept,
      kind: FULL,
      shares: EVERY_TOKEN,
      numBlocks: (tokens, size) => ceilDiv(tokens, size),
      readBytes: kept.blockBytes,
    };
  },
  [SLIDING]: (spec, how) => {
    const kept = KINDS[spec.attention.kind ?? FULL](spec.attention, how);
    return {
      ...kept,
      kind: spec.kind,
      window: spec.length,
      sinks: spec.sinks,
      shares: `sliding ${spec.length} ${spec.sinks}`,
      numBlocks: (tokens, size, underWay) =>
        ceilDiv(Math.min(spec.length - 1 + underWay, tokens), size) + 1 + ceilDiv(spec.sinks, size),
      readBytes: (tokens) => kept.readBytes(Math.min(tokens, spec.length + spec.sinks)),
    };
  },
  "chunked attention": (spec, how) => {
    const kept = vectors(spec.attention, how);
    return {
      ...kept,
      kind: spec.kind,
      shares: `chunked ${spec.chunk}`,
      numBlocks: (tokens, size, underWay) => ceilDiv(Math.min(spec.chunk + underWay, tokens), size),
      readBytes: (tokens) => kept.blockBytes(Math.min(tokens, spec.chunk)),
    };
  },
  "cross attention": (spec, how) => {
    const kept = vectors(spec.attention, how);
    const tokens = how.encoderTokens ?? spec.encoder_tokens;
    return {
      ...kept,
      kind: spec.kind,
      shares: `cross ${tokens}`,
      numBlocks: (_, size) => ceilDiv(tokens, size),
      readBytes: () => kept.blockBytes(tokens),
    };
  },
  [LATENT]: (spec, how) => {
    const latent = latentBytes(spec, how);
    const index = spec.index_size ? spec.index_size + 4 : 0;
    return {
      kind: LATENT,
      shares: EVERY_TOKEN,
      widths: 0,
      most: spec.index_top ?? Infinity,
      blockBytes: (size) => size * (latent + index),
      numBlocks: (tokens, size) => ceilDiv(tokens, size),
      readBytes: (tokens) =>
        Math.min(tokens, spec.index_top ?? tokens) * latent + tokens * index,
    };
  },
  [STATE]: (spec, how) => {
    const bytes = stateBytes(spec, how);
    return {
      kind: STATE,
      shares: `state ${bytes}`,
      widths: 0,
      blockBytes: () => bytes,
      numBlocks: () => how.numStates,
      readBytes: () => bytes,
    };
  },
};

/** Keys and values: KV heads of a rank × bits of a head's key and value. */
function vectors(spec, { tables, ranks, stored }) {
  const format = tables.formats[stored];
  if (!format) throw new Refusal("kv_cache_dtype", `${stored} is for latent attention alone`);
  const [keyBits, valueBits, keyExtra, valueExtra, align] = format;
  const sizeV = spec.head_size_v ?? spec.head_size;
  const key = Math.ceil(spec.head_size * keyBits) + keyExtra;
  const value = Math.ceil(sizeV * valueBits) + valueExtra;
  const bits = ceilDiv(key + value, align) * align;
  const heads = Math.max(1, Math.floor(spec.num_kv_heads / ranks));
  return {
    widths: spec.head_size + sizeV,
    blockBytes: (size) => times(size, heads, bits),
  };
}

/** One vector a token for all heads, on every rank. */
function latentBytes(spec, { tables, stored, latentForm }) {
  if (stored === LATENT_CODES) return spec.rank + 4 * ceilDiv(spec.rank, LATENT_GROUP) + 2 * spec.rope_size;
  const width = spec.rank + spec.rope_size;
  const packed = tables.latent_bytes[stored];
  const bits = tables.plain_bits[stored];
  if (packed && width !== 512 + 64) {
    throw new Refusal("kv_cache_dtype", `${stored} is for a latent of 512 + 64 numbers`);
  }
  if (!packed && !bits) {
    throw new Refusal("kv_cache_dtype", `latent attention is not stored as ${stored}`);
  }
  const unit = latentForm === "padded" ? PADDED_BYTES : 1;
  return packed ?? ceilDiv(ceilDiv(width * bits, 8), unit) * unit;
}

function stateBytes(spec, { tables, ranks, dtype }) {
  const share = (amount) => Math.floor(amount / ranks);
  const groups = spec.groups % ranks === 0 ? spec.groups : ranks;
  const width = share(spec.conv_width) + spec.group_width * (spec.groups ? share(groups) : 0);
  const own = spec.state_dtype === "float32" ? "float32" : dtype;
  const conv = Math.floor((spec.conv_length * width * tables.plain_bits[dtype]) / 8);
  return conv + Math.floor((share(spec.state_values) * tables.plain_bits[own]) / 8);
}
