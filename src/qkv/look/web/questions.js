// Questions about the shown head, below the map: each is a section that is answered when it is open.

import { createElement } from "./dom.js";
import { HeadEffect } from "./head_effect.js";
import { HeadSearch } from "./head_search.js";
import { PairParts } from "./pair_parts.js";

/** The selected pair of the shown view.
 *  @typedef {Object} Place
 *  @property {any} view @property {number} index of the view @property {number} layer @property {number} head
 *  @property {number} token of the query @property {number} keyToken @property {string} name of the query
 *  @property {string} keyName @property {boolean} dark */

/** The state that a link restores. @typedef {{open: string, ask: string, change: string}} Asked */

/** Milliseconds that a selection lasts before the model runs, so that moving through the map asks once. */
const PAUSE = 150;

/** Return the names of the parts of the page that a source cannot answer, because they need the running model.
 *  @param {any} meta @param {Partial<import("./source.js").Source>} source @returns {string[]} */
export function missingParts(meta, source) {
  const some = (/** @type {string} */ field) => meta.views.some((/** @type {any} */ view) => view[field]);
  return [
    ...(some("live") && !source.effect ? ["“What changes without this head?”"] : []),
    ...(some("pairs") && !source.weight ? ["“All digits”"] : []),
    ...(some("flow") && !source.flow ? ["“Flow of this pair”"] : []),
    ...(meta.views.length > 1 && !source.differences ? ["“Which heads differ most?”"] : []),
  ];
}

export class Questions {
  /** @param {any} meta @param {import("./source.js").Source} source @param {Asked} state
   *  @param {{go: (view: number, layer: number, head: number, query: number[], key: number[]) => void,
   *    goQuery: (query: number) => void, changed: () => void}} handlers */
  constructor(meta, source, state, handlers) {
    this.search = new HeadSearch(meta, source, state.ask, { shown: () => this.place?.index ?? 0, go: handlers.go, changed: (asked) => { state.ask = asked; handlers.changed(); } });
    this.effect = new HeadEffect(source, state.change, { go: handlers.goQuery, changed: (changes) => { state.change = changes; handlers.changed(); } });
    this.pair = new PairParts(source);
    const opened = new Set(state.open.split(","));
    const dense = meta.views.some((/** @type {any} */ view) => !view.levels);
    /** @type {[string, string, {element: HTMLElement, update: (place: Place) => void}, (view: any) => boolean][]} */
    const questions = [
      ["search", "Which heads attend from one word to another?", this.search, () => dense],
      ["effect", "What changes without this head?", this.effect, (view) => view.live && Boolean(source.effect)],
      ["pair", "Why this weight? Query and key of the pair", this.pair, (view) => view.pairs],
    ];
    this.offered = questions.filter(([, , , offered]) => meta.views.some(offered));
    this.sections = this.offered.map(([name, title, { element }]) => {
      const section = createElement("details", { open: opened.has(name), "data-question": name }, [
        createElement("summary", { text: title }), element,
      ]);
      section.addEventListener("toggle", () => {
        state.open = this.sections.filter((one) => one.open).map((one) => one.dataset.question).join(",");
        handlers.changed();
        this.update(this.place);
      });
      return section;
    });
    this.element = createElement("section", { class: "questions", "aria-label": "questions" }, this.sections);
    const missing = missingParts(meta, source);
    if (missing.length) {
      this.element.append(createElement("p", { class: "quiet missing", text: `Not in this file: ${missing.join(", ")}. They need the page that qkv look serves.` }));
    }
    this.place = /** @type {Place | null} */ (null);
    this.waiting = /** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined);
  }

  /** Rank the heads by their attention from one passage to another. @param {string[]} spans */
  askFor(spans) {
    const section = this.sections.find((one) => one.dataset.question === "search");
    if (!section) return;
    section.open = true;
    [this.search.query.value, this.search.key.value] = spans;
    this.search.ask();
  }

  /** Answer the open questions for another pair. @param {Place | null} place */
  update(place) {
    this.place = place;
    if (place) this.effect.showActive(place.view);
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => {
      for (const [i, section] of this.sections.entries()) {
        const [, , question, offered] = this.offered[i];
        section.hidden = !place || !offered(place.view);
        if (section.open && place && !section.hidden) question.update(place);
      }
    }, PAUSE);
  }
}
