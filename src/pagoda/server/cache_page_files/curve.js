// What other sizes of the pool would have found, where the server can say so.

import { $, makeSvg, say, whole } from "./draw.js";

const HEIGHT = 240;
const MARGIN = { left: 44, right: 24, top: 16, bottom: 40 };

/** Ask for the curve and draw it; where there is none, nothing is shown. */
export async function drawCurve() {
  const response = await fetch("cache/curve", { cache: "no-store" });
  if (!response.ok) return;
  const curve = await response.json();
  const rows = curve.rows.filter(({ hit_rate: rate }) => rate !== null);
  $("curve").hidden = rows.length < 2;
  if (rows.length < 2) return;
  const policies = [...new Set(rows.map(({ policy }) => policy))];
  const place = $("chart");
  const width = Math.max(280, place.clientWidth);
  const [left, right, top, bottom] = [MARGIN.left, width - MARGIN.right, MARGIN.top, HEIGHT - MARGIN.bottom];
  const multiples = rows.map(({ multiple }) => Math.log2(multiple));
  const [least, most] = [Math.min(...multiples), Math.max(...multiples)];
  const x = (multiple) => left + ((Math.log2(multiple) - least) / Math.max(1, most - least)) * (right - left);
  const highest = Math.max(0.1, Math.ceil(Math.max(...rows.map(({ hit_rate: rate }) => rate)) * 10) / 10);
  const y = (rate) => bottom - (rate / highest) * (bottom - top);
  const parts = [0, highest / 2, highest].flatMap((rate) => [
    makeSvg("line", { class: "grid", x1: left, x2: right, y1: y(rate), y2: y(rate) }),
    makeSvg("text", { x: left - 8, y: y(rate) + 4, "text-anchor": "end" }, `${Math.round(rate * 100)}%`),
  ]);
  for (const multiple of [...new Set(rows.map((row) => row.multiple))]) {
    parts.push(makeSvg("text", { x: x(multiple), y: bottom + 18, "text-anchor": "middle" }, `${multiple}×`));
  }
  for (const policy of policies) {
    const own = rows.filter((row) => row.policy === policy).sort((one, other) => one.multiple - other.multiple);
    const points = own.map(({ multiple, hit_rate: rate }) => `${x(multiple)},${y(rate)}`);
    parts.push(makeSvg("polyline", { class: policy === curve.policy ? "line" : "other", points: points.join(" ") }));
    const last = own.at(-1);
    const beside = policy === curve.policy ? 18 : -8; // two that end alike stay apart
    parts.push(makeSvg("text", { x: right, y: y(last.hit_rate) + beside, "text-anchor": "end" }, policy));
  }
  const here = rows.find(({ multiple, policy }) => multiple === 1 && policy === curve.policy);
  if (here) parts.push(makeSvg("circle", { class: "here", cx: x(1), cy: y(here.hit_rate), r: 6 }));
  say($("curve-words"), `What pools of other sizes would have found of the same lookups. This one has ${whole(curve.num_blocks)} blocks and ${curve.policy}.`);
  const words = rows.map(({ multiple, policy, hit_rate: rate }) => `${multiple} times, ${policy}: ${Math.round(rate * 100)}%`);
  place.replaceChildren(makeSvg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": words.join("; ") }, ...parts));
}
