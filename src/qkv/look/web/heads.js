// The page, which the notebook widget, the server and the exported file share.
//
// It follows the anywidget contract: `model.get("meta")` describes the views, and a source returns the maps as bytes.

import { createCheckBox, createElement, createSelect } from "./dom.js";
import { colourTable } from "./colour.js";
import { Detail } from "./detail.js";
import { Overview } from "./overview.js";
import { save } from "./save.js";
import { fromKernel } from "./source.js";

const SCALES = /** @type {[string, string][]} */ ([["linear", "linear"], ["sqrt", "square root"], ["log", "logarithmic"]]);
const REDUCTIONS = /** @type {[string, string][]} */ ([["max", "maximum"], ["mean", "mean"]]);
const KEYS =
  "Arrow keys select a head in the grid, a pair in the map, or a token. Tab moves between them. " +
  "In the map, + and − zoom, and 0 resets the zoom.";

/** @param {{model: any, el: HTMLElement}} options */
function render({ model, el }) {
  const meta = withNumberedTokens(model.get("meta"));
  const source = model.get("source") || fromKernel(model);
  const linked = model.get("linked") === true;
  const hashFields = new URLSearchParams(linked ? location.hash.slice(1) : "");
  const number = (/** @type {string} */ name, /** @type {number} */ maximum) => {
    const value = Number(hashFields.get(name) || 0);
    return Number.isInteger(value) && value >= 0 && value <= maximum ? value : 0;
  };
  const view = number("view", meta.views.length - 1);
  const layer = number("layer", meta.views[view].layers.length - 1);
  const state = {
    view, layer,
    head: number("head", meta.views[view].layers[layer].heads.length - 1),
    compare: hashFields.has("compare") ? number("compare", meta.views.length - 1) : -1,
    query: number("query", 1e9),
    key: number("key", 1e9),
    scale: SCALES.some(([name]) => name === hashFields.get("scale")) ? hashFields.get("scale") : "sqrt",
    cell: hashFields.get("cell") === "mean" ? "mean" : "max",
    words: hashFields.get("words") === "1",
    hide: hashFields.get("hide") === "1",
    dark: hashFields.has("dark") ? hashFields.get("dark") === "1" : matchMedia("(prefers-color-scheme: dark)").matches,
  };
  el.classList.add("qkv-look");

  const report = (/** @type {string} */ text) => (status.textContent = text);
  const onSelect = (/** @type {Detail} */ from) => (/** @type {number} */ query, /** @type {number} */ key) => {
    state.query = query;
    state.key = key;
    const same = meta.views[state.view].queries.tokens.join(" ") === meta.views[Math.max(0, state.compare)].queries.tokens.join(" ");
    if (from === first && state.compare >= 0 && same) second.go(query, key);
    link();
  };
  const first = new Detail(source, (q, k) => onSelect(first)(q, k), (text) => report(text));
  const second = new Detail(source, () => {}, (text) => report(text));
  const overview = new Overview((l, h) => selectHead(l, h));
  const status = createElement("div", { class: "status", role: "status" });
  const note = createElement("p", { class: "hint" });
  const details = createElement("div", { class: "details" }, [first.element, second.element]);
  const controls = createElement("div", { class: "controls" });
  el.replaceChildren(
    createElement("div", { class: "head" }, [createElement("h1", { text: meta.title }), controls]),
    createElement("div", { class: "body" }, [
      createElement("nav", { "aria-label": "heads" }, [overview.element, note, createElement("p", { class: "hint", text: KEYS })]), details,
    ]),
    status,
  );

  function link() {
    if (!linked) return;
    const hash = new URLSearchParams();
    for (const [name, value] of Object.entries(state)) {
      if (name === "compare" && value === -1) continue;
      hash.set(name, typeof value === "boolean" ? (value ? "1" : "0") : String(value));
    }
    history.replaceState(null, "", `#${hash}`);
  }

  /** @param {number} layer @param {number} head */
  function selectHead(layer, head) {
    state.layer = layer;
    state.head = head;
    overview.select(layer, head);
    refresh();
  }

  async function refresh() {
    const table = colourTable(state.dark);
    const options = { ...state, reduction: state.cell, table, maxTokens: state.compare >= 0 ? 200 : undefined };
    try {
      await show(first, state.view, options);
      second.element.hidden = state.compare < 0;
      details.classList.toggle("two", state.compare >= 0);
      if (state.compare >= 0) await show(second, state.compare, options);
      el.dataset.shown = `${state.view},${state.layer},${state.head}`;
      report("");
    } catch (error) {
      report(`This head could not be loaded: ${error instanceof Error ? error.message : error}`);
    }
    link();
  }

  /** @param {Detail} detail @param {number} index @param {any} options */
  function show(detail, index, options) {
    const view = meta.views[index];
    const layer = Math.min(state.layer, view.layers.length - 1);
    const head = Math.min(state.head, view.layers[layer].heads.length - 1);
    detail.query = state.query;
    detail.key = state.key;
    return detail.show(view, index, layer, head, options);
  }

  async function restart() {
    const view = meta.views[state.view];
    el.dataset.theme = state.dark ? "dark" : "light";
    note.textContent = view.note || "";
    note.hidden = !view.note;
    state.layer = Math.min(state.layer, view.layers.length - 1);
    state.head = Math.min(state.head, view.layers[state.layer].heads.length - 1);
    overview.build(view.layers, (l, h) => {
      const roles = (view.roles[`${l},${h}`] || []).map((/** @type {any} */ role) => role.role).join(", ");
      return `${view.layers[l].name}, ${view.layers[l].heads[h]}${roles ? `: ${roles}` : ""}`;
    });
    overview.select(state.layer, state.head);
    const thumbnails = source.thumbnails(state.view);
    await refresh();
    try {
      overview.paint(await thumbnails, meta.thumbnail_size, colourTable(state.dark));
    } catch (error) {
      report(`The overview could not be loaded: ${error instanceof Error ? error.message : error}`);
    }
  }

  const views = meta.views.map((/** @type {any} */ view, /** @type {number} */ i) =>
    /** @type {[string, string]} */ ([String(i), meta.models > 1 ? `${view.name} (${view.model})` : view.name]));
  const search = /** @type {HTMLInputElement} */ (createElement("input", {
    type: "search", placeholder: "Find a word", "aria-label": "Find a word",
    oninput: () => report(search.value ? `${first.queries.search(search.value)} found` : (first.queries.search(""), "")),
    onkeydown: (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== "Enter" || !first.names) return;
      const names = first.names.queries;
      const text = search.value.trim().toLowerCase();
      for (let step = 1; step <= names.length; step++) {
        const at = (first.query + step) % names.length;
        if (text && names[at].toLowerCase().includes(text)) {
          first.go(at, first.key);
          state.query = at;
          link();
          return;
        }
      }
    },
  }));
  const name = () => `attention-${state.layer}-${state.head}`;
  const savers = /** @type {("png" | "svg" | "json")[]} */ (["png", "svg", "json"]).map((kind) =>
    createElement("button", {
      text: kind.toUpperCase(), "aria-label": `Save as ${kind.toUpperCase()}`,
      onclick: () => save(first, name(), kind).catch((error) => report(error.message)),
    }));
  controls.append(
    ...(views.length > 1 ? [
      createSelect("Text", views, String(state.view), (value) => { state.view = Number(value); restart(); }),
      createSelect("Compare with", [["-1", "none"], ...views], String(state.compare), (value) => { state.compare = Number(value); refresh(); }),
    ] : []),
    createSelect("Scale", SCALES, /** @type {string} */ (state.scale), (value) => { state.scale = value; refresh(); }),
    createSelect("Cell value", REDUCTIONS, state.cell, (value) => { state.cell = value; refresh(); }),
    createCheckBox("Whole words", state.words, (on) => { state.words = on; refresh(); }),
    createCheckBox("Hide special tokens", state.hide, (on) => { state.hide = on; refresh(); }),
    createCheckBox("Dark", state.dark, (on) => { state.dark = on; restart(); }),
    search,
    createElement("div", { class: "save", role: "group", "aria-label": "Save" }, [
      ...savers,
      meta.html ? createElement("a", { href: meta.html, download: "attention.html", text: "HTML", "aria-label": "Save as HTML" }) : null,
    ]),
  );
  restart();
}

/** Create the tokens of numbered axes, because the server sends only their number.
 *  @param {any} meta */
function withNumberedTokens(meta) {
  const side = (/** @type {any} */ sent) => {
    if (!sent || sent.count === undefined) return sent;
    const tokens = Array.from({ length: sent.count }, (_, i) => String(i));
    return { tokens, pieces: tokens, words: tokens.map(Number), special: tokens.map(() => false) };
  };
  const views = meta.views.map((/** @type {any} */ view) => ({ ...view, queries: side(view.queries), keys: side(view.keys) }));
  return { ...meta, views };
}

export default { render };
