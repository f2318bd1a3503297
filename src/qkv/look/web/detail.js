// The detail view of one head: its map, its tokens, and the keys with the largest weights for the selected query.

import { codesOf, dequantize, formatWeight } from "./codes.js";
import { createElement } from "./dom.js";
import { fillLegend } from "./legend.js";
import { MapView } from "./map.js";
import { countKeys, errorOf, groupsOf, merge, nameOf, reduce, strongest } from "./matrix.js";
import { shadeOf } from "./range.js";
import { Steps } from "./steps.js";
import { Tiles } from "./tiles.js";
import { fillTable, Tokens } from "./tokens.js";

const TOP = 10;

/** @typedef {Object} Side
 *  @property {string[]} tokens @property {string[]} pieces @property {number[]} words @property {boolean[]} special
 *  @property {number} [count] number of tokens, if the tokens are the numbers from 0 */

/** The metadata of a view of one text in one model, as the server sends it.
 *  @typedef {Object} View
 *  @property {string} name @property {string} model @property {string} kind self, cross or decoder
 *  @property {Side} queries @property {Side | null} keys null: the same as the queries
 *  @property {{name: string, heads: string[]}[]} layers
 *  @property {{maximum: number, minimum: number, exponent: number, normalized: boolean}[][]} ranges of each head
 *  @property {Record<string, {role: string, score: number, baseline: number}[]>} roles by "layer,head"
 *  @property {string} [note] a remark shown beside the maps
 *  @property {boolean} [flow] whether the attention flow of single pairs of tokens can be computed
 *  @property {boolean} [steps] queries were generated one after another
 *  @property {number} [levels] the coarsest level of a tiled map, which has a single tile
 *  @property {number} [base] level of its overview @property {[number, number]} [overview] cells of the overview */

