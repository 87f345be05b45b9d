// Which tokens of a sequence stay: as `--kv-retention` names them.

const EVERY = 2 ** 31 - 1;
export const KEEPS_ALL = { window: EVERY, sinks: 0 };
const NUMBER = /^(0|[1-9][0-9]{0,8})$/;

/** Window and sinks of a name, `usual` where it leaves one out; null: it is no name. */
export function parseRetention(name, usual) {
  const [, method, colon, given] = /^([^:]*)(:?)(.*)$/s.exec(name);
  if (colon && !given) return null;
  if (method === "full") return given ? null : KEEPS_ALL;
  if (method === "window") return NUMBER.test(given) ? checked({ window: Number(given), sinks: 0 }) : null;
  if (method !== "streaming") return null;
  const named = {};
  for (const part of given ? given.split(",") : []) {
    const [key, value, ...more] = part.split("=");
    if (!["sinks", "window"].includes(key) || !NUMBER.test(value) || more.length || key in named) return null;
    named[key] = Number(value);
  }
  return checked({ window: usual.window, sinks: usual.sinks, ...named });
}

const checked = (kept) => (kept.window >= 1 && kept.sinks <= kept.window ? kept : null);

export const keepsAll = ({ window }) => window === EVERY;

export function nameOf({ window, sinks }) {
  if (keepsAll({ window })) return "full";
  return sinks ? `streaming:sinks=${sinks},window=${window}` : `window:${window}`;
}

/** What is seen where a layer sees `own` and a request keeps `other`: what is fewer tokens. */
export function narrowed(own, other) {
  return other.window + other.sinks <= own.window + own.sinks ? other : own;
}

/** The nearest that an engine keeps in blocks of a size, on a model made for so many positions. */
export function fitting(kept, blockSize, madeFor) {
  if (keepsAll(kept)) return kept;
  const sinks = Math.min(kept.sinks, Math.floor(madeFor / 2));
  const least = Math.max(blockSize, sinks);
  return { sinks, window: Math.max(least, Math.min(kept.window, madeFor - sinks)) };
}
