// One head of one text: its map, its words, and the strongest keys of the chosen query.

import { make, written } from "./dom.js";
import { MapView } from "./map.js";
import { Steps } from "./steps.js";
import { decode, groupsOf, largest, merge, nameOf, reduce, strongest } from "./matrix.js";
import { Tiles } from "./tiles.js";
import { fillTable, Tokens } from "./tokens.js";

const TOP = 10;

/** @typedef {Object} Side
 *  @property {string[]} tokens @property {string[]} pieces @property {number[]} words @property {boolean[]} special
 *  @property {number} [count] of words that are their numbers alone */

/** What the page knows of a text in a model.
 *  @typedef {Object} View
 *  @property {string} name @property {string} model @property {string} kind self or cross
 *  @property {Side} queries @property {Side | null} keys null: the same as the queries
 *  @property {{name: string, heads: string[]}[]} layers
 *  @property {number[][]} scales the largest weight of each head
 *  @property {Record<string, {role: string, score: number, baseline: number}[]>} roles by "layer,head"
 *  @property {string} [note] what a reader must know of these maps
 *  @property {boolean} [steps] queries were generated one after the other
 *  @property {number} [levels] of a long map: the coarsest level, which is one tile
 *  @property {number} [base] the level of its overview @property {[number, number]} [overview] its cells */

export class Detail {
  /** @param {import("./source.js").Source} source @param {(query: number, key: number) => void} moved
   *  @param {(text: string) => void} say */
  constructor(source, moved, say) {
    this.source = source;
    this.moved = moved;
    this.say = say;
    this.title = make("h2", {});
    this.map = new MapView({
      hover: (row, column) => this.#point(row, column, false),
      pick: (row, column) => this.#point(row, column, true),
      label: "attention map",
    });
    this.queries = new Tokens("queries: choose a word", (at) => this.#point(at, this.key, true), (at) => this.#point(at, this.key, false));
    this.keys = new Tokens("keys", (at) => this.#point(this.query, at, true), (at) => this.#point(this.query, at, false));
    this.readout = make("output", { class: "readout", "aria-live": "polite" });
    this.bar = make("div", { class: "bar", "aria-hidden": "true" });
    this.top = make("div", { class: "top" });
    this.badges = make("ul", { class: "badges", "aria-label": "roles of this head" });
    this.steps = new Steps((at) => this.#point(at, this.key, true));
    this.element = make("section", { class: "detail" }, [
      this.title, this.badges, this.steps.element, this.readout,
      make("div", { class: "side" }, [make("div", { class: "sheet" }, [this.map.canvas, this.bar]), this.top]),
      this.queries.element, this.keys.element,
    ]);
    this.query = 0;
    this.key = 0;
    /** @type {import("./matrix.js").Matrix | null} */
    this.matrix = null;
    this.asked = 0;
  }

  /** Show a head.
   *  @param {View} view @param {number} index of the view @param {number} layer @param {number} head
   *  @param {any} options */
  async show(view, index, layer, head, options) {
    const turn = ++this.asked;
    this.options = options;
    const place = view.layers[layer];
    this.title.textContent = `${view.name} · ${place.name}, ${place.heads[head]}`;
    this.#badges(view.roles[`${layer},${head}`] || []);
    this.map.canvas.setAttribute("aria-label", `attention map of ${place.name}, ${place.heads[head]}`);
    const keys = view.keys || view.queries;
    this.element.setAttribute("aria-busy", "true");
    if (view.levels) {
      await this.#showLong(view, index, layer, head, turn);
    } else {
      const codes = await this.source.map(index, layer, head);
      if (turn !== this.asked) return;
      const rows = groupsOf(view.queries, options.words, options.hide);
      const columns = groupsOf(keys, options.words, options.hide);
      const weights = merge(decode(codes, view.scales[layer][head]), keys.tokens.length, rows, columns);
      const matrix = {
        weights,
        queries: rows.map((group) => nameOf(view.queries, group)),
        keys: columns.map((group) => nameOf(keys, group)),
        most: largest(weights),
      };
      this.matrix = matrix;
      const width = matrix.keys.length;
      this.sheet = {
        query: (/** @type {number} */ row) => matrix.queries[row],
        key: (/** @type {number} */ column) => matrix.keys[column],
        rows: matrix.queries.length, columns: width, most: matrix.most,
        spots: (/** @type {any} */ part, /** @type {number} */ high, /** @type {number} */ wide, /** @type {any} */ how) =>
          reduce(weights, width, part, high, wide, how),
        weight: (/** @type {number} */ row, /** @type {number} */ column) => weights[row * width + column],
      };
    }
    const self = !view.keys;
    this.keys.element.hidden = self;
    this.steps.element.hidden = !view.steps;
    this.names = { queries: this.#names("query"), keys: this.#names("key") };
    this.query = Math.min(this.query, this.sheet.rows - 1);
    this.key = Math.min(this.key, this.sheet.columns - 1);
    this.self = self;
    this.map.how = options.how;
    this.map.scale = options.scale;
    this.map.table = options.table;
    this.map.show(this.sheet);
    this.#bar();
    this.#point(this.query, this.key, true, false);
    this.element.removeAttribute("aria-busy");
  }

  /** @param {View} view @param {number} index @param {number} layer @param {number} head @param {number} turn */
  async #showLong(view, index, layer, head, turn) {
    const keys = view.keys || view.queries;
    const tiles = new Tiles(
      {
        queries: view.queries.tokens, keys: keys.tokens, levels: view.levels || 0, base: view.base || 0,
        overview: view.overview || [1, 1],
        most: view.scales[layer][head],
        tile: (level, y, x) => /** @type {any} */ (this.source.tile)(index, layer, head, level, y, x),
      },
      () => this.map.draw(),
    );
    await tiles.first();
    if (turn !== this.asked) return;
    this.matrix = null;
    this.sheet = tiles.sheet;
    this.longRow = (/** @type {number} */ query) => /** @type {any} */ (this.source.row)(index, layer, head, query);
  }

  /** @param {"query" | "key"} which */
  #names(which) {
    const sheet = /** @type {any} */ (this.sheet);
    const count = which === "query" ? sheet.rows : sheet.columns;
    return Array.from({ length: count }, (_, i) => sheet[which](i));
  }

  /** Go to a pair of words from outside.
   *  @param {number} query @param {number} key */
  go(query, key) {
    if (!this.sheet) return;
    this.#point(Math.min(query, this.sheet.rows - 1), Math.min(key, this.sheet.columns - 1), true, false);
  }

  /** @param {number} row @param {number} column @param {boolean} stay @param {boolean} [tell] */
  #point(row, column, stay, tell = true) {
    const sheet = this.sheet;
    const names = this.names;
    if (!sheet || !names) return;
    // Another text may be on its way, and its place is not one of this.
    row = Math.max(0, Math.min(sheet.rows - 1, row));
    column = Math.max(0, Math.min(sheet.columns - 1, column));
    const other = row !== this.query;
    this.query = row;
    this.key = column;
    this.map.point(row, column, stay);
    this.steps.show(row, sheet.rows, sheet.query(row));
    this.#say();
    this.queries.build(names.queries, row, this.options.most);
    const shaded = this.self ? this.queries : this.keys;
    if (!this.self) this.keys.build(names.keys, column, this.options.most);
    if (other || stay) {
      const paint = () =>
        shaded.paint((at) => sheet.weight(row, at) || 0, sheet.most, this.options.scale, this.options.table);
      paint();
      this.#table(row);
      // Of a long map, the weights of a query come when somebody stays there.
      if (stay && sheet.near) {
        const { first, shown } = shaded;
        Promise.all([sheet.near(row, first, first + shown - 1), sheet.near(row, column, column)])
          .then(() => {
            if (sheet !== this.sheet || row !== this.query) return;
            paint();
            this.#say();
          })
          .catch((/** @type {Error} */ error) => this.say(`These weights could not be loaded: ${error.message}`));
      }
    }
    this.queries.choose(row);
    if (!this.self) this.keys.choose(column);
    if (stay && tell) this.moved(row, column);
  }

  /** The pair under the cursor in words. */
  #say() {
    const sheet = /** @type {any} */ (this.sheet);
    const [row, column] = [this.query, this.key];
    const weight = sheet.weight(row, column);
    const said = weight === null ? "…" : written(weight);
    this.readout.textContent = `“${sheet.query(row)}” (${row}) → “${sheet.key(column)}” (${column}): ${said}`;
  }

