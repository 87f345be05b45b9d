// The chart: sequences that fit over the context, and where the choice stands.

import { makeSvg } from "./draw.js";
import { rough, short, whole } from "./numbers.js";

const HEIGHT = 300;
const MARGIN = { left: 52, right: 18, top: 30, bottom: 44 };
const SHORTEST = 256;
const NUM_POINTS = 97;
const LOWEST = 0.7;
/** Below one sequence: where the line ends that fell off the cliff. */

/** Contexts from short to the longest, evenly apart in octaves. */
export function contextsUpTo(longest) {
  const shortest = Math.min(SHORTEST, longest);
  const octaves = Math.log2(longest / shortest);
  const at = (index) => Math.round(shortest * 2 ** ((octaves * index) / (NUM_POINTS - 1)));
  return [...new Set(Array.from({ length: NUM_POINTS }, (_, index) => at(index)))];
}

/** The chart in `place`. `curve`: users at least and at most by context; `point`: the choice. */
export function drawCliff(place, curve, point, choose) {
  const width = Math.max(300, place.clientWidth);
  const scales = scalesOf(curve, point, width);
  const svg = makeSvg("svg", {
    viewBox: `0 0 ${width} ${HEIGHT}`,
    width,
    height: HEIGHT,
    role: "img",
    "aria-label": inWords(curve, point),
  });
  svg.append(...axes(scales), ...areas(scales, curve, point), ...here(scales, curve, point));
  const go = (event) => {
    const frame = svg.getBoundingClientRect();
    choose(...scales.at(event.clientX - frame.left, event.clientY - frame.top));
  };
  svg.addEventListener("click", go);
  svg.addEventListener("pointermove", (event) => {
    // A finger that moves scrolls the page.
    if (event.buttons === 1 && event.pointerType === "mouse") go(event);
  });
  place.replaceChildren(svg);
}

function scalesOf(curve, point, width) {
  const [shortest, longest] = [curve[0].context, Math.max(curve.at(-1).context, curve[0].context + 1)];
  const most = Math.max(8, ...curve.map(({ high }) => high), point.users * 1.4);
  const [right, bottom] = [width - MARGIN.right, HEIGHT - MARGIN.bottom];
  const [wide, tall] = [right - MARGIN.left, bottom - MARGIN.top];
  const octaves = Math.log(longest / shortest);
  const decades = Math.log(most / LOWEST);
  return {
    shortest,
    longest,
    most,
    right,
    bottom,
    x: (context) => MARGIN.left + (Math.log(context / shortest) / octaves) * wide,
    y: (users) => bottom - (Math.log(Math.max(users, LOWEST) / LOWEST) / decades) * tall,
    at: (x, y) => [
      Math.round(shortest * Math.exp(((x - MARGIN.left) / wide) * octaves)),
      Math.round(LOWEST * Math.exp(((bottom - y) / tall) * decades)),
    ],
  };
}

function axes({ x, y, right, bottom, shortest, longest, most }) {
  const parts = [];
  const line = (x1, y1, x2, y2) => parts.push(makeSvg("line", { class: "grid", x1, y1, x2, y2 }));
  const text = (content, attributes) => parts.push(makeSvg("text", attributes, content));
  const every = right < 560 ? 2 : 1;
  const tick = (context) => {
    line(x(context), MARGIN.top, x(context), bottom);
    text(short(context), { x: x(context), y: bottom + 18, "text-anchor": "middle" });
  };
  for (let exponent = Math.ceil(Math.log2(shortest)); 2 ** exponent < longest; exponent += every) {
    if (x(longest) - x(2 ** exponent) > 44) tick(2 ** exponent);
  }
  tick(longest);
  for (let users = 1; users <= most; users *= 10) {
    line(MARGIN.left, y(users), right, y(users));
    text(rough(users), { x: MARGIN.left - 8, y: y(users) + 4, "text-anchor": "end" });
  }
  text("tokens of a sequence", { class: "axis", x: right, y: HEIGHT - 6, "text-anchor": "end" });
  text("sequences at once", { class: "axis", x: 0, y: 14 });
  return parts;
}

/** Steps, for a sequence fits whole or not at all. */
function areas({ x, y, right, bottom }, curve, point) {
  const path = (end) => {
    const points = curve.map((step) => [x(step.context).toFixed(1), y(step[end]).toFixed(1)]);
    return points.map(([px, py], index) => (index ? `H${px}V${py}` : `M${px},${py}`)).join("");
  };
  const down = `V${bottom}H${x(curve[0].context)}Z`;
  const isCorner = x(point.context) > right - 170 && y(point.users) < MARGIN.top + 60;
  const isFull = y(curve.at(-1).high) < MARGIN.top + 24;
  const third = curve[Math.floor(curve.length / 3)];
  const label = (content, attributes) => makeSvg("text", { class: "region", ...attributes }, content);
  return [
    makeSvg("path", { class: "may", d: path("high") + down }),
    makeSvg("path", { class: "fits", d: path("low") + down }),
    makeSvg("path", { class: "edge", d: path("high") }),
    y(third.low) < bottom - 60 ? label("fits", { x: MARGIN.left + 14, y: bottom - 14 }) : "",
    isCorner || isFull ? "" : label("does not fit", { x: right - 8, y: MARGIN.top + 16, "text-anchor": "end" }),
  ];
}

function here({ x, y, right, bottom, longest }, curve, { context, users, state }) {
  const [px, py] = [x(Math.min(context, longest)), y(users)];
  const isInside = users <= (curve.find((step) => step.context >= context) ?? curve.at(-1)).low;
  const isRight = isInside || px > right - 150;
  const label = `${whole(users)} × ${short(context)}`;
  return [
    makeSvg("path", { class: "cross", d: `M${MARGIN.left},${py}H${px}V${bottom}` }),
    makeSvg("circle", { class: `here ${state}`, cx: px, cy: py, r: 7 }),
    makeSvg(
      "text",
      {
        class: "here-label",
        x: isRight ? px - 13 : px + 13,
        y: isInside ? Math.min(bottom - 6, py + 20) : Math.max(MARGIN.top + 32, py - 10),
        "text-anchor": isRight ? "end" : "start",
      },
      label,
    ),
  ];
}

function inWords(curve, { context, users }) {
  const some = curve.filter((_, index) => index % 16 === 0);
  const told = some.map(({ context: at, low, high }) =>
    `${whole(at)} tokens: ${low === high ? whole(low) : `${whole(low)} to ${whole(high)}`}`,
  );
  return `Sequences that fit by context. ${told.join("; ")}. Chosen: ${whole(users)} of ${whole(context)} tokens.`;
}
