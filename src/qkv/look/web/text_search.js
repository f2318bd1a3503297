// The field that finds text in the tokens of the shown view, wherever they are.

import { createElement } from "./dom.js";

export class TextSearch {
  /** @param {string} text of the link
   *  @param {{detail: import("./detail.js").Detail, view: () => import("./detail.js").View, report: (text: string) => void,
   *    go: (query: number, key?: number) => void, changed: (text: string) => void}} page */
  constructor(text, page) {
    this.page = page;
    this.input = createElement("input", {
      type: "search", placeholder: "Find a word", "aria-label": "Find a word", value: text,
      title: "Enter: next; Shift and Enter: previous",
      oninput: () => { page.changed(this.input.value); this.mark(true); },
      onkeydown: (/** @type {KeyboardEvent} */ event) => { if (event.key === "Enter") this.#step(event.shiftKey ? -1 : 1); },
    });
    /** rows, or columns, of each occurrence @type {number[][]} */
    this.found = [];
    this.inKeys = false;
  }

  /** Find the text in the queries, or, if there is none, in the keys, and mark its tokens. @param {boolean} [report] */
  mark(report = false) {
    const { detail, view } = this.page;
    const { queries, keys } = view();
    const rowsOf = (/** @type {number[][]} */ groups, /** @type {any} */ axis) => {
      const rowOf = new Map(groups.flatMap((group, row) => group.map((token) => [token, row])));
      const found = findText(axis, this.input.value).map((tokens) => [...new Set(tokens.map((token) => rowOf.get(token)))]);
      return found.map((rows) => rows.filter((row) => row !== undefined)).filter((rows) => rows.length);
    };
    this.found = rowsOf(detail.groups[0], queries);
    this.inKeys = !this.found.length && keys !== null;
    if (this.inKeys && keys) this.found = rowsOf(detail.groups[1], keys);
    const marks = new Set(this.found.flat());
    detail.queries.mark(this.inKeys ? new Set() : marks);
    detail.keys.mark(this.inKeys ? marks : new Set());
    if (report) this.page.report(this.input.value.trim() ? `${this.found.length} found` : "");
  }

  /** Select the next or previous occurrence. @param {1 | -1} step */
  #step(step) {
    const { detail, go, report } = this.page;
    if (!this.found.length) return;
    const at = this.inKeys ? detail.key : detail.query;
    const firsts = this.found.map((rows) => rows[0]);
    const next = step > 0 ? firsts.findIndex((row) => row > at) : firsts.findLastIndex((row) => row < at);
    const index = next >= 0 ? next : step > 0 ? 0 : firsts.length - 1;
    if (this.inKeys) go(detail.query, firsts[index]);
    else go(firsts[index]);
    report(`${index + 1} of ${firsts.length}`);
  }
}

/** Return the tokens of each occurrence of a text, ignoring case. One space stands for any space between words; the text of single
 *  tokens, such as `##ness`, is found, too. @param {import("./detail.js").Side} axis @param {string} query @returns {number[][]} */
function findText({ text, spans, tokens }, query) {
  const words = query.trim().split(/\s+/).map((word) => word.replace(/[.*+?^${}()|[\]\\/-]/g, "\\$&"));
  if (!words[0]) return [];
  const found = [...text.matchAll(new RegExp(words.join("\\s+"), "gi"))].map(({ index, 0: { length } }) =>
    spans.flatMap(([start, stop], i) => (start < index + length && stop > index ? [i] : [])));
  if (found.length) return found;
  return tokens.flatMap((token, i) => (token.toLowerCase().includes(query.trim().toLowerCase()) ? [[i]] : []));
}
