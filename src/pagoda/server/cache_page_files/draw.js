// Elements and numbers.

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

/** Change a text only where it differs, so that a selection stays. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const format = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
export const whole = (value) => format.format(value);
export const counted = (value, one, many = `${one}s`) => `${whole(value)} ${value === 1 ? one : many}`;
export const share = (part, all) => `${all ? (part / all) * 100 : 0}%`;

/** Per cent with one decimal below ten. */
export function percent(part, all) {
  const value = all ? (part / all) * 100 : 0;
  return `${value > 0 && value < 9.95 ? value.toFixed(1) : Math.round(value)}%`;
}

/** Segments of a bar from left to right; a part that is nothing takes no place. */
export function segments(parts, all) {
  let from = 0;
  return parts
    .filter(({ size }) => size > 0)
    .map(({ size, colour, kind = "", label = [] }) => {
      const segment = make("i", { class: kind, "--from": share(from, all), "--size": share(size, all), "--colour": colour }, ...label);
      from += size;
      return segment;
    });
}
