// The page, which the notebook widget, the server and the exported file share.
//
// It follows the anywidget contract: `model.get("meta")` describes the views, and a source returns the maps as bytes.

import { createCheckBox, createElement, createSelect } from "./dom.js";
import { paletteOf } from "./colour.js";
import { Detail } from "./detail.js";
import { Overview } from "./overview.js";
import { save } from "./save.js";
import { mergeSummaries, rangeOf } from "./range.js";
import { fromKernel } from "./source.js";

const SCALES = /** @type {[string, string][]} */ ([
  ["auto", "automatic"], ["linear", "linear"], ["sqrt", "square root"], ["log", "logarithmic"], ["row", "share of the row's maximum"],
]);
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
    scale: SCALES.some(([name]) => name === hashFields.get("scale")) ? hashFields.get("scale") : "auto",
    top: Math.max(0, Number(hashFields.get("top")) || 0),
    cell: hashFields.get("cell") === "mean" ? "mean" : "max",
    part: hashFields.get("part") || "",
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
  /** Return the colour range of a picture. Maps that are shown side by side share a range.
   *  @param {Detail} detail @param {Detail} other @param {import("./range.js").Summary} summary */
  const rangeFor = (detail, other, summary) => {
    const beside = state.compare >= 0 && other.map.mapData ? other.map.picture?.summary : null;
    const range = rangeOf(beside ? mergeSummaries([summary, beside]) : summary, /** @type {any} */ (state.scale), state.top);
    if (beside && other.map.canvas.dataset.range !== JSON.stringify(range)) other.map.draw();
    return range;
  };
  const first = new Detail(source, (q, k) => onSelect(first)(q, k), (text) => report(text), (summary) => rangeFor(first, second, summary), () => {
    state.part = first.map.place;
    link();
  });
  const second = new Detail(source, () => {}, (text) => report(text), (summary) => rangeFor(second, first, summary), () => {});
  const overview = new Overview((l, h) => selectHead(l, h));
  const status = createElement("div", { class: "status", role: "status" });
  const note = createElement("p", { class: "hint" });
  const legend = createElement("p", { class: "hint" });
  const details = createElement("div", { class: "details" }, [first.element, second.element]);
  const controls = createElement("div", { class: "controls" });
  el.replaceChildren(
    createElement("div", { class: "head" }, [createElement("h1", { text: meta.title }), controls]),
    createElement("div", { class: "body" }, [
      createElement("nav", { "aria-label": "heads" }, [overview.element, legend, note, createElement("p", { class: "hint", text: KEYS })]), details,
    ]),
    status,
  );

  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let linking;

  /** Update the address, at most ten times per second, because browsers limit the rate. */
  function link() {
    if (!linked || linking) return;
    linking = setTimeout(() => {
      linking = undefined;
      writeLink();
    }, 100);
  }

  function writeLink() {
    const hash = new URLSearchParams();
    for (const [name, value] of Object.entries(state)) {
      if ((name === "compare" && value === -1) || (["top", "part"].includes(name) && !value)) continue;
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
    const options = { ...state, reduction: state.cell, palette: paletteOf(state.dark), maxTokens: state.compare >= 0 ? 200 : undefined };
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

  /** @type {Promise<Uint8Array>} */
  let thumbnails = Promise.resolve(new Uint8Array());

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
    thumbnails = source.thumbnails(state.view);
    await Promise.all([refresh(), paintOverview()]);
  }

  async function paintOverview() {
    const view = meta.views[state.view];
    try {
      const bytes = await thumbnails;
      if (view !== meta.views[state.view]) return;
      legend.textContent = overview.paint(bytes, {
        side: meta.thumbnail_size, palette: paletteOf(state.dark), scale: /** @type {any} */ (state.scale), top: state.top,
        ranges: view.ranges.flat(), queries: view.queries.tokens.length, keys: (view.keys || view.queries).tokens.length,
      });
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
  const top = /** @type {HTMLInputElement} */ (createElement("input", {
    type: "number", min: 0, step: "any", class: "number", placeholder: "automatic", value: state.top || null, disabled: state.scale === "row",
    title: "Weight from which on the colour is darkest; empty: automatic",
    onchange: () => { state.top = Math.max(0, Number(top.value) || 0); refresh(); paintOverview(); },
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
    createSelect("Scale", SCALES, /** @type {string} */ (state.scale), (value) => { state.scale = value; top.disabled = value === "row"; refresh(); paintOverview(); }, "scale"),
    createElement("label", { class: "control" }, [createElement("span", { text: "Colour limit" }), top]),
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
  // A link that is entered into the address of the open page. The page itself changes the address without this event.
  if (linked) addEventListener("hashchange", () => render({ model, el }), { once: true });
  const visited = state.part;
  restart().then(() => visited && first.map.visit(visited));
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
