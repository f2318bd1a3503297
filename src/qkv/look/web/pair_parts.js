// Query and key vector of the selected pair, and their product dimension by dimension.

import { formatWeight } from "./codes.js";
import { cssColour, paletteFor, paletteOf } from "./colour.js";
import { createElement, createTable } from "./dom.js";
import { ALL_HEADS } from "./matrix.js";
import { quoted } from "./text_names.js";

/** Number of dimensions that the table lists. */
const LISTED_DIMENSIONS = 8;
const STRIPS = /** @type {[string, string][]} */ ([["query", "query"], ["key", "key"], ["product", "query · key · scale"]]);

export class PairParts {
  /** @param {import("./source.js").Source} source */
  constructor(source) {
    this.source = source;
    this.element = createElement("div", { class: "result", "aria-live": "polite" });
    this.request = 0;
  }

  /** @param {import("./questions.js").Place} place */
  async update(place) {
    const request = ++this.request;
    const { index, layer, head, token, keyToken, view } = place;
    if (layer >= view.layers.length || view.layers[layer].name === ALL_HEADS || head < 0) {
      this.element.textContent = "Maps over several heads have no query and key vectors. Select a head.";
      return;
    }
    try {
      const parts = await /** @type {any} */ (this.source.pair)(index, layer, head, token, keyToken);
      if (request === this.request) this.#show(parts, place);
    } catch (error) {
      if (request === this.request) this.element.textContent = `The vectors could not be computed: ${error instanceof Error ? error.message : error}`;
    }
  }

  /** @param {any} parts @param {import("./questions.js").Place} place */
  #show(parts, { name, keyName, dark }) {
    const sum = parts.product.reduce((/** @type {number} */ total, /** @type {number} */ one) => total + one, 0);
    const masked = parts.logit === null || parts.logit < -1e30;
    const rest = parts.logit - sum;
    // Exported files round queries and keys.
    const { error = 0, errors } = parts;
    const other = Math.abs(rest) > 1e-3 * Math.max(1, Math.abs(sum)) ? ` ${rest < 0 ? "−" : "+"} ${formatWeight(Math.abs(rest), errors?.rest)} (bias, soft cap)` : "";
    const weight = formatWeight(parts.weight, error * parts.weight);
    const shown = (/** @type {string} */ field, /** @type {number} */ i) => formatWeight(parts[field][i], errors?.[field][i]);
    const sentence = masked
      ? `${quoted(name)} may not attend to ${quoted(keyName)}.`
      : `${quoted(name)} → ${quoted(keyName)}: logit ${formatWeight(parts.logit, errors?.logit)} = Σ query · key · ${formatWeight(parts.scale)}${other}; weight ${weight}` +
        (parts.value_norm === null ? "." : `; norm of the value ${formatWeight(parts.value_norm)}; weight × norm ${formatWeight(parts.weight * parts.value_norm, error * parts.weight * parts.value_norm)}.`);
    const readout = createElement("output", { class: "quiet", text: "Point at a dimension." });
    const palette = paletteFor(paletteOf(dark), { signed: true });
    const strips = STRIPS.map(([field, label]) => {
      const numbers = /** @type {number[]} */ (parts[field]);
      const largest = Math.max(...numbers.map(Math.abs)) || 1;
      const bound = Math.max(0, ...(errors?.[field] ?? []));
      const cells = numbers.map((number, i) => {
        const cell = createElement("span", { class: "dimension", style: { background: cssColour(palette, number / largest) } });
        cell.addEventListener("pointerenter", () => (readout.textContent = STRIPS.map(([one, text]) => `${text} ${shown(one, i)}`).join(", ") + ` (dimension ${i})`));
        return cell;
      });
      return createElement("div", { class: "strip" }, [
        createElement("span", { class: "layer", text: label }), createElement("div", { class: "dimensions", "aria-hidden": "true" }, cells),
        createElement("span", { class: "quiet", text: `strongest ±${formatWeight(largest, bound)}` }),
      ]);
    });
    const order = parts.product.map((/** @type {number} */ _, /** @type {number} */ i) => i)
      .sort((/** @type {number} */ a, /** @type {number} */ b) => Math.abs(parts.product[b]) - Math.abs(parts.product[a]));
    const rows = order.slice(0, LISTED_DIMENSIONS).map((/** @type {number} */ i) =>
      createElement("tr", {}, [
        createElement("th", { scope: "row", text: String(i) }),
        ...STRIPS.map(([field]) => createElement("td", { text: shown(field, i) })),
      ]));
    this.element.replaceChildren(
      createElement("p", { text: sentence }), ...strips, readout,
      createTable("dimensions with the largest product", ["dimension", ...STRIPS.map(([, label]) => label)], rows),
    );
  }
}
