// The detail view of one head: its map, its tokens, and the keys with the largest weights for the selected query.

import { errorOfWeight, formatWeight, MASKED } from "./codes.js";
import { titleOf } from "./comparison.js";
import { describeDifference, SIGNS, strongestDifferences } from "./difference.js";
import { createElement, scrollIfHidden } from "./dom.js";
import { groupOfToken, segmentsOf } from "./groups.js";
import { fillLegend } from "./legend.js";
import { Lines } from "./lines.js";
import { loadHead } from "./load.js";
import { MapView } from "./map.js";
import { loadMap } from "./map_data.js";
import { ALL_HEADS, largestPair, rowMaxima, strongest } from "./matrix.js";
import { Picture } from "./picture.js";
import { Predicted } from "./predicted.js";
import { cssColour, headColour } from "./colour.js";
import { FAINT, shadeOf, uniformWeight } from "./range.js";
import { badgeText, explainScore } from "./roles.js";
import { quoted } from "./text_names.js";
import { fillTable, Tokens } from "./tokens.js";

const TOP = 10;
const none = () => {};

/** @typedef {Object} Side
 *  @property {string[]} tokens @property {boolean[]} special
 *  @property {string} text @property {[number, number][]} spans characters of each token in the text
 *  @property {Record<string, (number | string)[]>} units for each unit, such as "words", the group of each token; −1 or "": none
 *  @property {number[]} [segments] index of the text of each token of a pair; −1: none
 *  @property {{grid: [number, number], places: number[], size: [number, number] | null}} [patches] rows and columns of the patches of an
 *    image, the patch of each token, −1: none, and height and width of the image
 *  @property {{name: string, low: number[], high: number[]}} [curve] smallest and largest value of each token
 *  @property {number} [count] number of tokens, if the tokens are the numbers from 0 */

/** The metadata of a view of one input in one model, as the server sends it.
 *  @typedef {Object} View
 *  @property {string} name @property {string} label the model, if the page has several @property {string} model @property {string} kind self, cross or decoder
 *  @property {Side} queries @property {Side | null} keys null: the same as the queries
 *  @property {{name: string, heads: string[]}[]} layers
 *  @property {{exponent: number, normalized: boolean}[][]} ranges of each head
 *  @property {Record<string, import("./roles.js").Role[]>} roles by "layer,head"
 *  @property {{layer: number, head: number, query: number, key: number} | null} [opening] what is shown first
 *  @property {string} [note] a remark shown beside the maps
 *  @property {boolean} [flow] whether the attention flow of single pairs of tokens can be computed
 *  @property {boolean} [predictions] whether predicted tokens are known @property {boolean[]} [values] of which layers the norms of
 *    the values are known
 *  @property {boolean} [live] whether the model can run again
 *  @property {number} [levels] the coarsest level of a tiled map, which has a single tile
 *  @property {number} [base] level of its overview @property {[number, number]} [overview] cells of the overview */

