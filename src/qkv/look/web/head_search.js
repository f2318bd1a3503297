// The question which heads attend from one word to another, over all texts of the page.

import { errorOfWeight, formatWeights, MASKED } from "./codes.js";
import { createButton, createElement, createTable } from "./dom.js";
import { errorOf, findPhrase, groupsOf, merge, nameOf, POSITIONS } from "./groups.js";
import { ALL_HEADS } from "./matrix.js";
import { quoted } from "./text_names.js";

/** Number of heads that are listed. */
const LISTED_HEADS = 12;

/** The attention of a head from one occurrence of the query to the key.
 *  @typedef {{view: number, query: number[], key: number[], weight: number, error: number, rank: number}} Place */

/** Rank the heads by their attention from one word to another, as `qkv.look.search` does.
 *  @param {any} meta @param {import("./source.js").Source} source @param {string} query @param {string} key
 *  @param {number} shown index of the view whose tokens positions count
 *  @returns {Promise<{model: string, kind: string, layer: number, head: number, weight: number, error: number, places: Place[]}[]>} */
export async function searchHeads(meta, source, query, key, shown) {
  const heads = /** @type {Map<string, any>} */ (new Map());
  for (const [index, view] of meta.views.entries()) {
    if (view.levels || (index !== shown && [query, key].some((one) => POSITIONS.test(one)))) continue;
    const axis = view.keys || view.queries;
    const targets = findPhrase(axis, key);
    const places = targets.length ? findPhrase(view.queries, query) : [];
    const width = axis.tokens.length;
    const inside = new Set(targets.flat());
    const others = groupsOf(axis, "words").filter((group) => !group.some((token) => inside.has(token)));
    for (const query of places) {
      const first = query[0];
      const maps = (await source.rows(index, first, query[query.length - 1] + 1)).values();
      view.layers.forEach((/** @type {any} */ layer, /** @type {number} */ l) => {
        layer.heads.forEach((/** @type {string} */ _, /** @type {number} */ h) => {
          const map = /** @type {import("./source.js").Weights} */ (maps.next().value);
          if (layer.name === ALL_HEADS) return;
          const row = query.map((token) => token - first);
          const sums = merge(map.weights, width, [row], [...targets, ...others]).map((sum) => (sum === MASKED ? 0 : sum));
          const error = errorOf(map, width, [row], [targets.flat()])(0, 0);
          const ofTargets = sums.subarray(0, targets.length);
          const weight = ofTargets.reduce((total, one) => total + one, 0);
          const rank = 1 + sums.subarray(targets.length).filter((sum) => sum > weight).length;
          const name = JSON.stringify([view.model, view.kind, l, h]);
          if (!heads.has(name)) heads.set(name, { model: view.model, kind: view.kind, layer: l, head: h, places: [] });
          heads.get(name).places.push({ view: index, query, key: targets[ofTargets.indexOf(Math.max(...ofTargets))] ?? targets[0], weight, error, rank });
        });
      });
    }
  }
  const found = [...heads.values()];
  for (const head of found) {
    head.places.sort((/** @type {Place} */ a, /** @type {Place} */ b) => b.weight - a.weight);
    const { weight, error } = head.places.length > 1 ? meanOf(head.places) : head.places[0];
    Object.assign(head, { weight, error });
  }
  return found.sort((a, b) => b.weight - a.weight);
}

/** Return the mean of the weights of heads or places with its error. @param {{weight: number, error: number}[]} all */
function meanOf(all) {
  const mean = (/** @type {number[]} */ numbers) => numbers.reduce((sum, one) => sum + one, 0) / all.length;
  return { weight: mean(all.map(({ weight }) => weight)), error: mean(all.map(({ weight, error }) => errorOfWeight(weight, error))) };
}

