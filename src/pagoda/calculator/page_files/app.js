// The page: what is chosen goes to the planner, and what it answers onto the page.

import { linesOf, printedTitle, refusalOf, sentence, tilesOf, verdictOf } from "./answer.js";
import {
  SCHEMES,
  choiceOf,
  commandOf,
  quoted,
  readChoice,
  requestOf,
  unknownIn,
  writeChoice,
} from "./choice.js";
import { contextsUpTo, drawCliff } from "./cliff.js";
import {
  MOST_RANKS,
  USERS,
  allowedSchemes,
  billions,
  contextSteps,
  fillDevices,
  longestOf,
  options,
  retentionWith,
  showControls,
  usualRetention,
} from "./controls.js";
import { $, drawBar, drawChanges, drawParts, drawTiles, make } from "./draw.js";
import { drawKept } from "./kept.js";
import { Refusal } from "./layers.js";
import { short } from "./numbers.js";
import { Picker } from "./picker.js";
import { makePlan, usersAt } from "./plan.js";
import { allowedFormats, allowedRanks } from "./subject.js";
import { alternatives, waysToFit } from "./ways.js";


const tables = JSON.parse($("data").textContent);
const opening = JSON.parse($("opening").textContent);
const state = { choice: null, given: null, unknown: [] };

// Planning

/** The plan of a choice, or why there is none, with what is known all the same. */
function planOf(choice) {
  const request = requestOf(choice);
  try {
    const plan = makePlan(tables, request);
    return { plan, verdict: verdictOf(plan), changes: alternatives(tables, request, plan) };
  } catch (refused) {
    if (!(refused instanceof Refusal)) throw refused;
    const ways = refused.partial ? waysToFit(tables, request) : [];
    return { plan: refused.partial, verdict: refusalOf(refused), ways };
  }
}

function choose(change) {
  state.given = null;
  state.unknown = [];
  state.choice = settled({ ...state.choice, ...change });
  history.replaceState(null, "", writeChoice(state.choice));
  show();
}

/** What the new model or device does not allow goes back to what it does. */
function settled(wanted) {
  const choice = { ...wanted, kv_retention: retentionWith(tables, wanted) };
  const model = tables.models[choice.model];
  const isPagoda = tables.engines[choice.engine].pagoda;
  const sizes = isPagoda ? [1] : allowedRanks(model, MOST_RANKS);
  const ranks = sizes.filter((size) => size <= choice.tensor_parallel_size).at(-1) ?? 1;
  const longest = longestOf(tables, choice);
  const most = Math.min(choice.max_model_len ?? longest, longest);
  const context = Math.max(1, Math.min(choice.context ?? longest, most));
  const fitting = {
    ...choice,
    tensor_parallel_size: ranks,
    context,
    users: choice.users === null ? null : Math.max(1, Math.min(choice.users, Number.MAX_SAFE_INTEGER)),
    max_model_len: choice.max_model_len === null ? null : most,
    shared_prefix: Math.min(choice.shared_prefix ?? 0, context),
    quantization: allowedSchemes(tables, choice).includes(choice.quantization) ? choice.quantization : null,
  };
  const [format] = allowedFormats(tables, requestOf(fitting), [fitting.kv_cache_dtype, "auto"]);
  return { ...fitting, kv_cache_dtype: format };
}

// Showing

function show() {
  const { plan, verdict, changes, ways } = state.given ?? planOf(state.choice);
  document.body.dataset.state = verdict.state;
  $("verdict").textContent = verdict.headline;
  $("because").textContent = verdict.reason;
  models.show(state.choice.model);
  showControls(tables, state.choice, plan?.low?.users);
  const hasMemory = Boolean(plan?.device_bytes);
  for (const id of ["bar", "scale", "legend", "where"]) $(id).hidden = !hasMemory;
  for (const id of ["tiles", "ways", "printed", "sources"]) $(id).hidden = !plan;
  $("keeping").hidden = !plan || !drawKept(plan);
  if (hasMemory) {
    drawBar(plan);
    drawParts(plan);
  }
  if (plan) {
    drawTiles(tilesOf(plan));
    showWays(changes, ways);
    showLines(plan);
    showSources(plan);
  }
  showNotice(plan);
  showCliff(verdict.state);
  $("command").textContent = commandOf(tables, state.choice, typed(state.choice.model)).join(" \\\n    ");
  $("command").parentElement.hidden = state.given !== null;
}

