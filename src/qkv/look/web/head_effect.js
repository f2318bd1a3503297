// The effect of heads that are ablated or scaled: the model runs again with their outputs multiplied by factors.

import { formatWeight } from "./codes.js";
import { createButton, createElement, createSelect, createTable } from "./dom.js";
import { ALL_HEADS } from "./matrix.js";
import { CAPTIONS, shareRow } from "./predicted.js";
import { quoted } from "./text_names.js";

const FACTORS = /** @type {[string, string][]} */ ([["0", "× 0 (ablated)"], ["50", "× 0.5"], ["150", "× 1.5"], ["200", "× 2"], ["400", "× 4"]]);

export class HeadEffect {
  /** @param {import("./source.js").Source} source @param {string} changes of the link, such as "1.3.0_2.0.200"
   *  @param {{go: (query: number) => void, changed: (changes: string) => void}} handlers */
  constructor(source, changes, handlers) {
    this.source = source;
    this.handlers = handlers;
    /** layer, head and percent @type {[number, number, number][]} */
    this.changes = changes.split("_").map((one) => one.split(".").map(Number))
      .filter((one) => one.length === 3 && one.every((number) => Number.isInteger(number) && number >= 0)).map(([a, b, c]) => [a, b, c]);
    this.add = createElement("button", { class: "ask", onclick: () => {
      const { layer, head } = /** @type {import("./questions.js").Place} */ (this.place);
      this.changes = [...this.changes.filter(([l, h]) => l !== layer || h !== head), [layer, head, 0]];
      this.#changed();
    } });
    this.result = createElement("div", { class: "result", "aria-live": "polite" });
    this.element = createElement("div", {}, [createElement("div", { class: "line" }, [this.add]), this.result]);
    this.request = 0;
    /** the changed heads, which stay visible above the maps while the question is closed */
    this.active = createElement("div", { class: "line active", role: "group", "aria-label": "changed heads", hidden: true });
  }

  /** Show the changed heads above the maps, with their factors and buttons that undo them. @param {any} view */
  showActive(view) {
    this.view = view;
    this.active.hidden = !this.changes.length;
    const changed = this.changes.map(([layer, head, percent], i) => {
      const { name: layerName, heads } = view.layers[layer] ?? { heads: [] };
      const name = heads[head] ? `${layerName}, ${heads[head]}` : `${layer}, ${head}`;
      const own = /** @type {[string, string]} */ ([String(percent), `× ${percent / 100}`]);
      const factors = FACTORS.some(([value]) => value === own[0]) ? FACTORS : [...FACTORS, own];
      return createElement("span", { class: "badge change" }, [
        createSelect(name, factors, own[0], (value) => { this.changes[i][2] = Number(value); this.#changed(); }),
        createButton("undo", () => { this.changes.splice(i, 1); this.#changed(); }, { "aria-label": `undo ${name}` }),
      ]);
    });
    const lead = createElement("span", { text: "Changed heads (the maps show the unchanged model):" });
    this.active.replaceChildren(lead, ...changed);
  }

  /** Show the effect at the selected query. @param {import("./questions.js").Place} place */
  async update(place) {
    this.place = place;
    const { view, index, layer, head } = place;
    const own = view.live && layer < view.layers.length && view.layers[layer].name !== ALL_HEADS && head >= 0;
    this.add.hidden = !own;
    this.add.textContent = own ? `Ablate ${view.layers[layer].name}, ${view.layers[layer].heads[head]}` : "";
    const request = ++this.request;
    if (!this.changes.length) {
      this.result.textContent = own
        ? "The output of an ablated head is multiplied by 0 before the output projection. Several heads may be changed together."
        : "Maps over several heads cannot be ablated. Select a head in the grid.";
      return;
    }
    const missing = this.changes.find(([l, h]) => !view.layers[l]?.heads[h] || view.layers[l].name === ALL_HEADS);
    if (missing) {
      this.result.textContent = `This model has no layer ${missing[0]}, head ${missing[1]}. Undo this change.`;
      return;
    }
    this.result.setAttribute("aria-busy", "true");
    try {
      const found = await /** @type {any} */ (this.source.effect)(index, place.token, this.changes);
      if (request === this.request) this.#show(found);
    } catch (error) {
      if (request === this.request) this.result.textContent = `The model could not run: ${error instanceof Error ? error.message : error}`;
    }
    if (request === this.request) this.result.removeAttribute("aria-busy");
  }

  #changed() {
    this.handlers.changed(this.changes.map((one) => one.join(".")).join("_"));
    if (this.view) this.showActive(this.view);
    if (this.place) this.update(this.place);
  }

  /** @param {any} found the answer of the server */
  #show(found) {
    const { view, name } = /** @type {import("./questions.js").Place} */ (this.place);
    const told = (/** @type {number} */ number) => formatWeight(number);
    const sentences = found.kind === null
      ? [`The vector of ${quoted(name)} changes by ${told(found.divergence)} of its length; mean over the tokens: ${told(found.mean)}.`]
      : [
          `Divergence of the distribution at ${quoted(name)}: ${told(found.divergence)} nats; mean over the tokens: ${told(found.mean)}.`,
          found.loss ? `Loss (mean −log probability of ${{ next: "the next tokens", own: "the tokens themselves", step: "the generated tokens" }[/** @type {string} */ (found.kind)]}): ${told(found.loss[0])} → ${told(found.loss[1])} nats.` : "",
        ];
    const [target] = found.target || [null];
    const listed = target === null || (found.tokens || []).some((/** @type {any[]} */ [token]) => token === target) ? found.tokens || [] : [...found.tokens, found.target];
    const rows = listed.map((/** @type {[string, number, number]} */ [token, ...shares]) => shareRow(token, shares, target === token));
    const most = found.most.map((/** @type {[number, number]} */ [at, size]) =>
      createElement("button", { class: "ask", text: `${quoted(view.queries.tokens[at])} (${at}): ${told(size)}`, "aria-label": `select ${quoted(view.queries.tokens[at])} (${at})`, onclick: () => this.handlers.go(at) }));
    this.result.replaceChildren(
      ...sentences.filter(Boolean).map((text) => createElement("p", { text })),
      ...(rows.length ? [createTable(`${CAPTIONS[found.kind](name)}: unchanged, and with the changed heads`, ["token", "unchanged", "changed"], rows)] : []),
      createElement("p", { class: "line" }, [createElement("span", { text: "Largest changes at:" }), ...most]),
    );
  }
}
