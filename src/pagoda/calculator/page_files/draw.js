// Elements, the bar of a device's memory, and tables.

import { GIB, fixed, gib, grouped, range, whole } from "./numbers.js";

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

/** An element with attributes and children; texts are texts. */
export function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function makeSvg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("--")) element.style.setProperty(name, value);
    else if (value !== null && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

const WIDEST = 2.2;
const LABELLED_PX = 78;

/** The bar: what is there of each device's memory, what is wanted of it, and where it ends. */
export function drawBar(plan) {
  const laid = layOut(plan);
  const total = Math.min(laid.end, laid.device * WIDEST);
  const share = (bytes) => `${(Math.max(0, Math.min(bytes, total)) / total) * 100}%`;
  const segments = laid.segments.map(({ kind, from, size, label }) => {
    const shown = Math.min(from + size, total) - from;
    const visible = Math.min(from + size, total, Math.max(laid.limit, from)) - from;
    const text = (visible / total) * $("bar").clientWidth > LABELLED_PX ? [make("b", {}, label), make("span", {}, gib(size))] : [];
    return shown > 0 ? make("i", { class: kind, "--from": share(from), "--size": share(shown) }, ...text) : null;
  });
  const over = laid.reached - laid.limit;
  const beyond =
    over > 0
      ? make("i", { class: "beyond", "--from": share(laid.limit), "--size": share(Math.min(laid.reached, total) - laid.limit) })
      : null;
  $("bar").classList.toggle("cut", laid.end > total);
  $("bar").replaceChildren(...[...segments, beyond].filter((part) => part !== null));
  $("bar").setAttribute("aria-label", laid.words);
  drawScale(laid, share, over);
}

const CACHE = "KV cache";
const LEFT = "left by utilization";
const bytesAtLeast = ({ memory }, part) => memory.find(({ name }) => name === part)?.low ?? 0;

/** Bytes of the segments from left to right, the limit, and how far it all reaches. */
function layOut(plan) {
  const sum = (parts, end) => parts.reduce((bytes, part) => bytes + part[end], 0);
  const beside = plan.memory.filter(({ name }) => ![CACHE, LEFT].includes(name));
  const [weights, ...others] = beside;
  const kept = bytesAtLeast(plan, LEFT);
  const device = plan.device_bytes;
  const limit = device - kept;
  const low = sum(beside, "low");
  const taken = plan.low && !plan.is_refused ? sum(beside, "high") : low;
  const wanted = low > limit ? 0 : wantedBytes(plan);
  const reached = taken + wanted;
  const free = plan.low ? Math.max(0, bytesAtLeast(plan, CACHE) - wanted) : 0;
  const sizes = [
    ["weights", "weights", weights.low],
    ["beside", "runtime", sum(others, "low")],
    ["unsure", "uncertain", taken - low],
    ["used", reached > limit ? "KV wanted" : "KV in use", wanted],
    ["free", "KV free", free],
  ];
  let from = 0;
  const segments = sizes.map(([kind, label, size]) => {
    const segment = { kind, label, size, from };
    from += size;
    return segment;
  });
  const end = Math.max(device, reached);
  const words = segments.filter(({ size }) => size > 0).map(({ label, size }) => `${label} ${gib(size)} GiB`);
  const told = `${words.join(", ")}; ${gib(limit)} of ${gib(device)} GiB may be used`;
  return { segments, device, limit, reached, end, words: told };
}

/** Of the cache on a device: what is wanted or, where nothing is said, all that surely fit. */
function wantedBytes(plan) {
  if (plan.is_refused) return plan.sequence_bytes;
  if (plan.users_wanted !== null) return plan.wanted_bytes;
  if (!plan.low) return plan.context_bytes;
  const least = bytesAtLeast(plan, CACHE);
  return Math.min(least, plan.low.users * plan.context_bytes) || (plan.low.users ? least : plan.context_bytes);
}

function drawScale({ device, limit, end, reached }, share, over) {
  const marks = [];
  const mark = (at, text, kind) =>
    marks.push(make("span", { class: kind, "--at": share(at) }, text));
  const isFarOver = over > 0.3 * limit;
  const close = over > 0 && !isFarOver ? `, ${gib(over)} too little` : "";
  mark(limit, `${gib(limit)} GiB usable${close}`, close ? "over" : "limit");
  if (isFarOver) {
    mark(device, `${gib(device)} in all`, "device");
    mark(Math.min(reached, end), `${gib(over)} GiB too much`, "over");
  }
  $("scale").replaceChildren(...marks);
}

const PART_KINDS = {
  weights: "weights",
  [CACHE]: "used",
  [LEFT]: "rest",
};

export function drawParts(plan) {
  const inGib = (bytes) => grouped(bytes / GIB, 2);
  const rows = plan.memory.map(({ name, low, high, source }) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, make("i", { class: `key ${PART_KINDS[name] ?? "beside"}` }), name),
      make("td", { class: "number" }, range(low, high, inGib)),
      make("td", { class: "quiet" }, source),
    ),
  );
  const all = make(
    "tr",
    { class: "all" },
    make("th", { scope: "row" }, make("i", { class: "key" }), "all"),
    make("td", { class: "number" }, inGib(plan.device_bytes)),
    make("td", { class: "quiet" }, plan.gpu ?? "as given"),
  );
  $("parts").replaceChildren(...rows, all);
}

/** Each change in a row; `apply` takes it up. */
export function drawChanges(found, apply) {
  $("changes").replaceChildren(...found.map((other) => changeRow(other, apply)));
}

function changeRow(other, apply) {
  const name = make("th", { scope: "row" }, other.name, make("code", {}, other.flags));
  const button = make("button", { type: "button", "aria-label": `Apply ${other.name}` }, "Apply");
  button.addEventListener("click", () => apply(other.change));
  const gain = other.gain === null ? "" : `${fixed(other.gain, 2)}×`;
  return make(
    "tr",
    {},
    name,
    make("td", { class: "number" }, range(other.users_low, other.users_high, whole)),
    make("td", { class: "number" }, range(other.tokens_low, other.tokens_high, whole)),
    make("td", { class: other.gain > 1 ? "number more" : "number" }, gain),
    make("td", {}, other.change ? button : ""),
  );
}

export function drawTiles(tiles) {
  const shown = tiles.map(([name, value, hint]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value, make("small", {}, hint))),
  );
  $("tiles").replaceChildren(...shown);
}
