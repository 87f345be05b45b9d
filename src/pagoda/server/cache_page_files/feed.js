// What the server tells of the cache, for as long as somebody looks.

import { Refusal, events, refusal } from "../../page/stream.js";

/** What there is beside the news, once, and the news, each with the cells of its map. Throws a `Refusal`, or what `fetch` throws. */
export async function* news(signal) {
  const response = await fetch("cache/events", { signal, cache: "no-store" });
  if (!response.ok) throw await refusal(response);
  for await (const data of events(response.body)) {
    const told = JSON.parse(data);
    if (told.error) throw new Refusal(`The server says: ${told.error.message}.`);
    if (!told.map) yield told;
    else yield { ...told, at: performance.now() / 1000, cells: await cellsOf(told.map) };
  }
}

/** What `cache_map` packs: owner, state, age and loss of each cell. */
async function cellsOf({ num_cells: number, packed }) {
  const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
  const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const planes = new Uint8Array(await new Response(inflated).arrayBuffer());
  return { number, low: planes.subarray(0, number), high: planes.subarray(number) };
}

export const BLANK = 0;
export const CACHED = 1;
export const HELD = 2;
export const SHARED = 3;

/** One cell, taken apart. */
export function cellAt({ low, high }, place) {
  const bits = high[place];
  return { owner: low[place], state: bits & 3, age: (bits >> 2) & 15, lost: bits >> 6 };
}
