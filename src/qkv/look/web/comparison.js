// What the shown head is compared with: another text, model, layer or head, side by side or as a difference.

import { alignViews } from "./align.js";
import { formatWeight, formatWeights } from "./codes.js";
import { createButton, createElement, createSelect, fillSelect } from "./dom.js";
import { MEAN_HEAD } from "./load.js";
import { ALL_HEADS } from "./matrix.js";
import { quoted } from "./text_names.js";

/** Number of tokens without counterpart that are listed at once. */
const FEW_TOKENS = 12;
/** Number of heads that are listed as those that differ most. */
const LISTED = 10;
/** What corresponds to each other before it is loaded. @type {any} */
const NOTHING = { pairs: [], others: [[], []], sides: [{ tokens: [] }, { tokens: [] }] };

/** @typedef {Object} Compared the fields of the state that this module reads and changes
 *  @property {number} view @property {number} layer @property {number} head @property {number} compare −1: nothing
 *  @property {string} other layer and head that are compared, such as "3,1"; empty: the same as the shown one
 *  @property {string} how "map", "lines" or "difference" @property {boolean} mean compare the means over the heads of layers
 *  @property {string} unit @property {boolean} hide @property {string} [pairs] @property {string} [opened] */

/** Return the heads of a view as options of a list. @param {any} view @param {(layer: number, head: number) => string} [note] added to a name
 *  @returns {[string, string][]} */
export function headOptions(view, note = () => "") {
  return view.layers.flatMap((/** @type {any} */ layer, /** @type {number} */ l) =>
    layer.heads.map((/** @type {string} */ head, /** @type {number} */ h) => [`${l},${h}`, `${layer.name}, ${head}${note(l, h)}`]));
}

