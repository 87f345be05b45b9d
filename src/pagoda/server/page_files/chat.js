// The conversation: what was asked, what is answered, and how much of it came from the cache.

import { Refusal, chunks } from "./stream.js";
import { show } from "./text.js";

const PASSAGE = `A pagoda is a tower of tiers. Each tier is a little smaller than the one below it, and \
each has a roof of its own, with eaves that turn upwards at the corners. The oldest were built of wood \
around one tall mast, which carries no weight: in an earthquake the tiers sway against it, each in its \
own time, and the tower stands. Rain runs from roof to roof and never reaches the walls. Pilgrims came \
to walk around the tower; few of them ever climbed it. Many pagodas kept pages: sutras copied by hand \
and laid in a chamber under the mast, where damp and fire would not find them.`;

const EXAMPLES = [
  {
    title: "Why is the sky blue?",
    hint: "Then press Retry: its prompt is in the cache.",
  },
  {
    title: "Sum up a page in one sentence.",
    hint: "A longer prompt, computed for the first time.",
    before: PASSAGE,
  },
  {
    title: "What did pilgrims do there?",
    hint: "The same page in a new chat: found in the cache.",
    before: PASSAGE,
  },
];

const $ = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en");
const state = { model: null, turns: [], running: null, numPrompt: 0, numCached: 0, countdown: 0 };

// Asking

async function ask(question) {
  if (state.running) return;
  hideNotice();
  focusQuestion();
  const turn = addTurn(question);
  const running = new AbortController();
  setRunning(running);
  try {
    await receive(turn, running.signal);
    finish(turn);
  } catch (problem) {
    if (problem.name === "AbortError") finish(turn, "stopped");
    else fail(turn, problem);
  } finally {
    if (state.running === running) setRunning(null);
    if (turn.model !== state.model) showModel().catch(() => {}); // the server has begun anew
  }
}

async function receive(turn, signal) {
  const started = performance.now();
  for await (const chunk of chunks(bodyFor(turn), signal)) {
    const now = performance.now();
    turn.model = chunk.model;
    turn.firstAt ??= now;
    turn.waited ??= (now - started) / 1000;
    turn.usage = chunk.usage ?? turn.usage;
    const [choice] = chunk.choices;
    if (!choice) continue;
    turn.lastAt = now;
    turn.ending = choice.finish_reason ?? turn.ending;
    turn.text += choice.delta.content ?? "";
    turn.thought += choice.delta.reasoning_content ?? "";
    drawSoon(turn);
  }
}

function bodyFor(turn) {
  const messages = [];
  const system = $("system").value.trim();
  if (system) messages.push({ role: "system", content: system });
  for (const { question, text } of state.turns) {
    messages.push({ role: "user", content: question }, { role: "assistant", content: text });
  }
  messages.pop(); // the answer that is asked for
  const body = { messages, temperature: $("temperature").valueAsNumber };
  const limit = $("max-tokens");
  if (limit.max) bound(limit, Number(limit.max));
  if (limit.value) body.max_tokens = limit.valueAsNumber;
  return body;
}

function finish(turn, ending = null) {
  if (!state.turns.includes(turn)) return;
  turn.ending = ending ?? turn.ending;
  draw(turn);
  keepingEnd(() => {
    turn.node.querySelector(".tools").hidden = false;
    turn.node.setAttribute("aria-busy", "false");
    if (turn.usage) count(turn.usage);
    showFigures(turn);
  });
}

/** Without a word of an answer, the question goes back to where it was written. */
function fail(turn, problem) {
  if (!state.turns.includes(turn)) return;
  if (turn.text || turn.thought) finish(turn, "broken off");
  else {
    removeTurn(turn);
    if (!$("question").value) setQuestion(turn.question);
  }
  const told = problem instanceof Refusal ? problem.message : "The server cannot be reached.";
  showNotice(told, problem.wait ?? 0, () => {
    if ($("question").value === turn.question) setQuestion("");
    retry(turn);
  });
}

function retry(turn) {
  if (state.running) return;
  removeTurn(turn);
  ask(turn.question);
}

function newChat() {
  state.running?.abort();
  state.turns.forEach((turn) => turn.node.remove());
  Object.assign(state, { turns: [], numPrompt: 0, numCached: 0 });
  setRunning(null);
  hideNotice();
  showTotal();
  $("start").hidden = false;
  focusQuestion();
}

// Turns

function addTurn(question) {
  const node = $("turn").content.cloneNode(true).firstElementChild;
  const turn = { question, node, text: "", thought: "", usage: null, ending: null };
  node.setAttribute("aria-busy", "true");
  show(question, node.querySelector(".question"));
  node.querySelector(".retry").addEventListener("click", () => retry(turn));
  node.querySelector(".copy").addEventListener("click", () => copy(turn));
  state.turns.push(turn);
  markLast();
  $("turns").append(node);
  $("start").hidden = true;
  $("scroll").scrollTop = $("scroll").scrollHeight;
  return turn;
}

function removeTurn(turn) {
  state.turns = state.turns.filter((other) => other !== turn);
  turn.node.remove();
  markLast();
  $("start").hidden = state.turns.length > 0;
}

/** Only the last answer can be asked for again: the others have been built upon. */
function markLast() {
  state.turns.forEach((turn, index) => {
    turn.node.querySelector(".retry").hidden = index < state.turns.length - 1;
  });
}

/** Once a frame, however many pieces come. */
function drawSoon(turn) {
  turn.frame ??= requestAnimationFrame(() => draw(turn));
}

