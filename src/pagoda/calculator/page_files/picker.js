// A field that is searched in: a combobox as the ARIA practices describe it.

import { make } from "./draw.js";

/** How far into a name the words stand one behind the other, whatever is between them. */
function far(name, words) {
  const flat = (text) => text.toLowerCase().replace(/[^a-z0-9]/g, "");
  const at = flat(name.slice(name.indexOf("/") + 1)).indexOf(flat(words.join("")));
  return at < 0 ? name.length : at;
}

/**
 * `options`: value and hint of each. `pick` is called with a value, `miss` with a text that is left
 * in the field though no option has it.
 */
export class Picker {
  constructor(input, list, options, pick, miss) {
    Object.assign(this, { input, list, options, pick, miss, value: "", active: -1, shown: [] });
    input.addEventListener("focus", () => input.select());
    for (const press of ["mousedown", "click"]) input.addEventListener(press, (event) => this.begin(event));
    input.addEventListener("input", () => this.open(input.value));
    input.addEventListener("keydown", (event) => this.onKey(event));
    input.addEventListener("blur", () => this.leave());
    list.addEventListener("pointerdown", (event) => this.onPress(event));
  }

  show(value) {
    this.value = value;
    this.input.value = value;
  }

  /** A new search takes the place of the name; whoever is searching stays in what is written. */
  begin(event) {
    if (!this.list.hidden) return;
    event.preventDefault(); // a press would take the selection back
    this.input.focus();
    this.input.select();
    this.open("");
  }

  /** Options that have all the words in them, wherever they stand. */
  open(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const found = this.options.filter(({ value }) =>
      words.every((word) => value.toLowerCase().includes(word)),
    );
    this.shown = found.sort((one, other) => far(one.value, words) - far(other.value, words));
    const items = this.shown.map(({ value, hint }, index) =>
      make(
        "li",
        { role: "option", id: `option-${index}`, "aria-selected": String(value === this.value) },
        make("span", {}, value),
        make("small", {}, hint),
      ),
    );
    const none = make("li", { class: "none" }, "No model in the table has that in its name.");
    this.list.replaceChildren(...(items.length ? items : [none]));
    this.list.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
    const current = this.shown.findIndex(({ value }) => value === this.value);
    this.activate(words.length ? (items.length ? 0 : -1) : current);
  }

  /** Whoever leaves a whole name has chosen it, and is told of one that is not there. */
  leave() {
    const text = this.input.value.trim();
    if (this.list.hidden || text === this.value) return this.close();
    const isMissing = text && this.shown.length === 0;
    this.choose(this.shown.findIndex(({ value }) => value.toLowerCase() === text.toLowerCase()));
    if (isMissing) this.miss(text);
  }

  close() {
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
    this.input.value = this.value;
    if (this.input === document.activeElement) this.input.select();
  }

  activate(index) {
    this.list.querySelector(".active")?.classList.remove("active");
    this.active = index;
    const item = index < 0 ? null : this.list.children[index];
    if (!item) return;
    item.classList.add("active");
    this.list.scrollTop = item.offsetTop - this.list.clientHeight / 2;
    this.input.setAttribute("aria-activedescendant", item.id);
  }

  choose(index) {
    const found = this.shown[index];
    if (found) this.show(found.value);
    this.close();
    if (found) this.pick(found.value);
  }

  onKey(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && this.list.hidden) this.open("");
    else if (step) this.activate(Math.max(0, Math.min(this.shown.length - 1, this.active + step)));
    else if (event.key === "Enter" && !this.list.hidden && !this.shown.length) this.leave();
    else if (event.key === "Enter" && !this.list.hidden) this.choose(this.active);
    else if (event.key === "Escape" && !this.list.hidden) this.close();
    else return;
    event.preventDefault();
  }

  onPress(event) {
    event.preventDefault(); // the focus stays in the field
    const item = event.target.closest("[role=option]");
    if (item) this.choose([...this.list.children].indexOf(item));
  }
}
