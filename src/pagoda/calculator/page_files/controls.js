// The controls: what can be chosen, and what is.

import { FORMATS, SCHEMES, requestOf } from "./choice.js";
import { $, make } from "./draw.js";
import { fixed, rough, short, whole } from "./numbers.js";
import { KEEPS_ALL, fitting, keepsAll, nameOf, parseRetention } from "./retention.js";
import { allowedFormats, allowedRanks, dtypeOf, longestWith, visited } from "./subject.js";

export const MOST_RANKS = 64;
const MOST_USERS = 4096;
const SHORTEST = 256;
const LONGEST = 2 ** 20;
const STEPS = [1, 1.25, 1.5, 1.75];

/** Powers of two and quarters between them, up to and with `most`. */
function ladder(least, most) {
  const steps = [];
  for (let base = least; base < most; base *= 2) {
    steps.push(...STEPS.map((step) => base * step).filter((step) => Number.isInteger(step) && step < most));
  }
  return [...steps, most];
}

/** Steps of the slider of sequences. */
export const USERS = ladder(1, MOST_USERS);

/** Steps of the slider of contexts, for a model and an engine. */
export function contextSteps(tables, choice) {
  return ladder(SHORTEST, longestOf(tables, choice));
}

/** Positions that the engine lets a request of the model have. */
export function longestOf(tables, { model, engine, kv_retention: name }) {
  const { longest, extended, pagoda } = tables.models[model];
  const rules = tables.engines[engine];
  if (rules.pagoda) return longestWith(tables, retentionOf(tables, name), pagoda.longest ?? LONGEST);
  return (rules.extends_yarn ? extended : longest) ?? LONGEST;
}

/** Window and sinks of a name; every token where it is none. */
const retentionOf = ({ pagoda }, name) => parseRetention(name ?? "full", pagoda) ?? KEEPS_ALL;

/** What stays, with a change of it, as the engine that is chosen can do it: by its name. */
export function retentionWith(tables, choice, change = {}) {
  if (!tables.engines[choice.engine].pagoda) return "full";
  const kept = { ...retentionOf(tables, choice.kv_retention), ...change };
  const { longest } = tables.models[choice.model].pagoda;
  return nameOf(fitting(kept, tables.pagoda.block_size, longest ?? LONGEST));
}

/** What stays by the first choice of a way to keep. */
export function usualRetention({ pagoda: { sinks, window } }, way) {
  return { full: KEEPS_ALL, window: { sinks: 0, window: sinks + window }, streaming: { sinks, window } }[way];
}

function showRetention(tables, choice) {
  const kept = retentionOf(tables, choice.kv_retention);
  $("retention-field").hidden = !tables.engines[choice.engine].pagoda;
  $("retention").value = keepsAll(kept) ? "full" : kept.sinks ? "streaming" : "window";
  $("last-field").hidden = keepsAll(kept);
  $("first-field").hidden = !kept.sinks;
  $("last").value = kept.window;
  $("last").min = tables.pagoda.block_size;
  $("first").value = kept.sinks;
}

/** All controls as the choice has them; `fitting`: sequences that fit where none are asked for. */
export function showControls(tables, choice, fitting) {
  const model = tables.models[choice.model];
  const rules = tables.engines[choice.engine];
  const isPagoda = rules.pagoda;
  const { kind } = isPagoda ? tables.devices[choice.gpu].pagoda : {};
  const dtype = dtypeOf(tables, choice, kind) ?? model.dtype;
  $("model-hint").textContent = modelHint(tables, choice);
  $("gpu").value = choice.gpu;
  showRanks(isPagoda ? [1] : allowedRanks(model, MOST_RANKS), choice);
  slide("context", contextSteps(tables, choice), choice.context);
  slide("users", USERS, choice.users ?? fitting ?? 1);
  $("context-exact").value = choice.context;
  $("context-exact").max = longestOf(tables, choice);
  $("users-exact").value = choice.users ?? "";
  const names = new Set([...Object.keys(FORMATS), choice.kv_cache_dtype]);
  const formats = allowedFormats(tables, requestOf(choice), [...names]);
  options($("kv"), formats, (name) => (name === "auto" ? `${dtype}, ${FORMATS.auto}` : (FORMATS[name] ?? name)), choice.kv_cache_dtype);
  showRetention(tables, choice);
  options($("weights"), allowedSchemes(tables, choice), (name) => schemeName(tables, choice, name, dtype), choice.quantization ?? "");
  $("shared").value = choice.shared_prefix;
  $("length").value = choice.max_model_len ?? "";
  $("price").value = choice.price ?? "";
  const share = choice.gpu_memory_utilization ?? rules.utilization;
  $("utilization").value = share;
  $("utilization-now").textContent = choice.gpu_memory_utilization === null && kind === "CPU" ? "half, up to 4 GiB" : `${fixed(share * 100, 0)}%`;
  $("engine").value = choice.engine;
}

