// The pool of one rank: layers in groups that share blocks, and what a number of blocks holds.

import { EVERY_TOKEN, LATENT, LATENT_CODES, STATE, Refusal, ceilDiv, keptOf } from "./layers.js";

const BLOCK_SIZE = 16;
const LATENT_BLOCK_SIZE = 64;
const ALIGNMENT = 16;
const MERGE_BELOW = 1.5;
const GUARDED_LAYERS = 2;
/** What Pagoda stores latents in beside a dtype; two names for fp8. */
export const CODES_OF_LATENTS = new Set(["fp8_e4m3", "fp8_ds_mla", "int8_per_group"]);
export const LONGEST = 2 ** 40;

/** A run-length list, value and times in turn, written out. */
export function spread(runs) {
  const values = [];
  for (let at = 0; at < runs.length; at += 2) {
    for (let time = 0; time < runs[at + 1]; time++) values.push(runs[at]);
  }
  return values;
}

/** What one rank keeps, layer by layer; some layers of a model keep nothing, or two things. */
export function rankLayers(tables, model, how) {
  const stored = formatOf(tables, model, how);
  const plain = model.layers.map((spec) => keptOf(spec, { ...how, tables, stored: how.dtype }));
  const order = spread(model.order);
  if (stored === null) return order.flatMap((ids) => ids.map((id) => plain[id]));
  const packed = model.layers.map((spec) => keptOf(spec, { ...how, tables, stored }));
  const guarded = stored.startsWith("turboquant_") && !has(model, STATE) ? GUARDED_LAYERS : 0;
  const ends = Math.min(guarded, Math.floor(order.length / 2));
  return order.flatMap((ids, at) => {
    const isGuarded = at < ends || at >= order.length - ends;
    return ids.map((id) => (isGuarded ? plain : packed)[id]);
  });
}

/** The format of the cache; null: that of the model. */
function formatOf(tables, model, { kvDtype, packsSparseLatents, codesLatents }) {
  if (kvDtype === "auto") return null;
  const name = tables.aliases[kvDtype] ?? kvDtype;
  if (codesLatents && CODES_OF_LATENTS.has(name) && has(model, LATENT)) return LATENT_CODES;
  if (!(name in tables.formats) && !(name in tables.latent_bytes)) {
    throw new Refusal("kv_cache_dtype", `${name} is not known`);
  }
  if (name in tables.latent_bytes && !has(model, LATENT)) {
    throw new Refusal("kv_cache_dtype", `${name} is for latent attention (MLA) alone`);
  }
  const isSparse = model.layers.some((spec) => spec.kind === LATENT && spec.index_size);
  return name.startsWith("fp8") && packsSparseLatents && isSparse ? "fp8_ds_mla" : name;
}

export const has = (model, kind) => model.layers.some((spec) => spec.kind === kind);

export class Pool {
  constructor(groups, underWay, reserved) {
    Object.assign(this, { groups, underWay, reserved });
    this.blockBytes = Math.max(...groups.map(({ pages }) => pages.reduce((a, b) => a + b, 0)));
    this.blockSize = Math.min(...groups.map(({ blockSize }) => blockSize));
  }

  /** Blocks that a sequence of so many tokens occupies, over all groups. */
  numBlocks(tokens) {
    return this.groups.reduce((sum, group) => sum + this.blocksIn(group, tokens), 0);
  }

  blocksIn(group, tokens) {
    const kept = group.layer.numBlocks(tokens, group.blockSize, this.underWay);
    return group.noSpare ? Math.min(kept, ceilDiv(tokens, group.blockSize)) : kept;
  }

  /** Full blocks of a common beginning: a window's or a state's are private. */
  sharedBlocks(tokens) {
    const every = this.groups.filter(({ layer }) => layer.shares === EVERY_TOKEN);
    return every.reduce((sum, { blockSize }) => sum + Math.floor(tokens / blockSize), 0);
  }

  /** Requests of `context` tokens that so many blocks hold at once. */
  numUsers(blocks, context, sharedPrefix = 0) {
    const shared = this.sharedBlocks(sharedPrefix);
    const own = this.numBlocks(context) - shared;
    const usable = blocks - this.reserved - shared;
    if (usable < own) return 0;
    return own ? Math.floor(usable / own) : usable;
  }

