// A model's text as elements: paragraphs and fenced code, put in as text and never as HTML.

/** Its backticks, and what stands behind them: at the opening one what language it is. */
const FENCE = /^ {0,3}(`{3,})([^`]*)$/;

/** Make `parent` show `text`. Elements that already say what they should are left alone. */
export function show(text, parent) {
  const blocks = blocksOf(text);
  blocks.forEach((block, index) => {
    const old = parent.children[index];
    const node = old?.tagName === block.tag ? old : document.createElement(block.tag);
    if (node.textContent !== block.text) node.textContent = block.text;
    if (block.tag === "PRE") node.tabIndex = 0; // wide code is scrolled with the keyboard
    if ((node.dataset.info ?? "") !== block.info) node.dataset.info = block.info;
    if (old && old !== node) old.replaceWith(node);
    else if (!old) parent.append(node);
  });
  while (parent.children.length > blocks.length) parent.lastElementChild.remove();
}

function blocksOf(text) {
  const blocks = [];
  let lines = [];
  let fence = null;
  const close = (next = null) => {
    const info = fence?.info ?? "";
    if (lines.length || info) blocks.push({ tag: fence ? "PRE" : "P", info, text: lines.join("\n") });
    lines = [];
    fence = next;
  };
  for (const line of text.split("\n")) {
    const [, marks = "", behind = ""] = line.match(FENCE) ?? [];
    const info = behind.trim();
    const isEnd = fence && marks.length >= fence.marks.length && !info;
    if (marks && !fence) close({ marks, info });
    else if (isEnd || (!fence && line.trim() === "")) close();
    else lines.push(line);
  }
  close();
  return blocks;
}
