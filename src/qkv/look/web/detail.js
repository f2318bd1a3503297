// The detail view of one head: its map, its tokens, and the keys with the largest weights for the selected query.

import { createElement, formatWeight } from "./dom.js";
import { MapView } from "./map.js";
import { Steps } from "./steps.js";
import { dequantize, groupsOf, maxWeight, merge, nameOf, reduce, strongest } from "./matrix.js";
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
 *  @property {number[][]} scales the largest weight of each head
 *  @property {Record<string, {role: string, score: number, baseline: number}[]>} roles by "layer,head"
 *  @property {string} [note] a remark shown beside the maps
 *  @property {boolean} [steps] queries were generated one after another
 *  @property {number} [levels] the coarsest level of a tiled map, which has a single tile
 *  @property {number} [base] level of its overview @property {[number, number]} [overview] cells of the overview */

export class Detail {
  /** @param {import("./source.js").Source} source @param {(query: number, key: number) => void} onSelect
   *  @param {(text: string) => void} report shows a message */
  constructor(source, onSelect, report) {
    this.source = source;
    this.onSelect = onSelect;
    this.report = report;
    this.title = createElement("h2", {});
    this.map = new MapView({
      hover: (row, column) => this.#point(row, column, false),
      pick: (row, column) => this.#point(row, column, true),
      label: "attention map",
    });
    this.queries = new Tokens("queries: select a token", (at) => this.#point(at, this.key, true), (at) => this.#point(at, this.key, false));
    this.keys = new Tokens("keys", (at) => this.#point(this.query, at, true), (at) => this.#point(this.query, at, false));
    this.readout = createElement("output", { class: "readout", "aria-live": "polite" });
    this.bar = createElement("div", { class: "bar", "aria-hidden": "true" });
    this.top = createElement("div", { class: "top" });
    this.badges = createElement("ul", { class: "badges", "aria-label": "roles of this head" });
    this.steps = new Steps((at) => this.#point(at, this.key, true));
    this.element = createElement("section", { class: "detail" }, [
      this.title, this.badges, this.steps.element, this.readout,
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
      const codes = await this.source.map(index, layer, head);
      if (request !== this.request) return;
      const rows = groupsOf(view.queries, options.words, options.hide);
      const columns = groupsOf(keys, options.words, options.hide);
      const weights = merge(dequantize(codes, view.scales[layer][head]), keys.tokens.length, rows, columns);
      const matrix = {
        weights,
        queries: rows.map((group) => nameOf(view.queries, group)),
        keys: columns.map((group) => nameOf(keys, group)),
        maximum: maxWeight(weights),
      };
      this.matrix = matrix;
      const width = matrix.keys.length;
      this.mapData = {
        query: (/** @type {number} */ row) => matrix.queries[row],
        key: (/** @type {number} */ column) => matrix.keys[column],
        rows: matrix.queries.length, columns: width, maximum: matrix.maximum,
        cells: (/** @type {any} */ part, /** @type {number} */ height, /** @type {number} */ across, /** @type {any} */ reduction) =>
          reduce(weights, width, part, height, across, reduction),
        weight: (/** @type {number} */ row, /** @type {number} */ column) => weights[row * width + column],
      };
    }
    const self = !view.keys;
    this.keys.element.hidden = self;
    this.steps.element.hidden = !view.steps;
    this.names = { queries: this.#names("query"), keys: this.#names("key") };
    this.query = Math.min(this.query, this.mapData.rows - 1);
    this.key = Math.min(this.key, this.mapData.columns - 1);
    this.self = self;
    this.map.reduction = options.reduction;
    this.map.scale = options.scale;
    this.map.table = options.table;
    this.map.show(this.mapData);
    this.#bar();
    this.#point(this.query, this.key, true, false);
    this.element.removeAttribute("aria-busy");
  }

  /** @param {View} view @param {number} index @param {number} layer @param {number} head @param {number} request */
  async #showTiled(view, index, layer, head, request) {
    const keys = view.keys || view.queries;
    const tiles = new Tiles(
      {
        queries: view.queries.tokens, keys: keys.tokens, levels: view.levels || 0, base: view.base || 0,
        overview: view.overview || [1, 1],
        maximum: view.scales[layer][head],
        tile: (level, y, x) => /** @type {any} */ (this.source.tile)(index, layer, head, level, y, x),
      },
      () => this.map.draw(),
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
      const paint = () =>
        shaded.paint((at) => mapData.weight(row, at) || 0, mapData.maximum, this.options.scale, this.options.table);
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
    const text = weight === null ? "…" : formatWeight(weight);
    this.readout.textContent = `“${mapData.query(row)}” (${row}) → “${mapData.key(column)}” (${column}): ${text}`;
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
      rows.map((/** @type {any} */ entry) => ({ ...entry, name: mapData.key(entry.key) })),
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

  #bar() {
    const mapData = /** @type {any} */ (this.mapData);
    const { table, scale } = this.options;
    const stops = Array.from({ length: 9 }, (_, i) => {
      const at = 4 * Math.round((255 * i) / 8);
      return `rgb(${table[at]} ${table[at + 1]} ${table[at + 2]})`;
    });
    const colours = createElement("span", { class: "colours" });
    colours.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
    const half = { linear: 0.5, sqrt: 0.25, log: 0.01 }[/** @type {"linear"} */ (scale)] * mapData.maximum;
    const low = scale === "log" ? mapData.maximum / 10000 : 0;
    this.bar.replaceChildren(
      createElement("span", { text: formatWeight(low) }), colours, createElement("span", { text: formatWeight(mapData.maximum) }),
      createElement("span", { class: "middle", text: `middle colour: ${formatWeight(half)}` }),
    );
  }
}
