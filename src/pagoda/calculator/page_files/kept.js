// The strips: which tokens of a sequence each kind of layers keeps.

import { $, make } from "./draw.js";
import { FULL, LATENT, SLIDING } from "./layers.js";
import { whole } from "./numbers.js";

const OF_TOKENS = [FULL, LATENT, SLIDING];

/** A strip for all layers that keep the same; whether there is one that lets go of anything. */
export function drawKept({ groups, context }) {
  const alike = new Map();
  for (const { kind, window, sinks, num_layers: count } of groups) {
    if (!OF_TOKENS.includes(kind)) continue;
    const key = `${window} ${sinks}`;
    alike.set(key, { window, sinks, count: count + (alike.get(key)?.count ?? 0) });
  }
  const kinds = [...alike.values()];
  if (kinds.every(({ window }) => window === null)) return false;
  $("kept-of").textContent = `Of a sequence of ${whole(context)} tokens. What is hatched has been let go: it takes no memory, and no token sees it any more.`;
  $("strips").replaceChildren(...kinds.map((kept) => strip(kept, context)));
  return true;
}

function strip({ window, sinks, count }, context) {
  const layers = `${whole(count)} ${count === 1 ? "layer" : "layers"}`;
  const first = window === null ? 0 : Math.min(sinks, context);
  const last = window === null ? context : Math.min(window, context - first);
  const words = wordsOf(window, sinks, first + last, context);
  const share = (tokens) => `${(tokens / context) * 100}%`;
  const parts = [
    first ? make("i", { class: "used first", "--size": share(first) }) : null,
    make("i", { class: "used", "--size": share(last) }),
  ];
  const drawn = make("div", { class: "strip", role: "img", "aria-label": `${layers}: ${words}` }, ...parts);
  return make("li", {}, make("span", {}, layers), drawn, make("small", {}, words));
}

function wordsOf(window, sinks, kept, context) {
  if (window === null) return "every token";
  const first = sinks ? `the first ${whole(sinks)} and ` : "";
  return `${first}the last ${whole(window)}${kept < context ? "" : ", so far all of them"}`;
}
