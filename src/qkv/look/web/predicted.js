// The tokens that a language model predicts at the selected query, beside the map.

import { formatWeight } from "./codes.js";
import { createElement, createTable } from "./dom.js";
import { quoted } from "./text_names.js";

export const CAPTIONS = /** @type {Record<string, (query: string) => string>} */ ({
  next: (query) => `predicted after ${quoted(query)}`,
  own: (query) => `predicted in place of ${quoted(query)}`,
  step: (query) => `probabilities when ${quoted(query)} was generated`,
});

export class Predicted {
  /** @param {import("./source.js").Source} source */
  constructor(source) {
    this.source = source;
    this.element = createElement("div", { class: "top predicted" });
    this.loaded = /** @type {Map<number, Promise<any>>} */ (new Map());
  }

  /** @param {any} view @param {number} index of the view @param {number} token of the query @param {string} name of it */
  async show(view, index, token, name) {
    this.element.hidden = !view.predictions;
    this.shown = `${index},${token}`;
    if (!view.predictions) return;
    if (!this.loaded.has(index)) this.loaded.set(index, this.source.predictions(index));
    const { kind, rows } = await this.loaded.get(index);
    if (this.shown !== `${index},${token}` || !rows[token]) return;
    const { tokens, probabilities, target, probability, rank } = rows[token];
    const lines = tokens.map((/** @type {string} */ text, /** @type {number} */ i) => shareRow(text, [probabilities[i]], text === target));
    if (target !== null && rank > tokens.length) lines.push(shareRow(`${rank}. ${target}`, [probability], true));
    const said = { next: "the next token of the text", own: "the token of the text", step: "the generated token" }[/** @type {string} */ (kind)];
    this.element.replaceChildren(
      createTable(CAPTIONS[kind](name), ["token", "probability"], lines),
      createElement("p", { class: "hint", text: target === null ? "" : `bold: ${said}` }),
    );
  }
}

/** Return a row of a table with shares of 1, as bars and as numbers. @param {string} text @param {number[]} shares @param {boolean} marked */
export function shareRow(text, shares, marked) {
  return createElement("tr", { class: marked ? "target" : undefined }, [createElement("th", { scope: "row", text }), ...shares.map((share) => {
    const width = `${Math.round(40 * Math.max(0, Math.min(1, share)))}px`;
    return createElement("td", {}, [createElement("span", { class: "share", "aria-hidden": "true", style: { width } }), createElement("span", { text: formatWeight(share) })]);
  })]);
}
