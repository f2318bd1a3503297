// The words themselves: a row of them shaded by their weight, and the strongest as a table.

import { make, written } from "./dom.js";
import { cssColour, inkOn, shade } from "./colour.js";

/** How many words stand in the row at most: of a longer text, those around the chosen one. */
export const WINDOW = 560;

export class Tokens {
  /** @param {string} label @param {(token: number) => void} pick @param {(token: number) => void} hover */
  constructor(label, pick, hover) {
    this.pick = pick;
    this.element = make("div", { class: "tokens", role: "listbox", "aria-label": label });
    this.element.addEventListener("keydown", (event) => this.#typed(event));
    this.element.addEventListener("pointerover", (event) => {
      const at = this.#number(event.target);
      if (at !== null) hover(at);
    });
    this.element.addEventListener("click", (event) => {
      const at = this.#number(event.target);
      if (at !== null) pick(at);
    });
    /** @type {string[]} */
    this.names = [];
    this.first = 0;
    this.chosen = 0;
  }

  /** @param {string[]} names @param {number} around @param {number} [most] */
  build(names, around, most = WINDOW) {
    const first = Math.max(0, Math.min(names.length - most, around - Math.floor(most / 2)));
    const same =
      names === this.names || (names.length === this.names.length && names.every((name, i) => name === this.names[i]));
    if (same && first === this.first) return;
    const focused = this.element.contains(document.activeElement);
    this.names = names;
    this.first = first;
    this.element.replaceChildren(
      ...names.slice(first, first + most).map((text, i) =>
        make("span", { class: "token", role: "option", tabindex: -1, "data-at": first + i, text })),
    );
    if (focused) this.#child(around)?.focus();
  }

  /** How many words stand in the row. */
  get shown() {
    return this.element.children.length;
  }

  /** @param {(token: number) => number} weight @param {number} most
   *  @param {import("./colour.js").Scale} scale @param {Uint8ClampedArray} table */
  paint(weight, most, scale, table) {
    for (const child of /** @type {any} */ (this.element.children)) {
      const share = shade(weight(Number(child.dataset.at)), most, scale);
      child.style.backgroundColor = cssColour(table, share);
      child.style.color = inkOn(table, share);
    }
  }

  /** @param {number} token */
  choose(token) {
    const before = this.#child(this.chosen);
    const focused = before === document.activeElement;
    before?.removeAttribute("aria-selected");
    before?.setAttribute("tabindex", "-1");
    this.chosen = token;
    const child = this.#child(token);
    child?.setAttribute("aria-selected", "true");
    child?.setAttribute("tabindex", "0");
    if (focused) child?.focus();
    // Within the row of words alone: the page itself stays where it is.
    const { element } = this;
    if (child && element.scrollHeight > element.clientHeight) {
      const top = child.offsetTop - element.offsetTop;
      if (top < element.scrollTop || top + child.offsetHeight > element.scrollTop + element.clientHeight) {
        element.scrollTop = top - element.clientHeight / 2;
      }
    }
  }

  /** Mark the words that hold a text; how many.
   *  @param {string} text */
  search(text) {
    const wanted = text.trim().toLowerCase();
    let found = 0;
    for (const child of /** @type {any} */ (this.element.children)) {
      const hit = wanted !== "" && child.textContent.toLowerCase().includes(wanted);
      child.classList.toggle("hit", hit);
      found += hit ? 1 : 0;
    }
    return found;
  }

  /** @param {number} token @returns {HTMLElement | undefined} */
  #child(token) {
    return /** @type {any} */ (this.element.children[token - this.first]);
  }

  /** @param {EventTarget | null} target */
  #number(target) {
    const at = target instanceof HTMLElement ? target.dataset.at : undefined;
    return at === undefined ? null : Number(at);
  }

  /** @param {KeyboardEvent} event */
  #typed(event) {
    const last = this.names.length - 1;
    /** @type {Record<string, number>} */
    const moves = {
      ArrowLeft: this.chosen - 1, ArrowUp: this.chosen - 1, ArrowRight: this.chosen + 1,
      ArrowDown: this.chosen + 1, Home: 0, End: last,
    };
    const next = moves[event.key];
    if (next === undefined) return;
    event.preventDefault();
    this.pick(Math.max(0, Math.min(last, next)));
  }
}

/** The strongest keys of a query as a table: what the map shows, for those who do not see it.
 *  @param {HTMLElement} place @param {string} query
 *  @param {{name: string, key: number, weight: number}[]} rows @param {(key: number) => void} pick */
export function fillTable(place, query, rows, pick) {
  const head = make("tr", {}, ["key", "position", "weight"].map((text) => make("th", { scope: "col", text })));
  const lines = rows.map(({ name, key, weight }) => {
    const line = make("tr", {}, [
      make("th", { scope: "row", text: name }),
      make("td", { text: String(key) }),
      make("td", { text: written(weight) }),
    ]);
    line.addEventListener("click", () => pick(key));
    return line;
  });
  place.replaceChildren(
    make("table", {}, [
      make("caption", { text: `“${query}” attends to` }), make("thead", {}, [head]), make("tbody", {}, lines),
    ]),
  );
}