/** A model as whoever made the page named it: by a directory, perhaps. */
const typed = (model) => (model === opening?.choice.model ? opening.typed : model);

function showWays(changes, ways) {
  $("ways").hidden = !(changes?.length || ways?.length);
  $("ways-title").textContent = changes ? "What would it buy?" : "It certainly fits with";
  const rows = changes ?? ways.map(withFigures);
  drawChanges(rows, (change) => choose(asChoice(change)));
}

/** A way to make it fit with what it then holds. */
function withFigures({ change, flags }) {
  const choice = { ...state.choice, ...asChoice(change) };
  const { low, high } = makePlan(tables, requestOf(choice));
  return {
    name: WAY_NAMES[Object.keys(change)[0]](Object.values(change)[0]),
    flags,
    change,
    users_low: low.users,
    users_high: high.users,
    tokens_low: low.num_tokens,
    tokens_high: high.num_tokens,
    gain: null,
  };
}

const WAY_NAMES = {
  tensor_parallel_size: (count) => `${count} devices`,
  quantization: (name) => `${SCHEMES[name]} weights`,
  max_model_len: (length) => `at most ${short(length)} tokens`,
};

/** Where no longest request is named, a change of it is one of the context. */
function asChoice(change) {
  if (!("max_model_len" in change) || state.choice.max_model_len !== null) return change;
  return { context: change.max_model_len };
}

function showLines(plan) {
  const lines = linesOf(plan);
  $("printed").hidden = !lines.length;
  if (!lines.length) return;
  $("printed-title").textContent = printedTitle(plan);
  $("lines").textContent = lines.join("\n");
}

function showSources(plan) {
  const doubts = plan.warnings?.filter((text) => !text.includes("fit") && !text.includes("at once")) ?? [];
  const told = [
    `${plan.model}: ${(plan.parameters / 1e9).toFixed(2)} B numbers; shape read in ${plan.source}.`,
    `Rules of ${plan.engine}. Speeds are the best that bandwidth and arithmetic allow; links between devices are left out.`,
    ...doubts.map((text) => `${text[0].toUpperCase()}${text.slice(1)}.`),
  ];
  $("sources").replaceChildren(...told.map((text) => make("p", {}, text)));
}

function showNotice(plan) {
  $("notice").hidden = state.given === null && !state.unknown.length;
  if (state.unknown.length) $("notice").textContent = sentence(state.unknown.map(notThere).join("; "));
  else if (state.given) {
    const flags = opening.flags.join(" ");
    const device = plan?.device_bytes || !plan ? "" : " and no device";
    $("notice").textContent = `This is the plan with ${flags}${device}, which this page cannot vary: any change here is computed without.`;
  }
}

/** What was named and is not in the tables, and what is shown in its place. */
function notThere([field, name]) {
  if (name === null) return [`no accelerator was named, so this is ${state.choice.gpu}`, ...opening.flags].join(", without ");
  const what = { model: "model", gpu: "accelerator", engine: "engine" }[field];
  const other = field === "model" ? `; pagoda plan ${quoted(name)} --html plan.html makes a page with it` : "";
  return `no ${what} is called ${name} here, so this is ${state.choice[field]}${other}`;
}

function showCliff(kind) {
  const { choice } = state;
  const curve = state.given ? null : curveOf(choice);
  $("cliff").hidden = curve === null || curve.every(({ high }) => high === 0);
  if ($("cliff").hidden) return;
  const users = choice.users ?? Math.max(1, usersAt(tables, requestOf(choice), [choice.context])[0].low);
  drawCliff($("chart"), curve, { context: choice.context, users, state: kind }, (context, many) =>
    choose({ context: rounded(context), users: Math.max(1, many) }),
  );
}

function curveOf(choice) {
  const most = choice.max_model_len ?? longestOf(tables, choice);
  try {
    return usersAt(tables, requestOf(choice), contextsUpTo(most));
  } catch (refused) {
    if (refused instanceof Refusal) return null;
    throw refused;
  }
}

