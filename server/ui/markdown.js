// Markdown as DOM nodes: paragraphs, headings, lists, quotes, tables, code. Nothing of the text
// becomes markup; HTML in it is shown as it stands.
import {copy_button, element} from "./dom.js";
import {inline_nodes} from "./markdown_inline.js";

const DEPTH_MAX = 6;
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?=\s|$)/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)/;
const BLANK = /^\s*$/;

// Takes blocks off a list of lines, each as {kind, lines, …}.
class Blocks {
  constructor(lines, depth) {
    this.lines = lines;
    this.depth = depth;
    this.at = 0;
    this.found = [];
  }

  run() {
    while (this.at < this.lines.length) {
      if (BLANK.test(this.lines[this.at])) {
        ++this.at;
        continue;
      }
      const start = this.at;
      const block = this.next();
      block.source = this.lines.slice(start, this.at).join("\n");
      this.found.push(block);
    }
    return this.found;
  }

  next() {
    const line = this.lines[this.at];
    if (FENCE.test(line)) return this.fence(FENCE.exec(line));
    if (HEADING.test(line)) return this.heading(HEADING.exec(line));
    if (RULE.test(line)) return this.one_line({kind: "rule"});
    if (this.is_table()) return this.table();
    if (this.depth < DEPTH_MAX) {
      if (QUOTE.test(line)) return this.quote();
      if (ITEM.test(line)) return this.list(ITEM.exec(line));
    }
    return this.paragraph();
  }

  one_line(block) {
    ++this.at;
    return block;
  }

  // Open until its end comes: while an answer streams, the rest is code.
  fence([, mark, info]) {
    const lines = [];
    for (++this.at; this.at < this.lines.length; ++this.at) {
      const line = this.lines[this.at].trim();
      if (line.startsWith(mark) && line.split(mark[0]).join("") === "") {
        ++this.at;
        break;
      }
      lines.push(this.lines[this.at]);
    }
    return {kind: "code", language: info.trim().split(/\s/)[0], text: lines.join("\n")};
  }

  heading([head, marks]) {
    const text = this.lines[this.at].slice(head.length).trim().replace(/(^|\s)#+$/, "");
    return this.one_line({kind: "heading", level: marks.length, text: text.trim()});
  }

  quote() {
    const lines = [];
    while (this.at < this.lines.length && QUOTE.test(this.lines[this.at])) {
      lines.push(this.lines[this.at++].replace(QUOTE, ""));
    }
    return {kind: "quote", blocks: new Blocks(lines, this.depth + 1).run()};
  }

  list([, , first_mark]) {
    const ordered = /\d/.test(first_mark);
    const list = {kind: "list", ordered, start: parseInt(first_mark, 10), items: []};
    while (this.at < this.lines.length) {
      const match = ITEM.exec(this.lines[this.at]);
      if (match === null || /\d/.test(match[2]) !== ordered) break;
      if (RULE.test(this.lines[this.at])) break;
      list.items.push(this.item(match));
    }
    return list;
  }

  // The item's own line, and those that follow: indented deeper than its mark, or its paragraph's
  // rest.
  item([head, indent]) {
    const lines = [this.lines[this.at++].slice(head.length)];
    while (this.at < this.lines.length) {
      const line = this.lines[this.at];
      if (BLANK.test(line)) {
        const following = this.lines[this.at + 1] ?? "";
        const deeper = /^ */.exec(following)[0].length > indent.length + 1;
        if (!deeper && !(ITEM.test(following) && !BLANK.test(following))) break;
        if (!deeper) {
          ++this.at;
          break;
        }
      } else {
        const deeper = /^ */.exec(line)[0].length > indent.length + 1;
        const lazy = !BLANK.test(lines.at(-1)) && !this.begins_block(line);
        if (!deeper && !lazy) break;
      }
      lines.push(line.replace(new RegExp(`^ {0,${Math.max(2, head.length)}}`), ""));
      ++this.at;
    }
    return new Blocks(lines, this.depth + 1).run();
  }

  is_table() {
    if (!this.lines[this.at].includes("|")) return false;
    const columns = cells(this.lines[this.at + 1] ?? "");
    return (
      columns.every((cell) => /^:?-+:?$/.test(cell)) &&
      columns.length === cells(this.lines[this.at]).length
    );
  }

  table() {
    const head = cells(this.lines[this.at]);
    const marks = cells(this.lines[this.at + 1]);
    const sides = marks.map((mark) =>
      mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "end") : "start",
    );
    this.at += 2;
    const rows = [];
    while (this.at < this.lines.length && this.lines[this.at].includes("|")) {
      rows.push(cells(this.lines[this.at++]));
    }
    return {kind: "table", head, sides, rows};
  }

