// What a plan says, in words and figures.

import { duration, fixed, gib, range, rate, short, size, whole } from "./numbers.js";

/** The choice's state, its headline and the reason. */
export function verdictOf(plan) {
  const { low, high, users_wanted: wanted, context, refusals } = plan;
  if (refusals.length) return told("short", "It would not start", sentence(refusals.join("; ")));
  const each = `${wanted === 1 ? "sequence" : "sequences"} of ${whole(context)} tokens`;
  if (wanted === null) {
    const many = range(low.users, high.users, whole);
    const noun = high.users === 1 ? "sequence" : "sequences";
    const fit = high.users === 1 ? "fits" : "fit at once";
    return told("fits", `${many} ${noun} of ${whole(context)} tokens ${fit}`, uncertainty(plan));
  }
  if (wanted <= low.users) {
    const more = range(low.users - wanted, high.users - wanted, whole);
    const room = high.users > wanted ? `, and ${more} more would` : ", and no more";
    return told("fits", `${whole(wanted)} ${each} ${wanted === 1 ? "fits" : "fit"}${room}`, uncertainty(plan));
  }
  const [warning] = plan.warnings.slice(-1);
  if (wanted <= high.users) return told("may", `${whole(wanted)} ${each} may fit`, sentence(warning));
  const many = range(low.users, high.users, whole);
  return told("short", `${many} of ${whole(wanted)} ${each} fit`, sentence(warning));
}

/** The same for what is refused. */
export function refusalOf({ field, message, partial }) {
  if (!partial) return told("short", "This cannot be", sentence(`${field.replaceAll("_", " ")}: ${message}`));
  const missing = `${gib(partial.missing_bytes)} GiB missing`;
  const what = field === "model" ? "The model does not fit" : "Not even one sequence fits";
  return told("short", `${what}: ${missing}`, sentence(message));
}

const told = (state, headline, reason) => ({ state, headline, reason });
export const sentence = (text) => (text ? `${text[0].toUpperCase()}${text.slice(1)}.` : "");

function uncertainty({ is_exact: isExact, low, high }) {
  if (isExact) return "To the block: nothing is left open.";
  const open = gib(high.available_bytes - low.available_bytes);
  return `Blocks and bytes are exact; ${open} GiB depend on activations and runtime, known only once it runs.`;
}

/** Name, value and hint of each figure; some are not known where it does not fit. */
export function tilesOf(plan) {
  const { low, high, speed } = plan;
  const wanted = plan.users_wanted ?? 1;
  const tiles = [];
  const add = (name, value, hint) => tiles.push([name, value, hint]);
  if (low) {
    add("Tokens in the pool", range(low.num_tokens, high.num_tokens, whole), `${range(low.num_blocks, high.num_blocks, whole)} blocks`);
    add("Concurrency", `${range(low.concurrency, high.concurrency, (value) => fixed(value, 2))}×`, `of ${whole(plan.max_model_len)} tokens each`);
    add("Longest context", longest(low, high), `tokens, for ${whole(wanted)} sequence${wanted > 1 ? "s" : ""}`);
  }
  add("One token", plan.token_bytes ? size(plan.token_bytes) : "nothing", tokenHint(plan));
  add("One sequence", size(plan.context_bytes), `of ${short(plan.context)} tokens, on a device`);
  add("A block", size(plan.block_bytes), `${whole(plan.block_size)} tokens, ${layersOf(plan)}`);
  if (speed) {
    add("Decode, at most", `${rate(speed.tokens_per_s)} tokens/s`, `each; ${rate(speed.total_tokens_per_s)} in all, ${whole(speed.users)} at once`);
    if (speed.experts_read !== null) {
      add("Experts read", `${fixed(100 * speed.experts_read, 0)}%`, "in a decode step, were all as likely");
    }
    add("Prefill, at least", duration(speed.prefill_s), `for ${short(speed.context)} tokens`);
  }
  if (plan.cost_per_user) {
    const [most, least] = plan.cost_per_user;
    add("Cost", range(least, most, (value) => value.toPrecision(3)), "a sequence and hour");
  }
  return tiles;
}

/** The most that memory holds, whatever the longest request is set to. */
function longest(...ends) {
  const [low, high] = ends.map((end) => ("longest_held" in end ? end.longest_held : end.longest_context));
  return high === null ? "any length" : range(low, high, whole);
}

/** Of a mixed model only some layers go on growing. */
function tokenHint({ token_bytes: bytes, groups }) {
  const kinds = new Set(groups.map(({ kind }) => kind));
  if (!bytes) return "what is kept does not grow";
  if (kinds.has("recurrent state")) return "on a device, beside the states";
  return kinds.size > 1 ? "on a device, once windows are full" : "on a device";
}

function layersOf({ layer_kinds: kinds }) {
  return Object.entries(kinds)
    .map(([kind, count]) => `${count} × ${kind}`)
    .join(", ");
}

/** What the engine prints where it starts: once where all is known, else at either end. */
export function linesOf({ low, high, is_exact: isExact, refusals }) {
  if (!high || refusals?.length) return [];
  if (isExact || !low.lines.length) return high.lines;
  return [...low.lines, "", ...high.lines];
}

/** What stands above them. */
export function printedTitle({ engine, low, is_exact: isExact }) {
  if (isExact) return `${engine} will print`;
  if (!low.lines.length) return `${engine} will print values up to these, or refuse to start`;
  return `${engine} will print values in this range`;
}