export class Detail {
  /** @param {import("./source.js").Source} source @param {(query: number, key: number) => void} onSelect
   *  @param {(text: string) => void} report shows a message
   *  @param {(summary: import("./range.js").Summary) => import("./range.js").Range} range chooses the colour range
   *  @param {() => void} moved called when another part of the map is visible */
  constructor(source, onSelect, report, range, moved) {
    this.source = source;
    this.onSelect = onSelect;
    this.report = report;
    this.title = createElement("h2", {});
    this.map = new MapView({
      hover: (row, column) => this.#point(row, column, false),
      pick: (row, column) => this.#point(row, column, true),
      range, moved,
      coloured: () => this.#coloured(),
      label: "attention map",
    });
    this.queries = new Tokens("queries: select a token", (at) => this.#point(at, this.key, true), (at) => this.#point(at, this.key, false));
    this.keys = new Tokens("keys", (at) => this.#point(this.query, at, true), (at) => this.#point(this.query, at, false));
    this.readout = createElement("output", { class: "readout", "aria-live": "polite" });
    this.bar = createElement("div", { class: "bar" });
    this.top = createElement("div", { class: "top" });
    this.badges = createElement("ul", { class: "badges", "aria-label": "roles of this head" });
    this.steps = new Steps((at) => this.#point(at, this.key, true));
    this.flow = createElement("button", { class: "flow", text: "Flow of this pair", onclick: () => this.#computeFlow() });
    this.element = createElement("section", { class: "detail" }, [
      this.title, this.badges, this.steps.element, createElement("div", { class: "line" }, [this.readout, this.flow]),
      createElement("div", { class: "side" }, [createElement("div", { class: "sheet" }, [this.map.canvas, this.bar]), this.top]),
      this.queries.element, this.keys.element,
    ]);
    this.query = 0;
    this.key = 0;
    /** @type {import("./matrix.js").Matrix | null} */
    this.matrix = null;
    this.request = 0;
  }

  /** Show one head.
   *  @param {View} view @param {number} index of the view @param {number} layer @param {number} head
   *  @param {any} options */
  async show(view, index, layer, head, options) {
    const request = ++this.request;
    this.options = options;
    const layerInfo = view.layers[layer];
    this.title.textContent = `${view.name} · ${layerInfo.name}, ${layerInfo.heads[head]}`;
    this.#badges(view.roles[`${layer},${head}`] || []);
    this.map.canvas.setAttribute("aria-label", `attention map of ${layerInfo.name}, ${layerInfo.heads[head]}`);
    const keys = view.keys || view.queries;
    this.element.setAttribute("aria-busy", "true");
    if (view.levels) {
      await this.#showTiled(view, index, layer, head, request);
    } else {
      const bytes = await this.source.map(index, layer, head);
      if (request !== this.request) return;
      const rows = groupsOf(view.queries, options.words, options.hide);
      const columns = groupsOf(keys, options.words, options.hide);
      const { exponent, normalized } = view.ranges[layer][head];
      const single = dequantize(codesOf(bytes), exponent);
      const weights = merge(single, keys.tokens.length, rows, columns);
      const error = errorOf(single, keys.tokens.length, rows, columns);
      const matrix = {
        weights, error,
        queries: rows.map((group) => nameOf(view.queries, group)),
        keys: columns.map((group) => nameOf(keys, group)),
      };
      this.matrix = matrix;
      const width = matrix.keys.length;
      this.mapData = {
        query: (/** @type {number} */ row) => matrix.queries[row],
        key: (/** @type {number} */ column) => matrix.keys[column],
        rows: matrix.queries.length, columns: width, counts: countKeys(weights, width), normalized, error,
        cells: (/** @type {any} */ part, /** @type {number} */ height, /** @type {number} */ across, /** @type {any} */ reduction) =>
          reduce(weights, width, part, height, across, reduction),
        weight: (/** @type {number} */ row, /** @type {number} */ column) => weights[row * width + column],
      };
    }
    const self = !view.keys;
    this.keys.element.hidden = self;
    // The pairs of flow are single tokens, not merged words.
    this.flow.hidden = !view.flow || !this.source.flow || options.words || options.hide;
    this.index = index;
    this.steps.element.hidden = !view.steps;
    this.names = { queries: this.#names("query"), keys: this.#names("key") };
    this.query = Math.min(this.query, this.mapData.rows - 1);
    this.key = Math.min(this.key, this.mapData.columns - 1);
    this.self = self;
    this.map.reduction = options.reduction;
    this.map.palette = options.palette;
    this.map.show(this.mapData);
    this.#coloured();
    this.#point(this.query, this.key, true, false);
    this.element.removeAttribute("aria-busy");
  }

  /** @param {View} view @param {number} index @param {number} layer @param {number} head @param {number} request */
  async #showTiled(view, index, layer, head, request) {
    const keys = view.keys || view.queries;
    const bytes = await /** @type {any} */ (this.source.counts)(index, layer, head);
    const { exponent, normalized } = view.ranges[layer][head];
    const tiles = new Tiles(
      {
        queries: view.queries.tokens, keys: keys.tokens, levels: view.levels || 0, base: view.base || 0,
        overview: view.overview || [1, 1],
        exponent, normalized, counts: new Uint32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength)),
        tile: (level, y, x) => /** @type {any} */ (this.source.tile)(index, layer, head, level, y, x),
      },
      () => this.map.refresh(),
    );
    await tiles.first();
    if (request !== this.request) return;
    this.matrix = null;
    this.mapData = tiles.mapData;
    this.loadRow = (/** @type {number} */ query) => /** @type {any} */ (this.source.row)(index, layer, head, query);
  }

  /** @param {"query" | "key"} axis */
  #names(axis) {
    const mapData = /** @type {any} */ (this.mapData);
    const count = axis === "query" ? mapData.rows : mapData.columns;
    return Array.from({ length: count }, (_, i) => mapData[axis](i));
  }

  /** Select a pair of tokens.
   *  @param {number} query @param {number} key */
  go(query, key) {
    if (!this.mapData) return;
    this.#point(Math.min(query, this.mapData.rows - 1), Math.min(key, this.mapData.columns - 1), true, false);
  }

  /** @param {number} row @param {number} column @param {boolean} select false: the pointer hovers
   *  @param {boolean} [notify] call `onSelect` */
  #point(row, column, select, notify = true) {
    const mapData = this.mapData;
    const names = this.names;
    if (!mapData || !names) return;
    // While another text is loading, its indices may not exist in the current map.
    row = Math.max(0, Math.min(mapData.rows - 1, row));
    column = Math.max(0, Math.min(mapData.columns - 1, column));
    const changed = row !== this.query;
    this.query = row;
    this.key = column;
    this.map.point(row, column, select);
    this.steps.show(row, mapData.rows, mapData.query(row));
    this.#updateReadout();
    this.queries.build(names.queries, row, this.options.maxTokens);
    const shaded = this.self ? this.queries : this.keys;
    if (!this.self) this.keys.build(names.keys, column, this.options.maxTokens);
    if (changed || select) {
      const paint = () => this.#paintTokens();
      paint();
      this.#table(row);
      // A tiled map loads the weights of a query when it is selected.
      if (select && mapData.loadRow) {
        const { first, shown } = shaded;
        Promise.all([mapData.loadRow(row, first, first + shown - 1), mapData.loadRow(row, column, column)])
          .then(() => {
            if (mapData !== this.mapData || row !== this.query) return;
            paint();
            this.#updateReadout();
          })
          .catch((/** @type {Error} */ error) => this.report(`These weights could not be loaded: ${error.message}`));
      }
    }
    this.queries.select(row);
    if (!this.self) this.keys.select(column);
    if (select && notify) this.onSelect(row, column);
  }

  /** Show the selected pair and its weight as text. */
  #updateReadout() {
    const mapData = /** @type {any} */ (this.mapData);
    const [row, column] = [this.query, this.key];
    const weight = mapData.weight(row, column);
    const text = weight === null ? "…" : formatWeight(weight, mapData.error(row, column));
    this.readout.textContent = `“${mapData.query(row)}” (${row}) → “${mapData.key(column)}” (${column}): ${text}`;
  }