export class Comparison {
  /** @param {any} meta @param {import("./source.js").Source} source @param {Compared} state
   *  @param {{refresh: () => void, select: (layer: number, head: number) => void,
   *    selectPair: (layer: number, head: number, query: number, key: number) => void, report: (text: string) => void}} handlers */
  constructor(meta, source, state, handlers) {
    this.meta = meta;
    this.source = source;
    this.state = state;
    this.handlers = handlers;
    this.list = createElement("div", { class: "differing" });
    this.pairs = createElement("div", { class: "differing-pairs" });
    /** the head of the compared text */
    this.element = createSelect("Its head", [], "", (value) => { state.other = value; handlers.refresh(); });
    this.others = createElement("details", { class: "unaligned" });
    const ask = createButton("Which heads differ most?", () => this.#rank());
    this.ranking = createElement("section", { "aria-label": "heads that differ" }, [ask, this.list, this.pairs]);
    this.request = 0;
    /** from `Source.aligned`, by the indices of two views @type {Map<string, number[][][]>} */
    this.places = new Map();
    /** the texts whose heads are listed */
    this.listed = "";
  }

  /** The view, layer and head to compare with, within their ranges. */
  get target() {
    const { state, meta } = this;
    const view = meta.views[state.compare];
    const [layer, head] = state.other ? state.other.split(",").map(Number) : [state.layer, state.head];
    const last = Math.min(layer || 0, view.layers.length - 1);
    return { view, index: state.compare, layer: last, head: this.averages ? MEAN_HEAD : Math.min(head || 0, view.layers[last].heads.length - 1) };
  }

  /** Whether both maps are dense, as differences and means must be, not maps of tiles. */
  get dense() {
    const { state, meta } = this;
    return !meta.views[state.view].levels && !meta.views[state.compare].levels;
  }

  /** The groups of queries and of keys that correspond to each other in the shown and the compared text. */
  get aligned() {
    const { state: { view, compare, unit, hide, pairs, opened }, meta: { views } } = this;
    const key = JSON.stringify([view, compare, unit, hide, pairs, opened]);
    const places = this.places.get(`${view},${compare}`);
    if (this.alignment?.key !== key && places) this.alignment = { key, ...alignViews(views[view], views[compare], places, { unit, hide, pairs, opened }) };
    return this.alignment?.key === key ? this.alignment : { rows: NOTHING, columns: NOTHING };
  }

  /** Load the tokens that correspond to each other in the shown and the compared text. */
  async load() {
    const { view, compare } = this.state;
    const key = `${view},${compare}`;
    if (compare < 0 || this.places.has(key)) return;
    const { queries, keys } = this.meta.views[view];
    const found = view === compare ? [queries, keys || queries].map(({ tokens }) => [tokens, tokens].map((all) => [...all.keys()]))
      : await this.source.aligned(Math.min(view, compare), Math.max(view, compare));
    this.places.set(key, view <= compare ? found : found.map((/** @type {number[][]} */ [a, b]) => [b, a]));
    if (this.state.compare >= 0) this.#listOthers();
  }

  /** The queries and keys that correspond to a pair of tokens in the compared text. @param {{query: number, key: number}} tokens */
  counterpart({ query, key }) {
    const [row, column] = [[this.aligned.rows, query], [this.aligned.columns, key]].map(([{ pairs }, token]) => pairs.find(([a]) => a.includes(token))?.[1]);
    return row && { query: row[0], ...(column ? { key: column[0] } : {}) };
  }

  /** List the tokens of both texts that correspond to none. */
  #listOthers() {
    const { state, meta, aligned: { rows, columns } } = this;
    const views = [state.view, state.compare].map((i) => meta.views[i]);
    const axes = views.some((view) => view.keys) ? [rows, columns] : [rows];
    const lists = views.map((view, side) => ({ view, tokens: axes.flatMap(({ others, sides }) => others[side].map((i) => quoted(sides[side].tokens[i]))) }));
    const count = lists.reduce((sum, { tokens }) => sum + tokens.length, 0);
    this.others.hidden = !count;
    this.others.toggleAttribute("open", count <= FEW_TOKENS);
    this.others.replaceChildren(
      createElement("summary", { text: `${count === 1 ? "1 token has" : `${count} tokens have`} no counterpart` }),
      ...lists.filter(({ tokens }) => tokens.length).map(({ view, tokens }) => createElement("p", { text: `${view.label || view.name}: ${tokens.join(" ")}` })),
    );
  }

  /** Whether the difference is shown. */
  get subtracts() {
    return this.state.compare >= 0 && this.state.how === "difference" && this.dense;
  }

  /** Whether the means of the layers are shown. */
  get averages() {
    return this.state.compare >= 0 && this.state.mean && this.dense;
  }

  /** The head of the shown view: the selected one, or the mean of its layer. */
  get head() {
    return this.averages ? MEAN_HEAD : this.state.head;
  }

  /** The layer and head of the shown map, and of the map that is subtracted from it, for the name of a file. */
  get fileName() {
    const { state } = this;
    const place = (/** @type {number} */ layer, /** @type {number} */ head) => `${layer}-${head === MEAN_HEAD ? "mean" : head}`;
    const shown = place(state.layer, this.head);
    if (!this.subtracts) return shown;
    const { index, layer, head } = this.target;
    return `${shown}-minus-${index === state.view ? "" : `text-${index + 1}-`}${place(layer, head)}`;
  }

  /** How the maps may be shown, as options of a list. @returns {[string, string][]} */
  get views() {
    const { state, meta } = this;
    if (state.compare < 0) return [["map", "map"], ...(meta.views[state.view].levels ? [] : [/** @type {[string, string]} */ (["lines", "lines of several heads"])])];
    const all = /** @type {[string, string][]} */ ([["map", "side by side"], ["difference", "difference"], ["map mean", "means of the layers"], ["difference mean", "difference of the means"]]);
    return this.dense ? all : all.slice(0, 1);
  }

  /** The option that is shown. */
  get shown() {
    const { compare, how } = this.state;
    return `${how !== (compare < 0 ? "difference" : "lines") ? how : "map"}${this.averages ? " mean" : ""}`;
  }

