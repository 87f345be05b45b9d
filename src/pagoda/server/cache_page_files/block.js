// What a cell of the map says when it is pointed at.

import { BLANK, CACHED, SHARED, cellAt } from "./feed.js";
import { whole } from "./draw.js";

/** In words: which block, whose, in what state, for how long, and who holds it. */
export function inWords(news, place) {
  const cell = cellAt(news.cells, place);
  const size = news.map.blocks_per_cell;
  const first = place * size;
  const last = Math.min(first + size, news.num_blocks) - 1;
  const which = !news.is_operator ? "Of your blocks" : size === 1 ? `Block ${whole(first)}` : `Blocks ${whole(first)} to ${whole(last)}, the busiest`;
  if (cell.state === BLANK) {
    return `${news.is_operator ? which : "This place"}: ${news.is_operator ? "blank" : "not yours"}${lossOf(cell)}.`;
  }
  const holders = news.sequences.filter(({ cells }) => covers(cells, place)).map(({ id, index }) => named(id, index));
  const name = news.tenants[cell.owner - 1]?.name;
  const parts = [`${which}: ${stateOf(cell.state)} for ${age(cell.age)}`];
  if (news.is_operator && name) parts.push(`of ${name}`);
  if (holders.length) parts.push(`in ${holders.slice(0, 4).join(", ")}${holders.length > 4 ? ` and ${holders.length - 4} more` : ""}`);
  return `${parts.join(", ")}${lossOf(cell)}.`;
}

export const named = (id, index) => (index ? `${id} (${index + 1})` : id);

function covers(runs, place) {
  for (let at = 0; at < runs.length; at += 2) if (place >= runs[at] && place < runs[at] + runs[at + 1]) return true;
  return false;
}

const stateOf = (state) => (state === CACHED ? "cached, held by nobody," : state === SHARED ? "held by several sequences" : "held by one sequence");
const lossOf = ({ lost }) => (lost ? "; what was here has just been evicted" : "");

/** At least 2^level - 1 seconds and less than twice as long. */
function age(level) {
  const [from, to] = [2 ** level - 1, 2 ** (level + 1) - 1];
  if (level === 0) return "less than a second";
  if (to < 120) return `${from} to ${to} s`;
  return to < 7200 ? `some ${Math.round(from / 60)} to ${Math.round(to / 60)} min` : `some ${Math.round(from / 360) / 10} hours or more`;
}
