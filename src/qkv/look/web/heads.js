// Where the heads of a model look: the notebook widget, the served page and the exported file are this module.
//
// It is on the anywidget contract: `model.get("meta")` says what there is, and maps come as bytes from a source.

import { choice, check, make } from "./dom.js";
import { colourTable } from "./colour.js";
import { Detail } from "./detail.js";
import { Overview } from "./overview.js";
import { save } from "./save.js";
import { fromKernel } from "./source.js";

const SCALES = /** @type {[string, string][]} */ ([["linear", "linear"], ["sqrt", "square root"], ["log", "logarithmic"]]);
const REDUCED = /** @type {[string, string][]} */ ([["max", "largest"], ["mean", "mean"]]);
const KEYS =
  "arrow keys move, in the grid from head to head, in the map from pair to pair, in the words from word to word; " +
  "Tab goes on; in the map + and − zoom, 0 shows all";

/** @param {{model: any, el: HTMLElement}} given */
function render({ model, el }) {
  const meta = filled(model.get("meta"));
  const source = model.get("source") || fromKernel(model);
  const linked = model.get("linked") === true;
  const asked = new URLSearchParams(linked ? location.hash.slice(1) : "");
  const number = (/** @type {string} */ name, /** @type {number} */ most) => {
    const value = Number(asked.get(name) || 0);
    return Number.isInteger(value) && value >= 0 && value <= most ? value : 0;
  };
  const view = number("view", meta.views.length - 1);
  const layer = number("layer", meta.views[view].layers.length - 1);
  const state = {
    view, layer,
    head: number("head", meta.views[view].layers[layer].heads.length - 1),
    other: asked.has("other") ? number("other", meta.views.length - 1) : -1,
    query: number("query", 1e9),
    key: number("key", 1e9),
    scale: SCALES.some(([name]) => name === asked.get("scale")) ? asked.get("scale") : "sqrt",
    how: asked.get("how") === "mean" ? "mean" : "max",
    words: asked.get("words") === "1",
    hide: asked.get("hide") === "1",
    dark: asked.has("dark") ? asked.get("dark") === "1" : matchMedia("(prefers-color-scheme: dark)").matches,
  };
  el.classList.add("qkv-look");

  const say = (/** @type {string} */ text) => (status.textContent = text);
  const moved = (/** @type {Detail} */ from) => (/** @type {number} */ query, /** @type {number} */ key) => {
    state.query = query;
    state.key = key;
    const same = meta.views[state.view].queries.tokens.join(" ") === meta.views[Math.max(0, state.other)].queries.tokens.join(" ");
    if (from === first && state.other >= 0 && same) second.go(query, key);
    link();
  };
  const first = new Detail(source, (q, k) => moved(first)(q, k), (text) => say(text));
  const second = new Detail(source, () => {}, (text) => say(text));
  const overview = new Overview((l, h) => go(l, h));
  const status = make("div", { class: "status", role: "status" });
  const note = make("p", { class: "hint" });
  const details = make("div", { class: "details" }, [first.element, second.element]);
  const controls = make("div", { class: "controls" });
  el.replaceChildren(
    make("div", { class: "head" }, [make("h1", { text: meta.title }), controls]),
    make("div", { class: "body" }, [
      make("nav", { "aria-label": "heads" }, [overview.element, note, make("p", { class: "hint", text: KEYS })]), details,
    ]),
    status,
  );

  function link() {
    if (!linked) return;
    const said = new URLSearchParams();
    for (const [name, value] of Object.entries(state)) {
      if (name === "other" && value === -1) continue;
      said.set(name, typeof value === "boolean" ? (value ? "1" : "0") : String(value));
    }
    history.replaceState(null, "", `#${said}`);
  }

  /** @param {number} layer @param {number} head */
  function go(layer, head) {
    state.layer = layer;
    state.head = head;
    overview.choose(layer, head);
    refresh();
  }

  async function refresh() {
    const table = colourTable(state.dark);
    const options = { ...state, table, most: state.other >= 0 ? 200 : undefined };
    try {
      await show(first, state.view, options);
      second.element.hidden = state.other < 0;
      details.classList.toggle("two", state.other >= 0);
      if (state.other >= 0) await show(second, state.other, options);
      el.dataset.shown = `${state.view},${state.layer},${state.head}`;
      say("");
    } catch (error) {
      say(`This head could not be loaded: ${error instanceof Error ? error.message : error}`);
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
    overview.choose(state.layer, state.head);
    const thumbs = source.thumbs(state.view);
    await refresh();
    try {
      overview.paint(await thumbs, meta.thumb, colourTable(state.dark));
    } catch (error) {
      say(`The overview could not be loaded: ${error instanceof Error ? error.message : error}`);
    }
  }

  const views = meta.views.map((/** @type {any} */ view, /** @type {number} */ i) =>
    /** @type {[string, string]} */ ([String(i), meta.models > 1 ? `${view.name} (${view.model})` : view.name]));
  const search = /** @type {HTMLInputElement} */ (make("input", {
    type: "search", placeholder: "find a word", "aria-label": "find a word",
    oninput: () => say(search.value ? `${first.queries.search(search.value)} found` : (first.queries.search(""), "")),
    onkeydown: (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== "Enter" || !first.names) return;
      const names = first.names.queries;
      const wanted = search.value.trim().toLowerCase();
      for (let step = 1; step <= names.length; step++) {
        const at = (first.query + step) % names.length;
        if (wanted && names[at].toLowerCase().includes(wanted)) {
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
    make("button", {
      text: kind.toUpperCase(), "aria-label": `save as ${kind.toUpperCase()}`,
      onclick: () => save(first, name(), kind).catch((error) => say(error.message)),
    }));
  controls.append(
    ...(views.length > 1 ? [
      choice("text", views, String(state.view), (value) => { state.view = Number(value); restart(); }),
      choice("beside it", [["-1", "nothing"], ...views], String(state.other), (value) => { state.other = Number(value); refresh(); }),
    ] : []),
    choice("scale", SCALES, /** @type {string} */ (state.scale), (value) => { state.scale = value; refresh(); }),
    choice("spots show", REDUCED, state.how, (value) => { state.how = value; refresh(); }),
    check("whole words", state.words, (on) => { state.words = on; refresh(); }),
    check("hide special tokens", state.hide, (on) => { state.hide = on; refresh(); }),
    check("dark", state.dark, (on) => { state.dark = on; restart(); }),
    search,
    make("div", { class: "save", role: "group", "aria-label": "save" }, [
      ...savers,
      meta.html ? make("a", { href: meta.html, download: "attention.html", text: "HTML", "aria-label": "save as HTML" }) : null,
    ]),
  );
  restart();
}

/** The words of sides that are numbers alone, which are not sent.
 *  @param {any} meta */
function filled(meta) {
  const side = (/** @type {any} */ given) => {
    if (!given || given.count === undefined) return given;
    const tokens = Array.from({ length: given.count }, (_, i) => String(i));
    return { tokens, pieces: tokens, words: tokens.map(Number), special: tokens.map(() => false) };
  };
  const views = meta.views.map((/** @type {any} */ view) => ({ ...view, queries: side(view.queries), keys: side(view.keys) }));
  return { ...meta, views };
}

export default { render };
