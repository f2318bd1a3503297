// The tokens as text shaded by weight, and a table of the keys with the largest weights.

import { formatWeights } from "./codes.js";
import { cssColour, inkOn } from "./colour.js";
import { createElement, createTable, moveSelection, placeOfKey } from "./dom.js";

/** Maximum number of tokens shown; in a longer text, the tokens around the selected token are shown. */
export const MAX_TOKENS = 440;

export class Tokens {
  /** @param {string} label @param {(token: number) => void} onSelect @param {(token: number) => void} hover */
  constructor(label, onSelect, hover) {
    this.onSelect = onSelect;
    this.element = createElement("div", { class: "tokens", role: "listbox", "aria-label": label });
    this.element.addEventListener("keydown", (event) => this.#onKeyDown(event));
    for (const [name, call] of /** @type {[string, (token: number) => void][]} */ ([["pointerover", hover], ["click", onSelect]])) {
      this.element.addEventListener(name, ({ target }) => {
        if (target instanceof HTMLElement && target.dataset.at) call(Number(target.dataset.at));
      });
    }
    this.names = /** @type {string[]} */ ([]);
    this.first = 0;
    this.selected = 0;
    /** marked tokens @type {Set<number>} */
    this.hits = new Set();
  }

  /** @param {string[]} names @param {number} around @param {number} [maximum] */
  build(names, around, maximum = MAX_TOKENS) {
    const first = Math.max(0, Math.min(names.length - maximum, around - Math.floor(maximum / 2)));
    const same = names.length === this.names.length && names.every((name, i) => name === this.names[i]);
    if (same && first === this.first) return;
    const focused = this.element.contains(document.activeElement);
    this.names = names;
    this.first = first;
    this.element.replaceChildren(
      ...names.slice(first, first + maximum).map((text, i) =>
        createElement("span", { class: "token", role: "option", tabindex: -1, "data-at": first + i, text })),
    );
    this.mark(this.hits);
    if (focused) this.#child(around)?.focus();
  }

  /** Number of tokens shown. */
  get shown() {
    return this.element.children.length;
  }

  /** @param {(token: number) => number} weight @param {(weight: number, row: number) => number} shade
   *  @param {import("./colour.js").Palette} palette */
  paint(weight, shade, palette) {
    const children = /** @type {any[]} */ (Array.from(this.element.children));
    const weights = children.map((child) => weight(Number(child.dataset.at)));
    const largest = weights.reduce((most, one) => (Math.abs(one) > most && Math.abs(one) < Infinity ? Math.abs(one) : most), 0);
    children.forEach((child, i) => {
      const share = shade(weights[i], largest);
      child.style.backgroundColor = cssColour(palette, share);
      child.style.color = inkOn(palette, share);
    });
  }

  /** @param {number} token */
  select(token) {
    const child = this.#child(token);
    moveSelection(this.#child(this.selected), child);
    this.selected = token;
    // Scroll the tokens only, not the page.
    const { element } = this;
    if (child && element.scrollHeight > element.clientHeight) {
      const top = child.offsetTop - element.offsetTop;
      if (top < element.scrollTop || top + child.offsetHeight > element.scrollTop + element.clientHeight) {
        element.scrollTop = top - element.clientHeight / 2;
      }
    }
  }

  /** Mark tokens, also those that are shown later. @param {Set<number>} hits */
  mark(hits) {
    this.hits = hits;
    for (const child of /** @type {any} */ (this.element.children)) child.classList.toggle("hit", hits.has(Number(child.dataset.at)));
  }

  /** @param {number} token @returns {HTMLElement | undefined} */
  #child(token) {
    return /** @type {any} */ (this.element.children[token - this.first]);
  }

  /** @param {KeyboardEvent} event */
  #onKeyDown(event) {
    const last = this.names.length - 1;
    const next = placeOfKey(event, this.selected, last);
    if (next === undefined) return;
    event.preventDefault();
    this.onSelect(Math.max(0, Math.min(last, next)));
  }
}

/** Show the keys with the largest weights for a query as a table, which screen readers can read. Its rows are buttons,
 *  between which the arrow keys move.
 *  @param {HTMLElement} place
 *  @param {{name: string, key: number, position: number, weight: number, error: number, text?: string}[]} rows
 *  @param {(key: number) => void} onSelect @param {string[]} titles heading of the last column and caption */
export function fillTable(place, rows, onSelect, titles) {
  const weights = formatWeights(rows);
  const lines = rows.map(({ name, key, position, text }, i) => {
    const line = createElement("tr", {}, [
      createElement("th", { scope: "row" }, [createElement("button", { text: name, tabindex: -1 })]),
      createElement("td", { text: String(position) }),
      createElement("td", { text: text ?? weights[i] }),
    ]);
    line.addEventListener("click", () => onSelect(key));
    return line;
  });
  // The same row stays focused when it selects its key.
  const focused = Array.from(place.querySelectorAll("button")).findIndex((one) => one === document.activeElement);
  place.replaceChildren(createTable(titles[1], ["key", "position", titles[0]], lines));
  const buttons = /** @type {any[]} */ (Array.from(place.querySelectorAll("button")));
  buttons[Math.max(0, focused)]?.setAttribute("tabindex", "0");
  if (focused >= 0) (buttons[focused] || buttons[0])?.focus();
  buttons.forEach((button, i) => button.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const at = placeOfKey(event, i, buttons.length - 1);
    if (at === undefined) return;
    const next = buttons[at];
    event.preventDefault();
    button.setAttribute("tabindex", next ? "-1" : "0");
    next?.setAttribute("tabindex", "0");
    next?.focus();
  }));
}
