// The tokens as text shaded by weight, and a table of the keys with the largest weights.

import { formatWeight } from "./codes.js";
import { cssColour, inkOn } from "./colour.js";
import { createElement } from "./dom.js";

/** Maximum number of tokens shown; in a longer text, the tokens around the selected token are shown. */
export const MAX_TOKENS = 560;

export class Tokens {
  /** @param {string} label @param {(token: number) => void} onSelect @param {(token: number) => void} hover */
  constructor(label, onSelect, hover) {
    this.onSelect = onSelect;
    this.element = createElement("div", { class: "tokens", role: "listbox", "aria-label": label });
    this.element.addEventListener("keydown", (event) => this.#onKeyDown(event));
    this.element.addEventListener("pointerover", (event) => {
      const at = this.#tokenAt(event.target);
      if (at !== null) hover(at);
    });
    this.element.addEventListener("click", (event) => {
      const at = this.#tokenAt(event.target);
      if (at !== null) onSelect(at);
    });
    /** @type {string[]} */
    this.names = [];
    this.first = 0;
    this.selected = 0;
  }

  /** @param {string[]} names @param {number} around @param {number} [maximum] */
  build(names, around, maximum = MAX_TOKENS) {
    const first = Math.max(0, Math.min(names.length - maximum, around - Math.floor(maximum / 2)));
    const same =
      names === this.names || (names.length === this.names.length && names.every((name, i) => name === this.names[i]));
    if (same && first === this.first) return;
    const focused = this.element.contains(document.activeElement);
    this.names = names;
    this.first = first;
    this.element.replaceChildren(
      ...names.slice(first, first + maximum).map((text, i) =>
        createElement("span", { class: "token", role: "option", tabindex: -1, "data-at": first + i, text })),
    );
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
    const before = this.#child(this.selected);
    const focused = before === document.activeElement;
    before?.removeAttribute("aria-selected");
    before?.setAttribute("tabindex", "-1");
    this.selected = token;
    const child = this.#child(token);
    child?.setAttribute("aria-selected", "true");
    child?.setAttribute("tabindex", "0");
    if (focused) child?.focus();
    // Scroll the tokens only, not the page.
    const { element } = this;
    if (child && element.scrollHeight > element.clientHeight) {
      const top = child.offsetTop - element.offsetTop;
      if (top < element.scrollTop || top + child.offsetHeight > element.scrollTop + element.clientHeight) {
        element.scrollTop = top - element.clientHeight / 2;
      }
    }
  }

  /** Mark the tokens that contain a text, and return their number.
   *  @param {string} text */
  search(text) {
    const query = text.trim().toLowerCase();
    let count = 0;
    for (const child of /** @type {any} */ (this.element.children)) {
      const hit = query !== "" && child.textContent.toLowerCase().includes(query);
      child.classList.toggle("hit", hit);
      count += hit ? 1 : 0;
    }
    return count;
  }

  /** @param {number} token @returns {HTMLElement | undefined} */
  #child(token) {
    return /** @type {any} */ (this.element.children[token - this.first]);
  }

  /** @param {EventTarget | null} target */
  #tokenAt(target) {
    const at = target instanceof HTMLElement ? target.dataset.at : undefined;
    return at === undefined ? null : Number(at);
  }

  /** @param {KeyboardEvent} event */
  #onKeyDown(event) {
    const last = this.names.length - 1;
    /** @type {Record<string, number>} */
    const moves = {
      ArrowLeft: this.selected - 1, ArrowUp: this.selected - 1, ArrowRight: this.selected + 1,
      ArrowDown: this.selected + 1, Home: 0, End: last,
    };
    const next = moves[event.key];
    if (next === undefined) return;
    event.preventDefault();
    this.onSelect(Math.max(0, Math.min(last, next)));
  }
}

/** Show the keys with the largest weights for a query as a table, which screen readers can read.
 *  @param {HTMLElement} place @param {string} query
 *  @param {{name: string, key: number, weight: number, error: number}[]} rows @param {(key: number) => void} onSelect */
export function fillTable(place, query, rows, onSelect) {
  const head = createElement("tr", {}, ["key", "position", "weight"].map((text) => createElement("th", { scope: "col", text })));
  const lines = rows.map(({ name, key, weight, error }) => {
    const line = createElement("tr", {}, [
      createElement("th", { scope: "row", text: name }),
      createElement("td", { text: String(key) }),
      createElement("td", { text: formatWeight(weight, error) }),
    ]);
    line.addEventListener("click", () => onSelect(key));
    return line;
  });
  place.replaceChildren(
    createElement("table", {}, [
      createElement("caption", { text: `“${query}” attends to` }), createElement("thead", {}, [head]), createElement("tbody", {}, lines),
    ]),
  );
}
