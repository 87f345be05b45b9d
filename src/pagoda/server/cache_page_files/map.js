// The pool as a map: a square for each block, or for several where there are many.

import { BLANK, CACHED, SHARED, cellAt } from "./feed.js";

const TALLEST = 400;
const WIDEST_CELL = 26;
const NARROWEST_CELL = 4;
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

export class PoolMap {
  /** `onPick` is told the cell that the pointer or the keys are at; null: none. */
  constructor(canvas, onPick) {
    this.canvas = canvas;
    this.onPick = onPick;
    this.picked = null;
    this.marked = [];
    canvas.addEventListener("pointermove", (event) => this.#pick(this.#cellUnder(event)));
    canvas.addEventListener("pointerdown", (event) => this.#pick(this.#cellUnder(event)));
    canvas.addEventListener("pointerleave", () => this.#pick(null));
    canvas.addEventListener("blur", () => this.#pick(null));
    canvas.addEventListener("keydown", (event) => this.#move(event));
  }

  /** `marked`: runs of cells to frame, as a first cell and a number by turns. */
  draw(cells, colours, byAge, marked = this.marked) {
    Object.assign(this, { cells, marked });
    if (this.picked >= cells.number) this.picked = null; // the pool is another, and smaller
    this.#layOut(cells.number);
    const context = this.canvas.getContext("2d");
    const { pitch, columns, gap } = this;
    const side = pitch - gap;
    context.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    for (let place = 0; place < cells.number; place += 1) {
      const { owner, state, age, lost } = cellAt(cells, place);
      const x = (place % columns) * pitch;
      const y = Math.floor(place / columns) * pitch;
      context.fillStyle = state === BLANK ? colours.blank : byAge ? colours.aged(age) : state === CACHED ? colours.cached(owner, age) : colours.held(owner);
      context.fillRect(x, y, side, side);
      if (state === SHARED && side >= 4) {
        const dot = Math.max(2, Math.round(side / 3));
        context.fillStyle = colours.hole;
        context.fillRect(x + (side - dot) / 2, y + (side - dot) / 2, dot, dot);
      }
      if (lost) this.#frame(context, place, colours.lost(lost), Math.max(1.5, side / 6));
    }
    for (let at = 0; at < marked.length; at += 2) {
      for (let place = marked[at]; place < marked[at] + marked[at + 1]; place += 1) this.#frame(context, place, colours.mark, 1.5);
    }
    if (this.picked !== null) this.#frame(context, this.picked, colours.mark, 2);
  }

  #layOut(number) {
    const width = this.canvas.clientWidth;
    const pitch = Math.max(NARROWEST_CELL, Math.min(WIDEST_CELL, Math.floor(Math.sqrt((width * TALLEST) / number))));
    const columns = Math.max(1, Math.floor(width / pitch));
    const height = Math.ceil(number / columns) * pitch;
    const scale = devicePixelRatio || 1;
    Object.assign(this, { pitch, columns, width, height, scale, gap: pitch >= 12 ? 2 : 1 });
    const [wide, tall] = [Math.round(width * scale), Math.round(height * scale)];
    if (this.canvas.width !== wide || this.canvas.height !== tall) {
      Object.assign(this.canvas, { width: wide, height: tall });
      this.canvas.style.height = `${height}px`;
    }
  }

  #frame(context, place, colour, thickness) {
    const side = this.pitch - this.gap - thickness;
    context.strokeStyle = colour;
    context.lineWidth = thickness;
    const x = (place % this.columns) * this.pitch + thickness / 2;
    context.strokeRect(x, Math.floor(place / this.columns) * this.pitch + thickness / 2, side, side);
  }

  #cellUnder({ clientX, clientY }) {
    const frame = this.canvas.getBoundingClientRect();
    const column = Math.floor((clientX - frame.left) / this.pitch);
    const place = Math.floor((clientY - frame.top) / this.pitch) * this.columns + column;
    return column >= 0 && column < this.columns && place >= 0 && place < this.cells?.number ? place : null;
  }

  #move(event) {
    if (!this.cells) return;
    const last = this.cells.number - 1;
    const from = this.picked ?? 0;
    if (event.key in STEPS) {
      const [right, down] = STEPS[event.key];
      this.#pick(this.picked === null ? 0 : Math.max(0, Math.min(last, from + right + down * this.columns)));
    } else if (event.key === "Home") this.#pick(0);
    else if (event.key === "End") this.#pick(last);
    else if (event.key === "Escape") this.#pick(null);
    else return;
    event.preventDefault();
  }

  #pick(place) {
    if (place === this.picked) return;
    this.picked = place;
    this.onPick(place);
  }
}
