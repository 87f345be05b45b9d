// Numbers as people read them, and as the engines print them.

export const GIB = 2 ** 30;
const format = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const whole = (value) => format.format(value);

/** So many decimals, exact halves to even: as Python and C write them. */
export function fixed(value, places) {
  const halves = value * 2 ** (places + 1);
  if (!Number.isInteger(halves) || halves % 2 === 0) return value.toFixed(places);
  const below = Math.floor(value * 10 ** places);
  return ((below + (below % 2)) / 10 ** places).toFixed(places);
}

/** The same with thousands grouped. */
export function grouped(value, places) {
  const [before, after] = fixed(value, places).split(".");
  return `${whole(Number(before))}${after ? `.${after}` : ""}`;
}

/** GiB with two decimals at most, one at least: the engine's own way, `50.51 GiB`. */
export function inGib(bytes) {
  const text = fixed(bytes / GIB, 2);
  return `${text.endsWith("0") ? text.slice(0, -1) : text} GiB`;
}

/** GiB with three figures or so. */
export function gib(bytes) {
  const size = bytes / GIB;
  return size >= 1000 ? whole(size) : fixed(size, size < 1 ? 2 : size < 100 ? 1 : 0);
}

export function range(low, high, show) {
  const [one, other] = [show(low), show(high)];
  return one === other ? one : `${one} – ${other}`;
}

const UNITS = [
  ["GiB", GIB],
  ["MiB", 2 ** 20],
  ["KiB", 2 ** 10],
];

/** A size in the largest unit that it has one of. */
export function size(bytes) {
  const [unit, scale] = UNITS.find(([, least]) => bytes >= least) ?? ["bytes", 1];
  const value = bytes / scale;
  return `${Number.isInteger(value) || value >= 100 ? whole(value) : fixed(value, 1)} ${unit}`;
}

/** Tokens as lengths are spoken of: 32k, 1M; exact where the length is no round one. */
export function short(tokens) {
  if (tokens >= 2 ** 20 && tokens % 2 ** 20 === 0) return `${tokens / 2 ** 20}M`;
  if (tokens >= 1024 && tokens < 1000 * 1024 && tokens % 1024 === 0) return `${tokens / 1024}k`;
  return whole(tokens);
}

/** Three figures with k or M, for axes and tight places. */
export function rough(value) {
  if (value >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (value >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  return whole(value);
}

export function duration(seconds) {
  if (seconds < 1) return `${Number((seconds * 1000).toPrecision(2))} ms`;
  return seconds < 100 ? `${fixed(seconds, 1)} s` : `${whole(seconds / 60)} min`;
}

export function rate(perSecond) {
  return perSecond < 100 ? fixed(perSecond, 1) : whole(perSecond);
}
