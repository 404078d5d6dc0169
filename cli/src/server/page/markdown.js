// Text with Markdown in it becomes nodes of the document. Strings only ever enter as text: there is no way from here
// to an element or an attribute that the text chose.

/** Shows `text` in `container`, and leaves alone the blocks that are shown already. */
export function show(container, text, depth = 0) {
  const sources = split(text);
  sources.forEach((source, at) => {
    const shown = container.children[at];
    if (shown && shownSource.get(shown) === source) return;
    const node = block(source, depth);
    shownSource.set(node, source);
    if (shown) shown.replaceWith(node);
    else container.append(node);
  });
  while (container.children.length > sources.length) container.lastElementChild.remove();
}

/** The blocks of a text: what blank lines part, with fenced code whole. */
function split(text) {
  const blocks = [];
  let lines = [];
  let fence = null;
  const end = () => {
    if (lines.length) blocks.push(lines.join("\n"));
    lines = [];
  };
  for (const line of text.replace(/\r\n?/g, "\n").split("\n")) {
    if (fence) {
      lines.push(line);
      if (closes(line, fence)) {
        fence = null;
        end();
      }
      continue;
    }
    const opened = line.match(FENCE);
    if (opened) {
      end();
      fence = opened[1];
      lines.push(line);
    } else if (!line.trim()) {
      end();
    } else if (HEADING.test(line) || RULE.test(line)) {
      end();
      lines.push(line);
      end();
    } else {
      lines.push(line);
    }
  }
  end();
  return blocks;
}

function block(source, depth) {
  const lines = source.split("\n");
  const fence = lines[0].match(FENCE);
  if (fence) return code(lines, fence);
  const heading = lines[0].match(HEADING);
  if (heading) return element(`h${Math.min(heading[1].length + 2, 6)}`, inline(heading[2]));
  if (RULE.test(lines[0])) return element("hr", []);
  if (depth < MOST_DEEP && lines.every((line) => QUOTED.test(line))) {
    const quote = element("blockquote", []);
    show(quote, lines.map((line) => line.replace(QUOTED, "")).join("\n"), depth + 1);
    return quote;
  }
  if (lines.length > 1 && lines[0].includes("|") && TABLE_RULE.test(lines[1])) return table(lines);
  const first = lines.findIndex((line) => ITEM.test(line));
  if (first === 0) return list(lines);
  // A list often follows its introduction without a blank line.
  if (first > 0) return element("div", [paragraph(lines.slice(0, first)), list(lines.slice(first))]);
  return paragraph(lines);
}

function paragraph(lines) {
  return element("p", lines.flatMap((line, at) => (at ? [element("br", []), ...inline(line)] : inline(line))));
}

function code(lines, fence) {
  const last = lines.length > 1 && closes(lines[lines.length - 1], fence[1]);
  const pre = element("pre", [element("code", [lines.slice(1, last ? -1 : undefined).join("\n")])]);
  return movable(pre, fence[2] ? `Code, ${fence[2]}` : "Code");
}

/** What may be wider than the page, moved by the arrow keys. */
function movable(node, name) {
  node.tabIndex = 0;
  node.setAttribute("role", "region");
  node.setAttribute("aria-label", name);
  return node;
}

/** Items by their indentation; a line without a mark goes on with the item before. */
function list(lines, depth = 0) {
  const start = lines[0].match(ITEM);
  const node = element(/\d/.test(start[2]) ? "ol" : "ul", []);
  if (node.localName === "ol") node.start = Number.parseInt(start[2], 10);
  let item = null;
  const finish = () => {
    if (!item) return;
    const inner = item.slice(1);
    const nested = depth < MOST_DEEP ? inner.findIndex((line) => ITEM.test(line)) : -1;
    const words = nested < 0 ? item : item.slice(0, nested + 1);
    const content = words.flatMap((line, at) => (at ? [" ", ...inline(line.trim())] : inline(line)));
    node.append(element("li", nested < 0 ? content : [...content, list(inner.slice(nested), depth + 1)]));
  };
  for (const line of lines) {
    const mark = line.match(ITEM);
    if (mark && mark[1].length <= start[1].length + 1) {
      finish();
      item = [mark[3]];
    } else {
      item.push(line);
    }
  }
  finish();
  return node;
}

function table(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const row = (line, kind) => element("tr", cells(line).map((cell) => element(kind, inline(cell))));
  const head = element("thead", [row(lines[0], "th")]);
  const body = element("tbody", lines.slice(2).map((line) => row(line, "td")));
  return movable(element("div", [element("table", [head, body])]), "Table");
}

/** Code, bold, italic and struck words of a line. */
function inline(text) {
  const nodes = [];
  let at = 0;
  for (const match of text.matchAll(INLINE)) {
    nodes.push(text.slice(at, match.index));
    const [whole, , coded, bold, starred, underlined, struck] = match;
    if (coded !== undefined) nodes.push(element("code", [coded]));
    else if (bold !== undefined) nodes.push(element("strong", inline(bold)));
    else if (struck !== undefined) nodes.push(element("s", inline(struck)));
    else nodes.push(element("em", inline(starred ?? underlined)));
    at = match.index + whole.length;
  }
  nodes.push(text.slice(at));
  return nodes;
}

function element(name, children) {
  const node = document.createElement(name);
  node.append(...children);
  return node;
}

/** Whether a line closes a fence: the same mark, at least as long, alone. */
function closes(line, fence) {
  const mark = line.trim();
  return mark.length >= fence.length && mark === fence[0].repeat(mark.length);
}

const shownSource = new WeakMap();

/** Quotes and lists within one another; what is deeper is text. */
const MOST_DEEP = 8;

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTED = /^\s*> ?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
// Marks hug their words; no part can match two ways, so a hostile line takes no longer than another.
const INLINE =
  /(`+)([^`]+)\1(?!`)|\*\*(?=\S)([^*]+)\*\*|\*(?=[^\s*])([^*]+)\*|(?<!\w)_(?=[^\s_])([^_]+)_(?!\w)|~~(?=\S)([^~]+)~~/g;
