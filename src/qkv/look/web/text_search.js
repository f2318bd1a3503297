// The field that finds text in the tokens of the shown view, wherever they are.

import { createElement } from "./dom.js";
import { groupsOf } from "./groups.js";

export class TextSearch {
  /** @param {string} text of the link
   *  @param {{detail: import("./detail.js").Detail, view: () => import("./detail.js").View, report: (text: string) => void,
   *    go: (query: number, key: number) => void, changed: (text: string) => void}} page */
  constructor(text, page) {
    this.page = page;
    this.input = /** @type {HTMLInputElement} */ (createElement("input", {
      type: "search", placeholder: "Find a word", "aria-label": "Find a word", value: text,
      title: "Enter: next; Shift and Enter: previous",
      oninput: () => { page.changed(this.input.value); this.mark(true); },
      onkeydown: (/** @type {KeyboardEvent} */ event) => { if (event.key === "Enter") this.#step(event.shiftKey ? -1 : 1); },
    }));
    this.element = this.input;
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
      return findText(axis, this.input.value).map(([start, stop]) =>
        [...new Set(Array.from({ length: stop - start }, (_, i) => rowOf.get(start + i)))].filter((row) => row !== undefined)).filter((rows) => rows.length);
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
    else go(firsts[index], detail.key);
    report(`${index + 1} of ${firsts.length}`);
  }
}

/** Return the ranges of tokens that contain a part of each occurrence of a text, ignoring case. Words are separated by
 *  one space; the text of single tokens, such as `##ness`, is found, too.
 *  @param {import("./detail.js").Side} axis @param {string} query @returns {[number, number][]} */
function findText(axis, query) {
  const wanted = query.trim().toLowerCase().replace(/\s+/g, " ");
  if (!wanted) return [];
  let text = "";
  // The token of each letter; a space between words belongs to the token before it.
  const owners = /** @type {number[]} */ ([]);
  for (const group of groupsOf(axis, "words")) {
    for (const i of group) {
      const piece = axis.pieces[i].toLowerCase().trim();
      text += piece;
      for (let letter = 0; letter < piece.length; letter++) owners.push(i);
    }
    text += " ";
    owners.push(group[group.length - 1]);
  }
  const found = /** @type {[number, number][]} */ ([]);
  for (let at = text.indexOf(wanted); at >= 0; at = text.indexOf(wanted, at + wanted.length)) {
    found.push([owners[at], owners[at + wanted.length - 1] + 1]);
  }
  if (found.length) return found;
  return axis.tokens.flatMap((token, i) => (token.toLowerCase().includes(wanted) ? [/** @type {[number, number]} */ ([i, i + 1])] : []));
}