  /** Tokens of the longest requests of which `users` fit at once. */
  longestContext(blocks, users, sharedPrefix = 0) {
    let [low, high] = [0, LONGEST];
    while (low < high) {
      const middle = Math.floor((low + high + 1) / 2);
      const fit = this.numUsers(blocks, middle, Math.min(sharedPrefix, middle));
      if (fit >= users) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}

/** Pagoda's blocks hold equally many tokens in every group: see `groups_of_equal_blocks`. On a GPU a
 * step is decided while another runs; where requests choose what stays they may take a block more. */
export function pagodaPool(layers, stepTokens, { kind, requestsChoose }) {
  const alike = new Map();
  for (const layer of layers) alike.set(layer.shares, [...(alike.get(layer.shares) ?? []), layer]);
  const bytes = (layer) => layer.blockBytes(BLOCK_SIZE);
  const kinds = [...alike.values()];
  if (kinds.length > 1) kinds.forEach((kin) => kin.sort((one, other) => bytes(other) - bytes(one)));
  const size = groupSize(kinds.map((kin) => kin.length));
  const parts = kinds.flatMap((kin) => {
    const count = ceilDiv(kin.length, size);
    return Array.from({ length: count }, (_, first) => kin.filter((_, at) => at % count === first));
  });
  const places = Array.from({ length: size }, (_, place) =>
    Math.max(...parts.filter((own) => place < own.length).map((own) => bytes(own[place]))),
  );
  const groups = parts.map((own) => ({
    layer: own[0],
    blockSize: BLOCK_SIZE,
    noSpare: true,
    pages: places.slice(0, own.length),
  }));
  const steps = Math.max(stepTokens, BLOCK_SIZE) * (kind === "GPU" ? 2 : 1);
  return new Pool(groups, steps + (requestsChoose ? BLOCK_SIZE : 0), 0);
}

export function buildPool(model, layers, { blockSize, underWay, rules }) {
  if (!layers.length) throw new Refusal("model", "keeps nothing in a cache");
  const size = alignedSize(layers, startSize(model, layers, blockSize));
  const pool = new Pool(formGroups(layers, size), underWay, rules.reserved_blocks);
  if (!pool.blockBytes) throw new Refusal("model", "keeps nothing in a cache");
  return pool;
}

function startSize(model, layers, asked) {
  if (layers.every(({ kind }) => kind === STATE)) return { own: asked ?? model.longest ?? BLOCK_SIZE };
  return { least: asked ?? (has(model, LATENT) ? LATENT_BLOCK_SIZE : BLOCK_SIZE) };
}

/** Blocks of attention grow until their page holds a recurrent state. */
function alignedSize(layers, { own, least }) {
  if (own !== undefined) return own;
  const bytes = (wanted) =>
    layers.filter(({ kind }) => (kind === STATE) === wanted).map((layer) => layer.blockBytes(1));
  const [states, others] = [bytes(true), bytes(false)];
  if (!states.length) return least;
  const alignment = Math.max(ALIGNMENT, least);
  const needed = ceilDiv(Math.max(...states), alignment * Math.max(...others));
  return Math.max(least, alignment * needed);
}

function formGroups(layers, blockSize) {
  if (new Set(layers.map(({ shares }) => shares)).size === 1) {
    return [{ layer: layers[0], blockSize, pages: layers.map((l) => l.blockBytes(blockSize)) }];
  }
  const page = Math.max(...layers.map((layer) => layer.blockBytes(blockSize)));
  const alike = new Map();
  for (const layer of layers) {
    const grown = grownSize(layer, blockSize, page);
    const key = `${layer.shares}|${layer.blockBytes(blockSize)}|${grown}`;
    const kin = alike.get(key) ?? { layer, blockSize: grown, count: 0 };
    kin.count += 1;
    alike.set(key, kin);
  }
  const size = groupSize([...alike.values()].map(({ count }) => count));
  return [...alike.values()].flatMap(({ layer, blockSize: own, count }) => {
    const numGroups = ceilDiv(count, size);
    return Array.from({ length: numGroups }, (_, first) => {
      const pages = Array(ceilDiv(count - first, numGroups)).fill(page);
      return { layer, blockSize: own, pages };
    });
  });
}

/** A smaller page that divides the largest grows its block; another is padded. */
function grownSize(layer, blockSize, page) {
  const own = layer.blockBytes(blockSize);
  return layer.kind === STATE || page % own ? blockSize : blockSize * (page / own);
}

/** The rarer kind's layers; the commoner one's where these are fewer than 1.5 times as many. */
function groupSize(counts) {
  const [fewest, most] = [Math.min(...counts), Math.max(...counts)];
  return most < fewest * MERGE_BELOW ? most : fewest;
}
