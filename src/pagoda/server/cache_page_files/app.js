// The page: it looks while it is seen and not paused, and draws what it is told.

import { Colours, NUM_TENANTS } from "./colours.js";
import { drawCurve } from "./curve.js";
import { $, make, say } from "./draw.js";
import { news } from "./feed.js";
import { inWords } from "./block.js";
import { PoolMap } from "./map.js";
import { Sequences, drawBar, drawLookups, drawTenants, drawVerdict } from "./figures.js";
import { Timeline } from "./timeline.js";

const AGAIN_S = 2;
const CURVE_S = 30;
const CALM_S = 1;
const calm = matchMedia("(prefers-reduced-motion: reduce)");

let colours = new Colours();
let last = null;
let drawnAt = 0;
let isPaused = false;
let looking = null;
let hasCurve = false;
let askedCurveAt = -Infinity;

const timeline = new Timeline();
const map = new PoolMap($("map"), (place) => {
  drawMap();
  drawBlock();
  say($("moved"), place === null ? "" : $("block").textContent);
});
const sequences = new Sequences(drawMap);

function drawMap() {
  const byAge = document.querySelector("[name=colour]:checked").value === "age";
  if (last) map.draw(last.cells, colours, byAge, sequences.marked);
}

function draw() {
  drawVerdict(last);
  drawBar(last, colours);
  sequences.draw(last, colours);
  drawMap();
  drawLookups(last);
  drawTenants(last, colours);
  timeline.draw();
  drawLegend();
  drawBlock();
  $("map").setAttribute("aria-label", `${$("verdict").textContent}. Arrow keys go from block to block.`);
}

/** What is seen goes with the cache; only whoever moves to a block has it read aloud. */
function drawBlock() {
  if (last) say($("block"), map.picked === null ? hint() : inWords(last, map.picked));
}

function hint() {
  const size = last.map.blocks_per_cell;
  const what = last.is_operator
    ? `A square is ${size === 1 ? "a block" : `${size} blocks and shows the busiest`}.`
    : "A square is a block of yours, in the order in which they came; of others nothing is told but that the rest is not yours.";
  return `${what} Point at one, or go there with the arrow keys.`;
}

function drawLegend() {
  const byAge = document.querySelector("[name=colour]:checked").value === "age";
  const item = (kind, words, colour) => make("li", {}, make("i", { class: `key ${kind}`, "--colour": colour ?? "" }), words);
  const any = colours.held(1);
  const parts = byAge
    ? [make("li", {}, "just now", make("i", { class: "ramp" }), "hours ago")]
    : [item("", "held by one", any), item("", "cached, fainter the longer nobody has used it", colours.cached(1, 3))];
  parts.push(item("shared", "held by several", any), item("blank", last.is_operator ? "blank" : "not yours"), item("lost", "just evicted"));
  if (!byAge && last.tenants.length > 1) {
    const named = last.tenants.slice(0, NUM_TENANTS);
    parts.push(...named.map(({ name }, index) => item("", name, colours.held(index + 1))));
    if (last.tenants.length > NUM_TENANTS) parts.push(item("", "other tenants", colours.held(NUM_TENANTS + 1)));
  }
  $("legend").replaceChildren(...parts);
}

function show(state, words, notice = "") {
  document.body.dataset.state = state;
  say($("state"), words);
  $("notice").hidden = !notice;
  say($("notice"), notice);
}

/** Look until this is called again or the page is paused or hidden. */
async function look() {
  looking?.abort();
  looking = null;
  if (isPaused || document.hidden) {
    show("paused", isPaused ? "Paused" : "Not looking");
    return;
  }
  const own = new AbortController();
  looking = own;
  show("waiting", "Looking");
  while (looking === own) {
    let wait = AGAIN_S;
    try {
      for await (const told of news(own.signal)) {
        if (looking !== own) return;
        show("live", "Live");
        if ("has_curve" in told) hasCurve = told.has_curve;
        else take(told);
      }
      wait = 0; // the server ends a look after a while, and begins another
    } catch (error) {
      if (looking !== own) return;
      wait = Math.max(AGAIN_S, error.wait ?? 0);
      const reason = error.name === "Refusal" || error.wait !== undefined ? error.message : "The server cannot be reached.";
      show("waiting", "Waiting", `${reason} It is asked again every ${wait} s.`);
    }
    await new Promise((done) => setTimeout(done, wait * 1000));
  }
}

function take(told) {
  if (last && told.is_operator !== last.is_operator) timeline.points = [];
  last = told;
  timeline.add(told);
  if (calm.matches && told.at - drawnAt < CALM_S) return;
  drawnAt = told.at;
  draw();
  if (hasCurve && told.at - askedCurveAt > CURVE_S) {
    askedCurveAt = told.at;
    drawCurve().catch(() => {});
  }
}

$("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  say($("pause"), isPaused ? "Go on" : "Pause");
  look();
});
document.addEventListener("visibilitychange", look);
for (const radio of document.querySelectorAll("[name=colour]")) {
  radio.addEventListener("change", () => {
    if (last) draw();
  });
}
addEventListener("resize", () => last && draw());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  colours = new Colours();
  if (last) draw();
});
look();