  begins_block(line) {
    return [FENCE, HEADING, RULE, QUOTE, ITEM].some((pattern) => pattern.test(line));
  }

  paragraph() {
    const lines = [];
    do {
      lines.push(this.lines[this.at++].trimStart());
    } while (
      this.at < this.lines.length &&
      !BLANK.test(this.lines[this.at]) &&
      !this.begins_block(this.lines[this.at]) &&
      !this.is_table()
    );
    return {kind: "paragraph", text: lines.join("\n").trimEnd()};
  }
}

function cells(line) {
  const row = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return row.split(/(?<!\\)\|/).map((cell) => cell.replaceAll("\\|", "|").trim());
}

function code_block({language, text}) {
  return element(
    "figure",
    {class: "code"},
    element("figcaption", {}, element("span", {}, language || "code"), copy_button(() => text)),
    element("pre", {tabindex: "0"}, element("code", {}, text)),
  );
}

function table_node({head, sides, rows}) {
  const row = (tag, texts) =>
    element(
      "tr",
      {},
      ...sides.map((side, column) =>
        element(tag, {class: side}, ...inline_nodes(texts[column] ?? "")),
      ),
    );
  const table = element(
    "table",
    {},
    element("thead", {}, row("th", head)),
    element("tbody", {}, ...rows.map((texts) => row("td", texts))),
  );
  const attributes = {class: "table", tabindex: "0", role: "group", "aria-label": "Table"};
  return element("div", attributes, table);
}

// An item's first paragraph stands without a space of its own.
function item_node(blocks) {
  const [first, ...rest] = blocks;
  const nodes = rest.map(block_node);
  if (first?.kind === "paragraph") return element("li", {}, ...inline_nodes(first.text), ...nodes);
  return element("li", {}, ...blocks.map(block_node));
}

function block_node(block) {
  switch (block.kind) {
    case "code":
      return code_block(block);
    case "heading":
      // The page's own headings are the first two levels.
      return element(`h${Math.min(6, block.level + 2)}`, {}, ...inline_nodes(block.text));
    case "rule":
      return element("hr");
    case "quote":
      return element("blockquote", {}, ...block.blocks.map(block_node));
    case "list":
      return element(
        block.ordered ? "ol" : "ul",
        {start: block.ordered && block.start !== 1 ? block.start : null},
        ...block.items.map(item_node),
      );
    case "table":
      return table_node(block);
    default:
      return element("p", {}, ...inline_nodes(block.text));
  }
}

// Makes `container` show `text`. Blocks that are there already stay as they are, so that a
// selection or a focus in them outlives the next token.
export function show_markdown(container, text) {
  const lines = text.replaceAll("\t", "    ").split(/\r\n|\r|\n/);
  const blocks = new Blocks(lines, 0).run();
  blocks.forEach((block, index) => {
    const there = container.children[index];
    if (there?.markdown_source === block.source) return;
    const node = block_node(block);
    node.markdown_source = block.source;
    if (there) there.replaceWith(node);
    else container.append(node);
  });
  while (container.children.length > blocks.length) container.lastElementChild.remove();
}