function draw(turn) {
  cancelAnimationFrame(turn.frame);
  turn.frame = null;
  const thought = turn.node.querySelector(".thought");
  keepingEnd(() => {
    thought.hidden = !turn.thought;
    show(turn.thought, thought.lastElementChild);
    show(turn.text, turn.node.querySelector(".answer"));
  });
}

/** Make a change; whoever sees the end of the conversation goes on seeing it. */
function keepingEnd(change) {
  const view = $("scroll");
  const isAtEnd = view.scrollHeight - view.scrollTop - view.clientHeight < 80;
  change();
  if (isAtEnd) view.scrollTop = view.scrollHeight;
}

async function copy(turn) {
  const button = turn.node.querySelector(".copy");
  if (navigator.clipboard) await navigator.clipboard.writeText(turn.text);
  else {
    getSelection().selectAllChildren(turn.node.querySelector(".answer"));
    document.execCommand("copy"); // a plain connection to another machine has no clipboard
  }
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

// Figures

function count(usage) {
  state.numPrompt += usage.prompt_tokens;
  state.numCached += usage.prompt_tokens_details.cached_tokens;
  showTotal();
}

function showTotal() {
  const share = state.numPrompt ? state.numCached / state.numPrompt : 0;
  $("head").style.setProperty("--share", share);
  $("total").textContent = state.numPrompt
    ? `${percent(share)} of prompt tokens came from the cache`
    : "";
}

function showFigures(turn) {
  const said = [];
  if (turn.usage) {
    const { prompt_tokens: asked, prompt_tokens_details: details } = turn.usage;
    const bar = turn.node.querySelector(".bar");
    bar.style.setProperty("--share", details.cached_tokens / asked);
    bar.hidden = false;
    said.push(`${whole.format(asked)} prompt tokens, ${whole.format(details.cached_tokens)} from cache`);
  }
  if (turn.waited !== undefined) said.push(`first token ${duration(turn.waited)}`);
  const numLater = (turn.usage?.completion_tokens ?? 0) - 1;
  const seconds = (turn.lastAt - turn.firstAt) / 1000;
  if (numLater > 0 && seconds > 0) said.push(`${rate(numLater / seconds)} tokens/s`);
  if (turn.ending === "length") said.push("cut at the limit");
  else if (turn.ending && turn.ending !== "stop") said.push(turn.ending);
  turn.node.querySelector(".figures").textContent = said.join(" · ");
}

function percent(share) {
  return `${Math.floor(share * 100)}%`;
}

function rate(perSecond) {
  return perSecond < 100 ? perSecond.toFixed(1) : whole.format(Math.round(perSecond));
}

function duration(seconds) {
  return seconds < 1 ? `${Math.round(seconds * 1000)}\u00a0ms` : `${seconds.toFixed(1)}\u00a0s`;
}

// What stands around the conversation

function setRunning(running) {
  state.running = running;
  $("send").hidden = running !== null;
  $("stop").hidden = running === null;
}

function showNotice(reason, wait, again) {
  const button = $("again");
  const tick = (left) => {
    button.disabled = left > 0;
    button.textContent = left > 0 ? `Try again in ${left} s` : "Try again";
    if (left > 0) state.countdown = setTimeout(tick, 1000, left - 1);
  };
  $("reason").textContent = reason;
  keepingEnd(() => ($("notice").hidden = false));
  button.onclick = again;
  tick(wait);
}

function hideNotice() {
  clearTimeout(state.countdown);
  $("notice").hidden = true;
}

/** What had the focus may be gone. On a touch screen a keyboard would cover the answer. */
function focusQuestion() {
  if (matchMedia("(pointer: fine)").matches) $("question").focus();
}

function setQuestion(text) {
  $("question").value = text;
  fit();
}

/** As high as what is written, up to what the style allows. */
function fit() {
  const { style } = $("question");
  style.height = "auto";
  style.height = `${$("question").scrollHeight}px`;
}

function submit() {
  const question = $("question").value.trim();
  if (!question || state.running) return;
  setQuestion("");
  ask(question);
}

function showExamples() {
  const items = EXAMPLES.map(({ title, hint, before }) => {
    const item = $("example").content.cloneNode(true);
    item.querySelector("strong").textContent = title;
    item.querySelector("span").textContent = hint;
    const question = before ? `${before}\n\n${title}` : title;
    item.querySelector("button").addEventListener("click", () => ask(question));
    return item;
  });
  $("examples").replaceChildren(...items);
}

async function showModel() {
  const response = await fetch("v1/models");
  if (!response.ok) return;
  const [card] = (await response.json()).data;
  state.model = card.id;
  $("model").textContent = card.id;
  bound($("max-tokens"), card.max_model_len);
  $("model").title = `${card.id}, ${whole.format(card.max_model_len)} tokens of context`;
}

/** A number that a field may have at most; what is more becomes that. */
function bound(field, most) {
  field.max = most;
  if (field.valueAsNumber > most) field.value = most;
}

function showTemperature() {
  $("temperature-now").textContent = $("temperature").valueAsNumber.toFixed(1);
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
$("question").addEventListener("input", fit);
$("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !$("settings").open) state.running?.abort();
});
$("stop").addEventListener("click", () => {
  state.running?.abort();
  focusQuestion();
});
$("new").addEventListener("click", newChat);
$("open").addEventListener("click", () => $("settings").showModal());
$("settings").addEventListener("click", (event) => {
  if (event.target === $("settings")) $("settings").close(); // beside the drawer
});
$("temperature").addEventListener("input", showTemperature);

showExamples();
showTemperature();
showModel().catch(() => showNotice("The server cannot be reached.", 0, () => location.reload()));