export class Detail {
  /** @param {import("./source.js").Source} source @param {(query: number, key: number) => void} onSelect
   *  @param {(text: string) => void} report shows a message
   *  @param {(summary: import("./range.js").Summary) => import("./range.js").Range} range chooses the colour range
   *  @param {{moved?: () => void, remove?: (head: number) => void, framed?: (tokens: [number[], number[]]) => void,
   *    region?: (name: string) => void, open?: () => void}} [handlers]
   *    `moved` is called when another part of the map is visible, `remove` to remove a head from the lines, `framed` with the
   *    tokens of a frame that was drawn, `region` with that on an image, and `open` to show the tokens of the selected sentences, or to hide them */
  constructor(source, onSelect, report, range, { moved = none, remove = none, framed = none, region = none, open = none } = {}) {
    this.source = source;
    this.onSelect = onSelect;
    this.report = report;
    this.title = createElement("h2", {});
    this.map = new MapView({
      hover: (row, column) => this.#point(row, column, false),
      // A label selects its row with the key of largest weight, or its column with the selected row.
      pick: (row, column, click) => {
        const pair = /** @type {const} */ ([row ?? this.query, column ?? this.#strongestKey(row ?? this.query)]);
        click ? this.#pin(...pair) : this.#point(...pair, true);
      },
      range, moved, open,
      coloured: () => this.#coloured(),
      framed: () => {
        this.#updateReadout();
        framed(this.framedTokens);
      },
      label: "attention map",
    });
    this.queries = new Tokens("queries: select a token", (at) => this.#pin(at, this.#strongestKey(at)), (at) => this.#point(at, this.#strongestKey(at), false));
    this.keys = new Tokens("keys", (at) => this.#pin(this.query, at), (at) => this.#point(this.query, at, false));
    this.readout = createElement("output", { class: "readout", "aria-live": "polite" });
    this.bar = createElement("div", { class: "bar" });
    this.top = createElement("div", { class: "top" });
    this.predicted = new Predicted(source);
    this.lines = new Lines((row, column) => this.#point(row, column, false), (row, column) => this.#pin(row, column), remove);
    this.picture = new Picture((patch) => this.#patch(patch, false), (patch) => this.#patch(patch, true), region);
    this.beside = createElement("div", { class: "beside" }, [this.picture.element, this.lines.element, this.top, this.predicted.element]);
    this.pin = createElement("button", { class: "pin", hidden: true, onclick: () => this.release() });
    this.badges = createElement("ul", { class: "badges", "aria-label": "roles of this head" });
    this.digits = createElement("button", {
      class: "flow", text: "All digits", onclick: () => {
        const { computed, selection: { token, keyToken } } = this;
        const weight = /** @type {any} */ (source.weight)(.../** @type {number[]} */ (computed), token, keyToken);
        this.#addNumber("weight", weight.then((/** @type {string} */ text) => `in float32: ${text.replace(/^-/, "−")}`));
      },
      title: "The weight of the selected pair as it is computed in float32. Its last two or three digits depend on rounding in the layers before. Click a cell first to keep it.",
    });
    this.opener = createElement("button", { class: "flow", onclick: open });
    this.flow = createElement("button", { class: "flow", text: "Flow of this pair", onclick: () => {
      const flow = /** @type {any} */ (source.flow)(this.index, this.query, this.key);
      this.#addNumber("flow", flow.then((/** @type {number} */ number) => `flow through all layers: ${formatWeight(number)}`));
    } });
    this.element = createElement("section", { class: "detail" }, [
      this.title, this.badges, createElement("div", { class: "line" }, [this.readout, this.opener, this.digits, this.flow, this.pin]),
      createElement("div", { class: "side" }, [createElement("div", { class: "sheet" }, [this.map.canvas, this.bar, this.queries.element, this.keys.element]), this.beside]),
    ]);
    this.query = 0;
    this.key = 0;
    this.matrix = /** @type {import("./load.js").Loaded | null} */ (null);
    /** the tokens of the rows and of the columns @type {[number[][], number[][]]} */
    this.groups = [[], []];
    /** the heads whose lines are shown in place of the map @type {{matrix: import("./load.js").Loaded, name: string}[]} */
    this.overlaid = [];
    this.image = /** @type {import("./map_data.js").ShownImage | null} */ (null);
    /** @type {(import("./map.js").MapData & {loadRow?: (row: number, first: number, last: number) => Promise<void>}) | null} */
    this.mapData = null;
    /** the keys of largest weight for a query of a tiled map @type {((query: number) => Promise<[number, number][]>) | null} */
    this.loadRow = null;
    this.view = /** @type {View | null} */ (null);
    this.request = 0;
    // The pinned pair is shown again after the pointer has left the map or the words.
    for (const part of [this.map.canvas, this.queries.element, this.keys.element, this.lines.canvas, this.picture.canvas]) {
      part.addEventListener("pointerleave", () => {
        if (this.map.pinned === null || !this.mapData) return;
        this.map.point(this.query, this.key);
        this.#updateReadout();
      });
    }
    this.element.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.release();
    });
  }

  /** Select a pair of tokens, so that pointing at another row does not change the query. The same pair again, or Escape,
   *  releases it. @param {number} row @param {number} column */
  #pin(row, column) {
    if (this.map.pinned === row && row === this.query && column === this.key) return this.release();
    this.#point(row, column, true);
    this.map.pinned = this.query;
    this.#showPin();
    this.#drawLines();
  }

  /** Let the query follow the pointer again. */
  release() {
    this.map.pinned = this.map.framed = null;
    this.#showPin();
    this.map.draw();
    this.#drawLines();
    if (!this.mapData) return;
    this.#updateReadout();
    this.onSelect(this.query, this.key);
  }

  #showPin() {
    this.pin.hidden = this.map.pinned === null;
    const what = this.mapData ? `${quoted(this.mapData.queries[this.query])} is pinned · ` : "";
    this.pin.setAttribute("aria-label", `${what}release`);
    this.pin.replaceChildren(createElement("span", { class: "what", text: what }), "release");
  }

  /** Show one head, or the mean of a layer, or the difference to another one.
   *  @param {View} view @param {number} index of the view @param {number} layer @param {number} head
   *  @param {any} options `subtract`: view, index, layer and head of the map that is subtracted; `overlay`: layers and heads
   *    whose lines are shown in place of the map; `selected` returns the tokens of the selected pair and the
   *    frame of that moment: a map that was asked for before a frame was drawn must not remove it */
  async show(view, index, layer, head, options) {
    const request = ++this.request;
    this.options = options;
    const other = options.subtract;
    this.weighted = Boolean(options.values && view.values?.[layer]);
    const heads = /** @type {[number, number][]} */ (view.levels ? [] : options.overlay ?? []);
    const names = (this.titled = titleOf({ view, index, layer, head }, other));
    this.head = names.short;
    if (heads.length) names.parts[0].head = ` · lines of ${heads.length === 1 ? "one head" : `${heads.length} heads`}`;
    // The name of a head stays in one line.
    const parts = names.parts.flatMap(({ sign, text, head }, i) =>
      [`${i ? " " : ""}${sign}`, createElement("span", { class: "of", text: `${text}${text ? " · " : ""}` }), createElement("span", { class: "whole", text: head.replace(/^ · /, "") })]);
    this.title.classList.toggle("minus", Boolean(names.parts[1]?.text));
    this.title.replaceChildren(...parts, this.weighted ? " · × norm of the value" : "");
    const roles = other || heads.length ? [] : view.roles[`${layer},${head}`] || [];
    this.badges.replaceChildren(...roles.map((role) => createElement("li", { class: "badge", text: badgeText(role), title: explainScore(role) })));
    this.badges.hidden = roles.length === 0;
    this.map.canvas.setAttribute("aria-label", `attention map of ${names.short}`);
    // The texts of a pair whose attention is shown; undefined: both.
    const [from, to] = segmentsOf(view, options.pairs);
    this.element.setAttribute("aria-busy", "true");
    const [shown, ...overlaid] = await Promise.all([
      loadMap(this.source, { view, index, layer, head }, options, () => this.map.refresh()),
      ...heads.map(([l, h]) => loadHead(this.source, view, index, l, h, options)),
    ]);
    if (request !== this.request) return;
    Object.assign(this, shown);
    this.overlaid = overlaid.map((matrix, i) => ({ matrix, name: titleOf({ view, index, layer: heads[i][0], head: heads[i][1] }).short }));
    this.element.classList.toggle("overlaid", heads.length > 0);
    const self = !view.keys && from === to;
    this.keys.element.hidden = self;
    // The pairs of flow are single tokens, not merged words.
    this.flow.hidden = !view.flow || !this.source.flow || options.unit !== "tokens" || options.hide || from !== undefined || other;
    this.index = index;
    this.view = view;
    // The weights of a model, not those of maps over several heads.
    this.computed = view.pairs && this.source.weight && view.layers[layer].name !== ALL_HEADS && head >= 0 && !other && !this.weighted
      ? [index, layer, head] : null;
    this.picture.element.hidden = !this.matrix || !this.image;
    this.lines.element.hidden = !this.matrix || (Boolean(this.image) && !heads.length);
    const { query, key, frame } = options.selected();
    [this.query, this.key] = this.#pairOf(query, key);
    if (this.map.pinned !== null) this.map.pinned = this.query;
    this.self = self;
    if (!this.map.corner) this.map.framed = this.#frameOf(frame);
    this.map.reduction = options.reduction;
    this.map.palette = options.palette;
    this.map.show(this.mapData);
    this.#point(this.query, this.key, true, false);
    this.element.removeAttribute("aria-busy");
  }

  /** Select a row and a column. @param {number} row @param {number} [column] none: that of the largest weight */
  go(row, column = this.#strongestKey(row)) {
    this.#point(row, column, true, false);
  }

  /** Return the row and the column of a pair of tokens of the text. @param {number[]} tokens */
  #pairOf(...tokens) {
    return tokens.map((token, axis) => groupOfToken(this.groups[axis], token));
  }

  /** Select a pair of tokens of the text. @param {number} query @param {number} [key] none: that of the largest weight */
  goToken(query, key) {
    const [row, column] = this.#pairOf(query, key ?? 0);
    this.go(row, key === undefined ? undefined : column);
  }

  /** Return the column of the largest weight of a row; of a map in tiles, the selected column. @param {number} row */
  #strongestKey(row) {
    return (this.matrix && strongest(this.matrix, row, 1)[0]?.key) ?? this.key;
  }