  /** Compute the maximum flow of the selected pair through all layers and heads, and add it to the readout. */
  async #computeFlow() {
    const [query, key, index] = [this.query, this.key, this.index];
    try {
      const flow = await /** @type {any} */ (this.source.flow)(index, query, key);
      if (query !== this.query || key !== this.key || index !== this.index) return;
      this.#updateReadout();
      this.readout.textContent += `; flow through all layers: ${formatWeight(flow)}`;
    } catch (error) {
      this.report(`The flow could not be computed: ${error instanceof Error ? error.message : error}`);
    }
  }

  /** @param {number} row */
  async #table(row) {
    const mapData = /** @type {any} */ (this.mapData);
    let rows;
    if (this.matrix) rows = strongest(this.matrix, row, TOP);
    else {
      const request = this.request;
      let strongestKeys;
      try {
        strongestKeys = await /** @type {any} */ (this.loadRow)(row);
      } catch (error) {
        this.report(`This row could not be loaded: ${error instanceof Error ? error.message : error}`);
        return;
      }
      if (request !== this.request || row !== this.query) return;
      rows = strongestKeys.map((/** @type {[number, number]} */ [key, weight]) => ({ key, weight }));
    }
    fillTable(
      this.top, mapData.query(row),
      rows.map((/** @type {any} */ entry) => ({ ...entry, name: mapData.key(entry.key), error: mapData.error(row, entry.key) })),
      (key) => this.#point(row, key, true),
    );
  }

  /** @param {{role: string, score: number, baseline: number}[]} roles */
  #badges(roles) {
    this.badges.replaceChildren(
      ...roles.map(({ role, score, baseline }) =>
        createElement("li", { class: "badge", text: `${role} ${score.toFixed(2)} (baseline ${baseline.toFixed(2)})` })),
    );
    this.badges.hidden = roles.length === 0;
  }

  /** Shade the tokens by their weights for the selected query. */
  #paintTokens() {
    const { mapData } = this;
    if (!mapData || !this.map.range) return;
    const shaded = this.self ? this.queries : this.keys;
    shaded.paint((at) => mapData.weight(this.query, at) ?? 0, shadeOf(this.map.range), this.options.palette);
  }

  /** Update the legend and the tokens to the colours of the map. */
  #coloured() {
    if (!this.map.range || !this.options) return;
    fillLegend(this.bar, this.map.range, this.options.palette);
    this.#paintTokens();
  }
}