  /** Update the controls to the compared view. */
  build() {
    const { state, meta } = this;
    this.element.hidden = this.ranking.hidden = this.others.hidden = state.compare < 0;
    if (state.compare < 0) return;
    this.#listOthers();
    const view = meta.views[state.compare];
    const heads = /** @type {[string, string][]} */ ([["", "the same"], ...headOptions(view)]);
    if (!heads.some(([value]) => value === state.other)) state.other = "";
    fillSelect(this.element, heads, state.other);
    const counts = [view, meta.views[state.view]].map((one) =>
      one.layers.filter((/** @type {any} */ layer) => layer.name !== ALL_HEADS).map((/** @type {any} */ layer) => layer.heads.length).join());
    this.ranking.hidden = !this.source.differences || state.compare === state.view || Boolean(state.other) || counts[0] !== counts[1] || !this.dense;
    // The list stays while its texts are compared.
    const texts = `${state.view},${state.compare}`;
    if (texts === this.listed) return;
    this.listed = texts;
    this.request++;
    this.list.replaceChildren();
    this.pairs.replaceChildren();
  }

  /** List the heads that differ most between the two texts. */
  async #rank() {
    const { state, meta, handlers } = this;
    const request = ++this.request;
    try {
      const [found, pairs] = await /** @type {any} */ (this.source.differences)(state.view, state.compare);
      if (request !== this.request || state.compare < 0) return;
      const { layers, queries, keys } = meta.views[state.view];
      const weights = formatWeights(pairs.flatMap((/** @type {any[]} */ [, , , , first, second, errors]) => [first, second].map((weight, i) => ({ weight, error: errors[i] }))));
      this.list.replaceChildren(
        createElement("span", { class: "quiet", text: "share of the attention that moves, mean over all tokens: " }),
        ...found.slice(0, LISTED).map((/** @type {number[]} */ [layer, head, share, error]) =>
          createButton(`${layers[layer].name}, ${layers[layer].heads[head]}: ${formatWeight(share, error)}`, () => handlers.select(layer, head))),
      );
      this.pairs.replaceChildren(
        createElement("span", { class: "quiet", text: "largest differences of single weights: " }),
        ...pairs.map((/** @type {number[]} */ [layer, head, query, key, , second], /** @type {number} */ i) => {
          const pair = `${quoted(queries.tokens[query])} → ${quoted((keys || queries).tokens[key])}, ${layers[layer].name}, ${layers[layer].heads[head]}`;
          const [one, other] = weights.slice(2 * i, 2 * i + 2);
          return createButton(`${pair}: ${one} − ${second < 0 ? `(${other})` : other}`, () => handlers.selectPair(layer, head, query, key));
        }),
      );
    } catch (error) {
      handlers.report(`The heads could not be compared: ${error instanceof Error ? error.message : error}`);
    }
  }
}

/** A map of a view: of a head, or of the mean of a layer. @typedef {{view: any, index: number, layer: number, head: number}} Shown */

/** Return the title of a map or of its difference to another one without the text, and in parts: one for each map, of which a figure may
 *  shorten the name of the text.
 *  @param {Shown} shown @param {Shown | null} [other] the map that is subtracted */
export function titleOf(shown, other) {
  const short = headName(shown);
  const part = { sign: "", text: shown.view.name, head: ` · ${short}` };
  if (!other) return { short, parts: [part] };
  const same = other.index === shown.index || (other.view.label && other.view.name === shown.view.name);
  const subtracted = { sign: "minus ", text: same ? "" : other.view.name, head: `${same ? "" : " · "}${headName(other)}` };
  return { short: `${short} minus ${headName(other)}`, parts: [part, subtracted] };
}

/** @param {Shown} shown */
function headName({ view, layer, head }) {
  return `${view.label ? `${view.label}, ` : ""}${view.layers[layer].name}, ${head === MEAN_HEAD ? "mean of its heads" : view.layers[layer].heads[head]}`;
}