export class HeadSearch {
  /** @param {any} meta @param {import("./source.js").Source} source @param {string} asked "query → key" of the link
   *  @param {{shown: () => number, go: (view: number, layer: number, head: number, query: number[], key: number[]) => void,
   *    changed: (asked: string) => void}} handlers */
  constructor(meta, source, asked, handlers) {
    this.meta = meta;
    this.source = source;
    this.handlers = handlers;
    const [query, key] = asked.split("→");
    const field = (/** @type {string} */ label, /** @type {string} */ value, /** @type {string} */ example) =>
      createElement("input", { type: "text", "aria-label": label, value, placeholder: example, size: 12 });
    this.query = field("word that attends", query || "", "a word");
    this.key = field("word that is attended to", key || "", "a word");
    /** the words that were filled in */
    this.filled = ["", ""];
    this.result = createElement("div", { class: "result", "aria-live": "polite" });
    const form = createElement("form", { class: "line", onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); this.ask(); } }, [
      createElement("span", { text: "from" }), this.query, createElement("span", { text: "to" }), this.key,
      createElement("button", { class: "ask", type: "submit", text: "Rank the heads" }),
    ]);
    this.element = createElement("div", {}, [form, this.result]);
  }

  /** Answer the question of a link, or fill in the words of the selected pair until others are entered.
   *  @param {import("./questions.js").Place} place */
  update({ view, token, keyToken }) {
    const { query: queryField, key: keyField } = this;
    const own = queryField.value === this.filled[0] && keyField.value === this.filled[1];
    const wordAt = (/** @type {any} */ axis, /** @type {number} */ token) => nameOf(axis, groupsOf(axis, "words").find((group) => group.includes(token)) ?? [token], "words");
    const typing = document.activeElement === queryField || document.activeElement === keyField;
    if (own && !typing && !view.levels) {
      this.filled = [wordAt(view.queries, token), wordAt(view.keys || view.queries, keyToken)];
      [queryField.value, keyField.value] = this.filled;
    } else if (this.query.value && this.key.value && !this.result.childElementCount) this.ask();
  }

  async ask() {
    const [query, key] = [this.query.value.trim(), this.key.value.trim()];
    if (!query || !key) {
      this.result.textContent = "Enter two words of the text, such as a pronoun and the name that it stands for.";
      return;
    }
    this.filled = ["→", ""]; // What was asked stays.
    this.handlers.changed(`${query}→${key}`);
    this.result.textContent = "…";
    try {
      const found = await searchHeads(this.meta, this.source, query, key, this.handlers.shown());
      if (found.length) this.#show(found);
      else this.result.textContent = `No text contains both ${quoted(query)} and ${quoted(key)} as whole words.`;
    } catch (error) {
      this.result.textContent = `The heads could not be searched: ${error instanceof Error ? error.message : error}`;
    }
  }

  /** @param {Awaited<ReturnType<typeof searchHeads>>} found @param {number} [count] number of heads that are listed */
  #show(found, count = LISTED_HEADS) {
    const { views } = this.meta;
    const places = found[0].places.length;
    const models = new Set(found.map(({ model }) => model)).size;
    const many = places > 1;
    const heading = ["head", many ? "mean weight" : "weight", ...(many ? ["smallest", "largest"] : []), many ? "rank" : "rank among the words (1: the largest)"];
    const heads = found.slice(0, count);
    const numbers = heads.flatMap((head) => [head, ...(many ? [head.places[places - 1], head.places[0]] : [])]);
    // The numbers of the table and of its caption have the same digits, so that a mean is not above the largest weight.
    const [mean, ...printed] = formatWeights([meanOf(found), ...numbers]);
    const lines = heads.map((head, i) => {
      const best = head.places.find(({ view }) => view === this.handlers.shown()) ?? head.places[0];
      const { layers } = views[best.view];
      const name = `${layers[head.layer].name}, ${layers[head.layer].heads[head.head]}`;
      const go = createButton(models > 1 ? `${name} (${head.model})` : name, () => this.handlers.go(best.view, head.layer, head.head, best.query, best.key));
      const ranks = head.places.map(({ rank }) => rank);
      const first = ranks.filter((rank) => rank === 1).length;
      const own = printed.slice(i * (many ? 3 : 1), (i + 1) * (many ? 3 : 1));
      return createElement("tr", {}, [
        createElement("th", { scope: "row" }, [go]),
        ...own.map((text) => createElement("td", { text })),
        createElement("td", { text: many ? `first in ${first} of ${ranks.length}` : `${ranks[0]}` }),
      ]);
    });
    const texts = new Set(found[0].places.map(({ view }) => view)).size;
    const where = many ? `, ${places} places in ${texts === 1 ? "one text" : `${texts} texts`}` : "";
    const { query, key, view } = found[0].places[0];
    const side = views[view];
    const [from, to] = [[side.queries, query, this.query.value], [side.keys || side.queries, key, this.key.value]].map(([axis, group, text]) => quoted(POSITIONS.test(text) ? nameOf(axis, group, "words") : text));
    const caption = `${from} attends to ${to}: ${heads.length < found.length ? `the first ${heads.length} of ${found.length}` : `all ${found.length}`} heads${where}; mean over all heads: ${mean}`;
    const all = createButton(`List all ${found.length} heads`, () => this.#show(found, found.length), { hidden: heads.length === found.length });
    this.result.replaceChildren(createTable(caption, heading, lines), all);
  }
}