  /** @param {number} row @param {number} column @param {boolean} select false: the pointer hovers @param {boolean} [notify] call `onSelect` */
  #point(row, column, select, notify = true) {
    const mapData = this.mapData;
    if (!mapData) return;
    // While another text is loading, its indices may not exist in the current map.
    row = Math.max(0, Math.min(mapData.rows - 1, row));
    column = Math.max(0, Math.min(mapData.columns - 1, column));
    if (this.map.pinned !== null && !select) {
      // The pinned pair stays; only the readout follows the pointer.
      this.map.point(row, column);
      this.#updateReadout(row, column);
      return;
    }
    const changed = row !== this.query;
    if (changed && this.map.pinned !== null) this.map.pinned = row;
    this.query = row;
    this.key = column;
    this.map.point(row, column, select);
    this.#updateReadout();
    this.queries.build(mapData.queries, row, this.options.maxTokens);
    const shaded = this.self ? this.queries : this.keys;
    if (!this.self) this.keys.build(mapData.keys, column, this.options.maxTokens);
    if (changed || select) {
      this.#paintTokens();
      this.#table(row).catch((/** @type {Error} */ error) => this.report(`This row could not be loaded: ${error.message}`));
      const { view, index } = this;
      if (view && index !== undefined) {
        const { token, name } = this.selection;
        this.predicted.show(view, index, token, name).catch((/** @type {Error} */ error) => this.report(`The predictions could not be loaded: ${error.message}`));
      }
      // A tiled map loads the weights of a query when it is selected.
      if (select && mapData.loadRow) {
        const { first, shown } = shaded;
        Promise.all([mapData.loadRow(row, first, first + shown - 1), mapData.loadRow(row, column, column)])
          .then(() => {
            if (mapData !== this.mapData || row !== this.query) return;
            this.#paintTokens();
            this.#updateReadout();
          })
          .catch((/** @type {Error} */ error) => this.report(`These weights could not be loaded: ${error.message}`));
      }
    }
    this.queries.select(row);
    if (!this.self) this.keys.select(column);
    this.#drawLines();
    this.#showPin();
    if (select && notify) this.onSelect(row, column);
  }

  /** Scroll the page to the map if less than half of it is visible. */
  reveal() {
    scrollIfHidden(this.map.canvas, this.element);
  }

  /** The sentences of the selected query and key, as the option `opened` lists them. */
  get selectedSentences() {
    const { view, selection: { token, keyToken } } = this;
    if (!view) return [];
    const own = [`q${view.queries.units.sentences?.[token] ?? -1}`, `k${(view.keys || view.queries).units.sentences?.[keyToken] ?? -1}`];
    // Queries and keys of one text are opened together.
    return (view.keys ? own : own.map((one) => one.replace("k", "q"))).filter((one) => !one.endsWith("-1"));
  }

  /** The first tokens of a row and a column, which are their positions in the texts. */
  tokens(row = this.query, column = this.key) {
    const [rows, columns] = this.groups;
    return { query: rows[row]?.[0] ?? row, key: columns[column]?.[0] ?? column };
  }

  /** The tokens of the selected pair in the texts, of merged words the last ones, and their names. */
  get selection() {
    const { groups: [rows, columns], mapData, query, key } = this;
    return {
      token: rows[query]?.at(-1) ?? query, keyToken: columns[key]?.at(-1) ?? key,
      name: mapData?.queries[query] ?? "", keyName: mapData?.keys[key] ?? "",
    };
  }

  /** Return the rows and columns of the tokens of a frame, such as "4-9,0-3". @param {string} [frame] @returns {any} */
  #frameOf(frame) {
    if (!frame) return null;
    const [[top, bottom], [left, right]] = frame.split(",").map((side, axis) => side.split("-").map((token) => groupOfToken(this.groups[axis], Number(token))));
    return [top, left, bottom - top + 1, right - left + 1];
  }

  /** The tokens of the queries and keys in the frame. @returns {[number[], number[]]} */
  get framedTokens() {
    const [top, left, rows, columns] = this.map.framed ?? [0, 0, 0, 0];
    return [this.groups[0].slice(top, top + rows).flat(), this.groups[1].slice(left, left + columns).flat()];
  }

  /** Return the weight from the queries in a frame to its keys as text: mean over the queries, sum over the keys; of a single pair of a
   *  map in tiles its weight, and otherwise "" if the weights are not loaded. @param {[number, number, number, number]} frame */
  weightIn([top, left, rows, columns]) {
    const { matrix } = this;
    const mapData = /** @type {import("./map.js").MapData} */ (this.mapData);
    if (rows * columns === 1) {
      const weight = mapData.weight(top, left);
      return weight === null ? "" : formatWeight(weight, mapData.error(top, left));
    }
    if (!matrix) return "";
    let [sum, error, queries] = [0, 0, 0];
    for (let row = top; row < top + rows; row++) {
      const count = matrix.rows[row].length;
      queries += count;
      for (let column = left; column < left + columns; column++) {
        const weight = matrix.weights[row * matrix.keys.length + column];
        if (weight === MASKED) continue;
        sum += count * weight;
        error += count * errorOfWeight(weight, matrix.error(row, column));
      }
    }
    return formatWeight(sum / queries, error / queries);
  }

  /** Show the selected pair and its weight as text. */
  #updateReadout(row = this.query, column = this.key) {
    const mapData = /** @type {any} */ (this.mapData);
    const weight = mapData.weight(row, column);
    const framed = this.map.framed ? this.weightIn(this.map.framed) : "";
    let text = weight === null ? "…" : formatWeight(weight, mapData.error(row, column));
    const parts = this.matrix?.parts;
    if (parts) text = describeDifference(parts, row, column)?.sum ?? text;
    const at = this.tokens(row, column);
    this.readout.textContent = `${quoted(mapData.queries[row])} (${at.query}) → ${quoted(mapData.keys[column])} (${at.key}): ${text}${framed && `; frame: ${framed}`}`;
    const sentences = this.selectedSentences;
    this.opener.hidden = this.options.unit !== "sentences" || !this.matrix || !sentences.length || Boolean(this.view?.levels);
    this.opener.textContent = sentences.every((one) => this.options.opened.split(".").includes(one)) ? "Close these sentences" : "Open these sentences";
    // Merged words have no weight of their own.
    const single = this.matrix && this.groups[0][this.query].length === 1 && this.groups[1][this.key].length === 1;
    this.digits.hidden = !this.computed || !single || mapData.weight(this.query, this.key) === MASKED;
  }

  /** Add a number of the selected pair to the readout. @param {string} what @param {Promise<string>} number that is computed */
  async #addNumber(what, number) {
    const { query, key, request } = this;
    try {
      const text = await number;
      if (query !== this.query || key !== this.key || request !== this.request) return;
      this.#updateReadout();
      this.readout.textContent += `; ${text}`;
    } catch (error) {
      this.report(`The ${what} could not be computed: ${error instanceof Error ? error.message : error}`);
    }
  }

  /** @param {number} row */
  async #table(row) {
    const { request, matrix } = this;
    const mapData = /** @type {any} */ (this.mapData);
    const rows = matrix ? (matrix.parts ? strongestDifferences(/** @type {any} */ (matrix), row, TOP) : strongest(matrix, row, TOP))
      : (await /** @type {any} */ (this.loadRow)(row)).map((/** @type {[number, number]} */ [key, weight]) => ({ key, weight }));
    if (request !== this.request || row !== this.query) return;
    const query = quoted(mapData.queries[row]);
    fillTable(
      this.top,
      rows.map((/** @type {any} */ entry) => ({ ...entry, name: mapData.keys[entry.key], position: this.tokens(row, entry.key).key, error: mapData.error(row, entry.key, entry.weight) })),
      (key) => this.#point(row, key, true),
      this.matrix?.parts ? ["difference", `${query}: largest differences`]
        : [this.weighted ? "weight × norm" : "weight", `${query}${this.overlaid.length ? ` in ${this.head}` : ""} attends to`],
    );
  }

  /** Shade the tokens by their weights for the selected query. */
  #paintTokens() {
    const { mapData } = this;
    if (!mapData) return;
    const shaded = this.self ? this.queries : this.keys;
    if (this.map.range) shaded.paint((at) => mapData.weight(this.query, at) ?? 0, shadeOf(this.map.range), this.map.colours);
  }

  /** Select a patch of the image as query, or as key if the queries are no patches. @param {number} patch @param {boolean} click */
  #patch(patch, click) {
    const { image } = this;
    if (!image) return;
    const axis = image.rows.grid ? image.rows : image.columns;
    const at = axis.patches.indexOf(patch);
    const pair = /** @type {[number, number]} */ (axis === image.rows ? [at, this.key] : [this.query, at]);
    if (at >= 0) click ? this.#pin(...pair) : this.#point(...pair, false);
  }

  /** Draw the weights on the image, and the lines between words, in the colours of the map. */
  #drawLines() {
    const { matrix, image, overlaid, map: { range } } = this;
    if (matrix && image && range) this.picture.show(image, matrix, this.query, this.key, shadeOf(range));
    if (!matrix || this.lines.element.hidden || !(range || overlaid.length)) return;
    const width = matrix.keys.length;
    const common = { queries: matrix.queries, keys: matrix.keys, query: this.query, key: this.key, palette: this.map.colours, pinned: this.map.pinned !== null };
    const weightOf = (/** @type {import("./load.js").Loaded} */ { weights }) => (/** @type {number} */ row, /** @type {number} */ column) => weights[row * width + column];
    if (overlaid.length) {
      const { counts } = /** @type {any} */ (this.mapData);
      const shares = overlaid.every((one) => one.matrix.normalized);
      // Shares of 1 from twice the weight of uniform attention, and other weights from a tenth of the largest.
      const top = shares ? 1 : Math.max(...overlaid.map((one) => Math.abs(weightOf(one.matrix)(...largestPair(one.matrix)))));
      this.lines.show({
        ...common, top, least: shares ? Math.min(0.25, 2 * uniformWeight(counts).uniform) : 0.1,
        heads: overlaid.map(({ matrix, name }, i) => ({
          name, weight: weightOf(matrix), error: matrix.error, share: (weight) => weight / top, colour: () => headColour(i, this.options.dark),
        })),
      });
      return;
    }
    const shade = shadeOf(/** @type {import("./range.js").Range} */ (range));
    this.maxima = this.maxima?.weights === matrix.weights ? this.maxima : { weights: matrix.weights, rows: rowMaxima(matrix.weights, width) };
    this.lines.show({
      ...common, least: FAINT, top: 1,
      heads: [{
        name: "", weight: weightOf(matrix), error: matrix.error, share: (weight, row) => shade(weight, this.maxima.rows[row]),
        colour: (share) => cssColour(common.palette, Math.sign(share) * Math.max(0.55, Math.abs(share))),
      }],
    });
  }

  /** Update the legend and the tokens to the colours of the map. */
  #coloured() {
    if (!this.map.range || !this.options) return;
    fillLegend(this.bar, this.map.range, this.map.colours, this.matrix?.parts ? SIGNS : "");
    this.#paintTokens();
    this.#drawLines();
  }
}