  /** @param {number} row */
  async #table(row) {
    const sheet = /** @type {any} */ (this.sheet);
    let rows;
    if (this.matrix) rows = strongest(this.matrix, row, TOP);
    else {
      const turn = this.asked;
      let found;
      try {
        found = await /** @type {any} */ (this.longRow)(row);
      } catch (error) {
        this.say(`This row could not be loaded: ${error instanceof Error ? error.message : error}`);
        return;
      }
      if (turn !== this.asked || row !== this.query) return;
      rows = found.map((/** @type {[number, number]} */ [key, weight]) => ({ key, weight }));
    }
    fillTable(
      this.top, sheet.query(row),
      rows.map((/** @type {any} */ entry) => ({ ...entry, name: sheet.key(entry.key) })),
      (key) => this.#point(row, key, true),
    );
  }

  /** @param {{role: string, score: number, baseline: number}[]} roles */
  #badges(roles) {
    this.badges.replaceChildren(
      ...roles.map(({ role, score, baseline }) =>
        make("li", { class: "badge", text: `${role} ${score.toFixed(2)} (baseline ${baseline.toFixed(2)})` })),
    );
    this.badges.hidden = roles.length === 0;
  }

  #bar() {
    const sheet = /** @type {any} */ (this.sheet);
    const { table, scale } = this.options;
    const stops = Array.from({ length: 9 }, (_, i) => {
      const at = 4 * Math.round((255 * i) / 8);
      return `rgb(${table[at]} ${table[at + 1]} ${table[at + 2]})`;
    });
    const colours = make("span", { class: "colours" });
    colours.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
    const half = { linear: 0.5, sqrt: 0.25, log: 0.01 }[/** @type {"linear"} */ (scale)] * sheet.most;
    const low = scale === "log" ? sheet.most / 10000 : 0;
    this.bar.replaceChildren(
      make("span", { text: written(low) }), colours, make("span", { text: written(sheet.most) }),
      make("span", { class: "middle", text: `middle ${written(half)}` }),
    );
  }
}
