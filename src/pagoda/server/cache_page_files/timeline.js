// Two minutes of the pool: what was held, what was cached, and what was evicted.

import { $, counted, makeSvg, say, whole } from "./draw.js";

const SECONDS = 120;
const HEIGHT = 190;
const MARGIN = { left: 8, right: 8, top: 34, bottom: 24 };
const LONGEST_GAP_S = 5;

export class Timeline {
  constructor() {
    this.points = [];
  }

  add({ at, num_blocks: blocks, held, shared, cached, hinted, tenants }) {
    const own = tenants.reduce((sum, tenant) => sum + tenant.evicted_for_own, 0);
    const others = tenants.reduce((sum, tenant) => sum + tenant.evicted_for_others, 0);
    const before = this.points.at(-1);
    if (before && at - before.at > LONGEST_GAP_S) this.points = [];
    const evicted = this.points.length ? Math.max(0, own + others - before.own - before.others) : 0;
    this.points.push({ at, blocks, held: held + shared, cached, hinted, own, others, evicted });
    while (this.points[0].at < at - SECONDS) this.points.shift();
  }

  draw() {
    const [first, last] = [this.points[0], this.points.at(-1)];
    const forOwn = last.own - first.own;
    const forOthers = last.others - first.others;
    const evicted =
      forOwn + forOthers
        ? `${counted(forOwn + forOthers, "block")} evicted meanwhile: ${whole(forOwn)} for their own tenant, ${whole(forOthers)} for others.`
        : "Nothing was evicted meanwhile.";
    say($("evicted"), last.hinted ? `${evicted} Hints keep ${counted(last.hinted, "block")}.` : evicted);
    const place = $("timeline");
    const width = Math.max(280, place.clientWidth);
    const [left, right, top, bottom] = [MARGIN.left, width - MARGIN.right, MARGIN.top, HEIGHT - MARGIN.bottom];
    const x = (at) => right - ((last.at - at) / SECONDS) * (right - left);
    const y = (blocks) => bottom - (blocks / last.blocks) * (bottom - top);
    const most = Math.max(1, ...this.points.map(({ evicted }) => evicted));
    const area = (kind, low, high) => {
      const there = this.points.map((point) => `${x(point.at).toFixed(1)},${y(high(point)).toFixed(1)}`);
      const back = this.points.map((point) => `${x(point.at).toFixed(1)},${y(low(point)).toFixed(1)}`).reverse();
      return makeSvg("polygon", { class: kind, points: [...there, ...back].join(" ") });
    };
    const text = (content, at, anchor, height = HEIGHT - 7) => makeSvg("text", { x: at, y: height, "text-anchor": anchor }, content);
    const losses = this.points
      .filter(({ evicted }) => evicted)
      .map(({ at, evicted }) => {
        const tall = 4 + (evicted / most) * (MARGIN.top - 16);
        return makeSvg("rect", { class: "loss", x: x(at) - 1, y: top - 4 - tall, width: 2, height: tall });
      });
    const words = `Two minutes: ${whole(last.held)} blocks held and ${whole(last.cached)} cached now, ${whole(forOwn + forOthers)} evicted`;
    place.replaceChildren(
      makeSvg(
        "svg",
        { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": words },
        makeSvg("line", { class: "grid", x1: left, x2: right, y1: top, y2: top }),
        area("held", () => 0, ({ held }) => held),
        area("kept", ({ held }) => held, ({ held, cached }) => held + cached),
        ...losses,
        makeSvg("line", { class: "grid", x1: left, x2: right, y1: bottom, y2: bottom }),
        text("2 min ago", left, "start"),
        text("1 min", (left + right) / 2, "middle"),
        text("now", right, "end"),
        text(`${whole(last.blocks)} blocks`, left, "start", top + 14),
        losses.length ? text("evicted", left, "start", 12) : null,
      ),
    );
  }
}
