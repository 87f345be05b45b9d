// A colour for each tenant, paler the longer a cached block has been idle.

/** So many have a colour of their own; all others share one. */
export const NUM_TENANTS = 8;
const OLDEST = 15;

/** Colours as numbers, from the page's own variables, which follow light and dark. */
export class Colours {
  constructor() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => parse(style.getPropertyValue(`--${name}`).trim());
    [this.paper, this.shade, this.line] = ["paper", "shade", "line"].map(read);
    [this.accent, this.beside, this.warning, this.ink] = ["accent", "beside", "warning", "ink"].map(read);
    this.others = read("edge");
    this.tenants = Array.from({ length: NUM_TENANTS }, (_, index) => read(`tenant-${index + 1}`));
  }

  /** Of the tenant with this number, from 1 on. */
  tenant(owner) {
    return this.tenants[Math.max(owner, 1) - 1] ?? this.others;
  }

  held(owner) {
    return text(this.tenant(owner));
  }

  cached(owner, age) {
    return text(mix(this.tenant(owner), this.paper, 0.36 + 0.38 * Math.min(1, age / 10)));
  }

  /** From what has just come to what came hours ago. */
  aged(age) {
    const far = age / OLDEST;
    return text(far < 0.45 ? mix(this.accent, this.beside, far / 0.45) : mix(this.beside, this.line, (far - 0.45) / 0.55));
  }

  lost(level) {
    return text(this.warning, [0, 0.35, 0.7, 1][level]);
  }

  get blank() {
    return text(this.shade);
  }

  get hole() {
    return text(this.paper);
  }

  get mark() {
    return text(this.ink);
  }
}

function parse(colour) {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

function mix(one, other, part) {
  return one.map((value, index) => Math.round(value + (other[index] - value) * part));
}

function text([red, green, blue], alpha = 1) {
  return `rgb(${red} ${green} ${blue} / ${alpha})`;
}
