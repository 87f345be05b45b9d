// A model's text as elements: paragraphs and fenced code, put in as text and never as HTML.

const FENCE = /^ {0,3}```/;

/** Make `parent` show `text`. Elements that already say what they should are left alone. */
export function show(text, parent) {
  const blocks = blocksOf(text);
  blocks.forEach((block, index) => {
    const old = parent.children[index];
    const node = old?.tagName === block.tag ? old : document.createElement(block.tag);
    if (node.textContent !== block.text) node.textContent = block.text;
    if (block.tag === "PRE") node.tabIndex = 0; // wide code is scrolled with the keyboard
    if (old && old !== node) old.replaceWith(node);
    else if (!old) parent.append(node);
  });
  while (parent.children.length > blocks.length) parent.lastElementChild.remove();
}

function blocksOf(text) {
  const blocks = [];
  let lines = [];
  let tag = "P";
  const close = () => {
    if (lines.length) blocks.push({ tag, text: lines.join("\n") });
    lines = [];
  };
  for (const line of text.split("\n")) {
    if (FENCE.test(line)) {
      close();
      tag = tag === "P" ? "PRE" : "P";
    } else if (tag === "P" && line.trim() === "") close();
    else lines.push(line);
  }
  close();
  return blocks;
}