function showRanks(sizes, choice) {
  $("ranks").max = sizes.length - 1;
  $("ranks").disabled = sizes.length === 1;
  $("ranks").value = sizes.indexOf(choice.tensor_parallel_size);
  $("ranks").setAttribute("aria-valuetext", `${choice.tensor_parallel_size} devices`);
  $("ranks-now").textContent = `${choice.tensor_parallel_size} × ${choice.gpu}`;
}

/** A slider over a ladder; between two steps it stands at the lower one. */
function slide(id, steps, value) {
  const below = steps.findLastIndex((step) => step <= value);
  $(id).max = steps.length - 1;
  $(id).value = Math.max(0, below);
  $(id).setAttribute("aria-valuetext", whole(value));
}

export function options(select, values, nameOf, chosen) {
  select.replaceChildren(...values.map((value) => make("option", { value }, nameOf(value))));
  select.value = chosen;
}

/** What weights stay as where nothing is said; null: plain numbers. */
function ownScheme(tables, { model: name, engine, gpu }) {
  const model = tables.models[name];
  if (!tables.engines[engine].pagoda) return model.weights[""][4];
  return tables.devices[gpu].pagoda.kind === "CPU" ? (model.pagoda.weights?.[""][4] ?? null) : null;
}

/** The checkpoint's own form once, whatever it is called, and those that the engine makes of it. */
export function allowedSchemes(tables, choice) {
  const own = ownScheme(tables, choice);
  const isPagoda = tables.engines[choice.engine].pagoda;
  const isMade = !isPagoda || tables.devices[choice.gpu].pagoda.kind === "CPU";
  return Object.keys(SCHEMES).filter((name) => {
    if (name === "") return true;
    if (name === "none") return own !== null;
    return own !== name && isMade && tables.pagoda.quantizations.includes(name) === isPagoda;
  });
}

function schemeName(tables, choice, name, dtype) {
  const own = ownScheme(tables, choice);
  const isPlain = name === "none" || (name === "" && own === null && tables.engines[choice.engine].pagoda);
  if (isPlain) return `${dtype}, ${SCHEMES.none}`;
  return name === "" ? `${own ?? dtype}, ${SCHEMES[""]}` : SCHEMES[name];
}

function modelHint(tables, { model: name, engine }) {
  const { numbers, longest } = tables.models[name];
  const active = visited(numbers) < numbers[3] * 0.8 ? `, ${billions(visited(numbers))} active` : "";
  const length = longestOf(tables, { model: name, engine });
  return `${billions(numbers[3])} parameters${active}${longest === null ? "" : `, ${short(length)} tokens`}`;
}

export const billions = (count) => `${rough3(count / 1e9)} B`;
const rough3 = (value) => (value >= 1000 ? whole(value) : Number(value.toPrecision(3)));

function deviceName({ devices }, name) {
  const { vendor, bytes } = devices[name];
  return vendor ? `${name} · ${rough(bytes / 2 ** 30)} GiB` : name;
}

export function fillDevices(tables) {
  const vendors = { nvidia: "NVIDIA", amd: "AMD", intel: "Intel", google: "Google", aws: "AWS", apple: "Apple", cpu: "CPU", "": "As given" };
  const names = Object.keys(tables.devices);
  const groups = [...new Set(names.map((name) => tables.devices[name].vendor))].map((vendor) => {
    const own = names.filter((name) => tables.devices[name].vendor === vendor);
    const items = own.map((value) => make("option", { value }, deviceName(tables, value)));
    return make("optgroup", { label: vendors[vendor] ?? vendor }, ...items);
  });
  $("gpu").replaceChildren(...groups);
}
