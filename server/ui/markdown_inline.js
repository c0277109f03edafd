// Markdown within a paragraph, as DOM nodes. Every character of the source ends up as text or
// as one of the few elements below; a link leads to http, https or mailto, or is none. The time is
// linear in the text: what was looked for in vain is not looked for again.
import {element} from "./dom.js";

const DEPTH_MAX = 8;
const SCHEMES = new Set(["http:", "https:", "mailto:"]);
const MARKS = [
  ["**", "strong"],
  ["__", "strong"],
  ["~~", "del"],
  ["*", "em"],
  ["_", "em"],
];
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const WORD = /[\p{L}\p{N}]/u;
const BARE_LINK = /https?:\/\/[^\s<>"'`]{1,2000}/y;

// The address if a link may lead there, else null.
export function safe_address(text) {
  try {
    const address = new URL(text.trim());
    return SCHEMES.has(address.protocol) ? address.href : null;
  } catch {
    return null;
  }
}

function link(address, ...children) {
  return element("a", {href: address, target: "_blank", rel: "noopener noreferrer"}, ...children);
}

class Inline {
  constructor(text, depth) {
    this.text = text;
    this.depth = depth;
    this.nodes = [];
    this.plain = "";
    this.absent = new Set();  // marks that do not close anywhere behind where we are
    this.brackets = null;
  }

  flush() {
    if (this.plain !== "") this.nodes.push(document.createTextNode(this.plain));
    this.plain = "";
  }

  add(node) {
    this.flush();
    this.nodes.push(node);
  }

  inner(start, end) {
    return inline_nodes(this.text.slice(start, end), this.depth + 1);
  }

  // All nodes of the text.
  run() {
    let at = 0;
    while (at < this.text.length) {
      const next = this.special(at);
      if (next > at) {
        at = next;
      } else {
        this.plain += this.text[at];
        ++at;
      }
    }
    this.flush();
    return this.nodes;
  }

  // Takes what begins at `at`, if it is anything but text, and gives where it ends.
  special(at) {
    switch (this.text[at]) {
      case "\\":
        return this.escape(at);
      case "\n":
        this.plain = this.plain.trimEnd();
        this.add(element("br"));
        return at + 1;
      case "`":
        return this.code(at);
      case "*":
      case "_":
      case "~":
        return this.emphasis(at);
      case "!":
        return this.text[at + 1] === "[" ? this.bracket(at + 1) : at;
      case "[":
        return this.bracket(at);
      case "<":
        return this.angle(at);
      case "h":
        return this.bare_link(at);
      default:
        return at;
    }
  }

  escape(at) {
    const next = this.text[at + 1] ?? "";
    if (!PUNCTUATION.test(next)) return at;
    this.plain += next;
    return at + 2;
  }

  code(at) {
    let open = at;
    while (this.text[open] === "`") ++open;
    const fence = this.text.slice(at, open);
    if (this.absent.has(fence)) return this.take_plain(at, open);
    let close = this.text.indexOf(fence, open);
    while (close >= 0 && this.text[close + fence.length] === "`") {
      // A longer run does not close a shorter one.
      let behind = close;
      while (this.text[behind] === "`") ++behind;
      close = this.text.indexOf(fence, behind);
    }
    if (close < 0) {
      this.absent.add(fence);
      return this.take_plain(at, open);
    }
    const content = this.text.slice(open, close).replaceAll("\n", " ");
    const padded = content.length > 2 && content.startsWith(" ") && content.endsWith(" ");
    this.add(element("code", {}, padded ? content.slice(1, -1) : content));
    return close + fence.length;
  }

  take_plain(start, end) {
    this.plain += this.text.slice(start, end);
    return end;
  }

  emphasis(at) {
    if (this.depth >= DEPTH_MAX) return at;
    for (const [mark, tag] of MARKS) {
      if (!this.text.startsWith(mark, at)) continue;
      const start = at + mark.length;
      if (!/\S/.test(this.text[start] ?? " ") || this.absent.has(mark)) continue;
      if (mark[0] === "_" && WORD.test(this.text[at - 1] ?? " ")) continue;
      const end = this.closing(mark, start);
      if (end < 0) {
        this.absent.add(mark);
        continue;
      }
      if (end === start) continue;
      this.add(element(tag, {}, ...this.inner(start, end)));
      return end + mark.length;
    }
    // A run of marks that open nothing is text as a whole.
    let end = at;
    while (this.text[end] === this.text[at]) ++end;
    return this.take_plain(at, end);
  }

  // Where `mark` closes at or behind `start`; -1 if nowhere. Depends on the place alone.
  closing(mark, start) {
    let at = this.text.indexOf(mark, start);
    while (at >= 0) {
      const before = this.text[at - 1];
      const after = this.text[at + mark.length] ?? " ";
      const single = mark.length > 1 || (before !== mark && after !== mark);
      const inside_word = mark[0] === "_" && WORD.test(after);
      if (before !== "\\" && /\S/.test(before) && single && !inside_word) {
        // Of "***" the first closes what is inside.
        while (mark.length > 1 && this.text[at + mark.length] === mark[0]) ++at;
        return at;
      }
      at = this.text.indexOf(mark, at + 1);
    }
    return -1;
  }

  // Each "[" with its "]", found in one walk.
  match_brackets() {
    this.brackets = new Map();
    const open = [];
    for (let at = 0; at < this.text.length; ++at) {
      const letter = this.text[at];
      if (letter === "\\") ++at;
      else if (letter === "[") open.push(at);
      else if (letter === "]" && open.length > 0) this.brackets.set(open.pop(), at);
    }
  }

  // [label](address) and ![label](address): an image is a link too, nothing is fetched for it.
  bracket(open) {
    if (this.depth >= DEPTH_MAX) return open;
    if (this.brackets === null) this.match_brackets();
    const close = this.brackets.get(open);
    if (close === undefined || this.text[close + 1] !== "(") return open;
    const end = this.closing_parenthesis(close + 2);
    if (end < 0) return open;
    const target = this.text.slice(close + 2, end).split(/\s/)[0];
    const address = safe_address(target.replace(/^<|>$/g, ""));
    if (address === null) return open;
    const label = this.inner(open + 1, close);
    this.add(link(address, ...(label.length > 0 ? label : [target])));
    return end + 1;
  }

  // Addresses may hold pairs of parentheses.
  closing_parenthesis(start) {
    let open = 0;
    const last = Math.min(this.text.length, start + 2000);
    for (let at = start; at < last; ++at) {
      if (this.text[at] === "(") ++open;
      if (this.text[at] === ")" && open-- === 0) return at;
    }
    return -1;
  }

  angle(at) {
    const end = this.text.slice(at, at + 2000).indexOf(">");
    const inside = end < 0 ? "" : this.text.slice(at + 1, at + end);
    const address = /\s/.test(inside) ? null : safe_address(inside);
    if (address === null) return at;
    this.add(link(address, inside));
    return at + end + 1;
  }

  bare_link(at) {
    if (WORD.test(this.text[at - 1] ?? " ")) return at;
    BARE_LINK.lastIndex = at;
    const found = BARE_LINK.exec(this.text)?.[0].replace(/[.,:;!?*_~\])]+$/, "");
    const address = found ? safe_address(found) : null;
    if (address === null) return at;
    this.add(link(address, found));
    return at + found.length;
  }
}

export function inline_nodes(text, depth = 0) {
  return new Inline(text, depth).run();
}
