// The verdict, the bar of the pool, and the tables below the map.

import { $, counted, make, percent, say, segments, share, whole } from "./draw.js";
import { named } from "./block.js";

const LABELLED_PX = 76;
const CAUSES = [
  ["evicted", "evicted before they came again", "--warning"],
  ["diverged", "differ from what is cached", "--beside"],
  ["not_shared", "cached for another tenant, salt or retention", "--weights"],
  ["never_seen", "never seen before", "--computed"],
  ["remainder", "less than a block", "--edge"],
  ["prompt_logprobs", "log-probabilities were asked for", "--edge"],
  ["caching_off", "caching is off", "--edge"],
];

const nameOf = (name) => name || "everybody";

export function drawVerdict(news) {
  const held = news.held + news.shared;
  const all = whole(news.num_blocks);
  say(
    $("verdict"),
    news.is_operator
      ? `${whole(held)} of ${all} blocks are held, ${whole(news.cached)} more can be found again`
      : `You have ${whole(held + news.cached)} of ${all} blocks: ${whole(held)} held, ${whole(news.cached)} that can be found again`,
  );
  const missed = Object.values(news.missed).reduce((sum, number) => sum + number, 0);
  const blank = news.num_blocks - held - news.cached;
  const parts = [`${percent(news.found, news.found + missed)} of ${counted(news.found + missed, "prompt token")} came from the cache`];
  if (news.shared) parts.push(`${counted(news.shared, "block")} ${news.shared === 1 ? "is" : "are"} shared right now`);
  if (news.is_operator) parts.push(`${blank ? whole(blank) : "none"} ${blank > 1 ? "are" : "is"} blank`);
  parts.push(`a block holds ${counted(news.block_size, "token")}`);
  say($("because"), `${parts.join("; ")}.`);
}

export function drawBar(news, colours) {
  const bar = $("bar");
  const label = (name, size, state) => ((size / news.num_blocks) * bar.clientWidth > LABELLED_PX ? [make("b", {}, nameOf(name)), make("span", {}, `${whole(size)} ${state}`)] : []);
  const parts = news.tenants.flatMap(({ name, held, cached }, index) => [
    { size: held, colour: colours.held(index + 1), label: label(name, held, "held") },
    { size: cached, colour: colours.cached(index + 1, 3), kind: "cached", label: label(name, cached, "cached") },
  ]);
  bar.replaceChildren(...segments(parts, news.num_blocks));
  const words = news.tenants.map(({ name, held, cached }) => `${nameOf(name)}: ${whole(held)} held, ${whole(cached)} cached`);
  bar.setAttribute("aria-label", `Of ${whole(news.num_blocks)} blocks: ${words.join("; ") || "all blank"}`);
}

export function drawLookups(news) {
  const missed = CAUSES.filter(([cause]) => news.missed[cause]).map(([cause, words, colour]) => ({ size: news.missed[cause], words, colour: `var(${colour})` }));
  const parts = [{ size: news.found, words: "from the cache", colour: "var(--accent)" }, ...missed];
  const all = parts.reduce((sum, { size }) => sum + size, 0);
  say($("found"), all ? `${whole(news.found)} of ${whole(all)} tokens since the start` : "No prompt has come yet.");
  $("tokens").replaceChildren(...segments(parts, all));
  $("tokens").setAttribute("aria-label", parts.map(({ size, words }) => `${whole(size)} ${words}`).join("; "));
  $("causes").replaceChildren(
    ...parts.map(({ size, words, colour }) =>
      make("div", {}, make("dt", {}, make("i", { class: "key", "--colour": colour }), words), make("dd", {}, whole(size)), make("dd", { class: "share" }, percent(size, all))),
    ),
  );
}

export function drawTenants(news, colours) {
  say($("tenants-title"), news.is_operator ? "Tenants" : "You");
  $("shares").replaceChildren(
    ...news.tenants.map((tenant, index) =>
      make(
        "tr",
        {},
        make("th", { scope: "row" }, make("i", { class: "key", "--colour": colours.held(index + 1) }), nameOf(tenant.name)),
        ...[tenant.held, tenant.cached, tenant.evicted_for_own, tenant.evicted_for_others].map((number) => make("td", { class: "number" }, whole(number))),
      ),
    ),
  );
}

/** Without what the ids of all answers begin with. */
const shortened = (name) => name.replace(/^(chatcmpl-|cmpl-|resp_|msg_)/, "");

/** Rows stay where they are while their sequence runs, so that the focus does too. */
export class Sequences {
  constructor(onMark) {
    this.rows = {};
    this.pinned = null;
    this.onMark = onMark;
  }

  draw(news, colours) {
    const { num_running: running, num_waiting: waiting, sequences } = news;
    const more = running > sequences.length ? `; the first ${sequences.length} are shown` : "";
    say($("queue"), `${counted(running, "sequence")} ${running === 1 ? "runs" : "run"}, ${whole(waiting)} ${waiting === 1 ? "waits" : "wait"}${more}.`);
    const rows = Object.fromEntries(sequences.map((sequence) => [named(sequence.id, sequence.index), sequence]));
    for (const name of Object.keys(this.rows)) if (!(name in rows)) this.#remove(name);
    const longest = Math.max(...sequences.map(({ tokens }) => tokens));
    for (const [name, sequence] of Object.entries(rows)) {
      this.rows[name] ??= this.#add(name);
      this.rows[name].cells = sequence.cells;
      fill(this.rows[name].row, sequence, longest, colours);
    }
  }

  /** Runs of cells of the row that is pressed or pointed at. */
  get marked() {
    return this.rows[this.pointed]?.cells ?? this.rows[this.pinned]?.cells ?? [];
  }

  #add(name) {
    const button = make("button", { type: "button", "aria-pressed": "false", title: `${name}: show its blocks` }, make("i", { class: "key" }), shortened(name));
    const cells = [make("td", {}, make("div", { class: "strip", role: "img" })), ...["", "", ""].map(() => make("td", { class: "number" }))];
    const row = make("tr", {}, make("th", { scope: "row" }, button), ...cells);
    const point = (at) => () => {
      this.pointed = at;
      this.onMark();
    };
    row.addEventListener("pointerenter", point(name));
    row.addEventListener("pointerleave", point(null));
    button.addEventListener("click", () => {
      this.pinned = this.pinned === name ? null : name;
      for (const [each, { row: own }] of Object.entries(this.rows)) own.querySelector("button").setAttribute("aria-pressed", String(each === this.pinned));
      this.onMark();
    });
    $("rows").append(row);
    return { row, cells: [] };
  }

  #remove(name) {
    this.rows[name].row.remove();
    delete this.rows[name];
    if (this.pinned === name) this.pinned = null;
    if (this.pointed === name) this.pointed = null;
  }
}

function fill(row, { owner, computed, tokens, prompt, cached, num_blocks: blocks }, longest, colours) {
  const colour = colours.held(owner);
  row.querySelector(".key").style.setProperty("--colour", colour);
  const strip = row.querySelector(".strip");
  strip.style.width = share(tokens, longest);
  const hit = Math.min(cached, computed);
  const parts = [
    { size: hit, colour: "var(--accent)" },
    { size: computed - hit, colour: "var(--computed)" },
  ];
  strip.replaceChildren(...segments(parts, tokens));
  strip.setAttribute("aria-label", `${whole(computed)} of ${whole(tokens)} tokens are computed; the prompt has ${whole(prompt)}`);
  const texts = [`${whole(computed)} of ${whole(tokens)}`, whole(cached), whole(blocks)];
  texts.forEach((text, index) => say(row.cells[index + 2], text));
}