/** Lengths that a hand picked in a chart are meant to be round. */
function rounded(context) {
  const unit = 2 ** Math.max(0, Math.floor(Math.log2(Math.max(context, 1))) - 4);
  return Math.max(1, Math.round(context / unit) * unit);
}

// Controls

function countIn(id) {
  const value = Math.round($(id).valueAsNumber);
  return Number.isFinite(value) && value >= Number($(id).min) ? value : null;
}

function listen() {
  const on = (id, event, change) => $(id).addEventListener(event, () => choose(change($(id))));
  on("gpu", "change", ({ value }) => ({ gpu: value }));
  on("kv", "change", ({ value }) => ({ kv_cache_dtype: value }));
  on("retention", "change", ({ value }) => ({ kv_retention: retentionWith(tables, state.choice, usualRetention(tables, value)) }));
  for (const [id, part] of [["last", "window"], ["first", "sinks"]]) {
    on(id, "change", () => {
      const count = countIn(id);
      return count === null ? {} : { kv_retention: retentionWith(tables, state.choice, { [part]: count }) };
    });
  }
  on("weights", "change", ({ value }) => ({ quantization: value || null }));
  on("engine", "change", ({ value }) => ({ engine: value }));
  on("ranks", "input", ({ valueAsNumber: at }) => ({
    tensor_parallel_size: allowedRanks(tables.models[state.choice.model], MOST_RANKS)[at],
  }));
  on("context", "input", ({ valueAsNumber: at }) => ({ context: contextSteps(tables, state.choice)[at] }));
  on("users", "input", ({ valueAsNumber: at }) => ({ users: USERS[at] }));
  on("context-exact", "change", () => ({ context: countIn("context-exact") ?? state.choice.context }));
  on("users-exact", "change", () => ({ users: countIn("users-exact") }));
  on("shared", "change", () => ({ shared_prefix: countIn("shared") ?? 0 }));
  on("length", "change", () => ({ max_model_len: countIn("length") }));
  on("price", "change", ({ valueAsNumber: price }) => ({ price: price >= 0 ? price : null }));
  on("utilization", "input", ({ value }) => ({ gpu_memory_utilization: Number(value) }));
  $("choice").addEventListener("submit", (event) => event.preventDefault());
  $("share").addEventListener("click", share);
  addEventListener("hashchange", () => {
    state.given = null;
    readAddress();
    show();
  });
  new ResizeObserver(() => showCliff(document.body.dataset.state)).observe($("chart"));
}

function readAddress() {
  state.unknown = unknownIn(tables, location.hash);
  state.choice = settled(readChoice(tables, location.hash));
}

async function share() {
  history.replaceState(null, "", writeChoice(state.choice));
  try {
    await navigator.clipboard.writeText(location.href);
    $("share").textContent = "Copied";
  } catch {
    $("share").textContent = "It is in the address"; // a plain connection has no clipboard
  }
  setTimeout(() => ($("share").textContent = "Copy link"), 1500);
}

/** What a command opened the page with, as it was planned there. */
function openGiven() {
  if (opening === null || location.hash.length > 1) return null;
  const { choice, plan, refusal, flags } = opening;
  state.choice = settled(choiceOf(choice, opening.context));
  if (!plan && choice.gpu === null) state.unknown = [["gpu", null]];
  if (flags.length === 0) return null; // the page's own figures are the same
  if (plan) return { plan, verdict: verdictOf(plan), changes: plan.alternatives };
  const verdict = { state: "short", headline: "It does not fit", reason: sentence(refusal) };
  return refusal ? { plan: null, verdict } : null;
}

fillDevices(tables);
options($("engine"), Object.keys(tables.engines), (name) => tables.engines[name].label, "vllm");
const models = new Picker(
  $("model"),
  $("models"),
  Object.entries(tables.models).map(([value, { numbers }]) => ({ value, hint: billions(numbers[3]) })),
  (model) => choose({ model }),
  (name) => {
    state.unknown = [["model", name]];
    showNotice(null);
  },
);
readAddress();
state.given = openGiven();
listen();
show();
globalThis.planner = { tables, makePlan, alternatives, waysToFit, usersAt, Refusal };
