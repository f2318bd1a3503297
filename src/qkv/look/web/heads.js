// The page, which the notebook widget, the server and the exported file share.
//
// It follows the anywidget contract: `model.get("meta")` describes the views, and a source returns the maps as bytes.

import { createCheckBox, createElement, createSection, createSelect, fillSelect, followWidth } from "./dom.js";
import { headColour, MOST_HEADS, paletteOf } from "./colour.js";
import { Comparison, headOptions } from "./comparison.js";
import { Detail } from "./detail.js";
import { loadGrid } from "./grid_data.js";
import { groupsOf, imageSize, patchOf } from "./groups.js";
import { loadMap } from "./map_data.js";
import { TextSearch } from "./text_search.js";
import { ALL_HEADS, largestPair } from "./matrix.js";
import { Overview } from "./overview.js";
import { missingParts, Questions } from "./questions.js";
import { exampleWord, fillRoles, markOf, roleHeads } from "./roles.js";
import { saveControls } from "./save.js";
import { differenceRange, mergeSummaries, rangeOf } from "./range.js";
import { fromKernel } from "./source.js";
import { besidePicture } from "./static_picture.js";
import { shortNames } from "./text_names.js";

/** Parts of the state that links leave out. @type {Record<string, unknown>} */
const USUAL = { compare: -1, top: 0, pairs: "all", how: "map" };
/** Milliseconds for which a message is shown that is not an error. */
const NOTICE = 10_000;
/** Number of sentences of a long text from which on their map is too large. */
const MOST_SENTENCES = 2000;
/** Size of the text of a map in a presentation. */
const LARGE = 1.7;
/** Keys that step through the heads of a presentation, with those of remote controls. */
const STEP_KEYS = /** @type {Record<string, number>} */ ({ ArrowRight: 1, ArrowDown: 1, PageDown: 1, " ": 1, ArrowLeft: -1, ArrowUp: -1, PageUp: -1 });
const SCALES = /** @type {[string, string][]} */ ([
  ["auto", "automatic"], ["linear", "linear"], ["sqrt", "square root"], ["log", "logarithmic"], ["row", "share of the row's maximum"],
]);
const PAIRS = /** @type {[string, string][]} */ ([
  ["all", "all"], ["ab", "first text → second text"], ["ba", "second text → first text"], ["aa", "within the first text"],
  ["bb", "within the second text"],
]);
const REDUCTIONS = /** @type {[string, string][]} */ ([["max", "maximum"], ["mean", "mean"]]);
const LEAD = "Each row of the map is a token that attends, each column a token that it attends to; strong colours are large weights. ";
/** What to do, with a mouse and with a finger. */
const ACTS = ["Point at a row; click a word to pin it.", "Tap a cell or a word to select it; two fingers zoom the map."];
const IMAGE_LEAD =
  "Bright patches of the image have large weights for the selected patch or token, which is framed. Point at a patch; click it to pin it.";
const KEYS =
  "Arrow keys select a head in the grid, a pair in the map, or a token. Tab moves between them. " +
  "In the map, + and − zoom, and 0 resets the zoom; Shift and a drag frame a passage. P presents a single map.";

/** @param {{model: any, el: HTMLElement, hash?: string}} options `hash`: the link to show; default: that of the address */
export function render({ model, el, hash }) {
  const meta = withNumberedTokens(model.get("meta"));
  const source = model.get("source") || fromKernel(meta, model);
  const linked = model.get("linked") === true;
  // The page that saved a file named its state.
  const hashFields = new URLSearchParams(linked ? hash?.slice(1) ?? (location.hash.slice(1) || meta.link) : "");
  const number = (/** @type {string} */ name, /** @type {number} */ maximum, /** @type {number} */ otherwise = 0) => {
    const value = Number(hashFields.get(name) || otherwise);
    return Number.isInteger(value) && value >= 0 && value <= maximum ? value : otherwise;
  };
  const units = unitsOf(meta.views, source);
  const view = number("view", meta.views.length - 1);
  const layer = number("layer", meta.views[view].layers.length - 1);
  // Without a link, the page opens on the head with the clearest role.
  const opening = hashFields.has("layer") ? null : meta.views[view].opening;
  const compared = ["view", "layer", "query"].some((name) => hashFields.has(name)) ? -1 : openingComparison(meta.views);
  const text = (/** @type {string} */ name, /** @type {RegExp} */ pattern = /^/) => (hashFields.get(name) ?? "").match(pattern)?.input ?? "";
  const flag = (/** @type {string} */ name) => hashFields.get(name) === "1";
  /** @type {(name: string, options: string[], otherwise: string) => string} */
  const among = (name, options, otherwise) => options.find((one) => one === hashFields.get(name)) ?? otherwise;
  const state = {
    view, layer,
    head: number("head", meta.views[view].layers[layer].heads.length - 1),
    compare: hashFields.has("compare") ? number("compare", meta.views.length - 1, -1) : compared,
    query: number("query", 1e9), key: number("key", 1e9),
    scale: among("scale", SCALES.map(([name]) => name), "auto"), top: Math.max(0, Number(text("top")) || 0), cell: among("cell", ["mean"], "max"),
    part: text("part"), pin: flag("pin"),
    // the pair that is pinned in the second map
    beside: text("beside", /^\d+,\d+$/),
    unit: among("unit", units, "tokens"), opened: text("opened"),
    // first and last query and key of a passage that is framed, such as "4-9,0-3"
    frame: text("frame", /^\d+-\d+,\d+-\d+$/),
    hide: flag("hide"), pairs: among("pairs", PAIRS.map(([name]) => name), "all"), present: flag("present"), values: flag("values"),
    other: text("other"), how: among("how", ["lines", "difference"], "map"),
    // layers and heads whose lines are shown together, such as "0.2_5.11"
    lined: text("lined"),
    mean: flag("mean"), open: text("open"), ask: text("ask"), change: text("change"), find: text("find"),
    dark: hashFields.has("dark") ? flag("dark") : matchMedia("(prefers-color-scheme: dark)").matches,
  };
  if (opening) Object.assign(state, opening);
  el.classList.add("qkv-look");
  followWidth(el);
  const showPage = besidePicture(el, model.get("picture") || "");

  const report = (/** @type {string} */ text) => (status.textContent = text);
  /** Show a message for some seconds. @param {string} text */
  const notify = (text) => {
    report(text);
    setTimeout(() => status.textContent === text && report(""), NOTICE);
  };
  /** Note the pair that is selected, in the first map. */
  const noteSelection = () => {
    Object.assign(state, first.tokens());
    questions.update(place());
    link();
  };
  const onSelect = () => {
    if (!first.map.framed) state.frame = "";
    if (state.compare >= 0 && !comparison.subtracts) follow();
    noteSelection();
  };
  /** Select the pair of the second text that corresponds to that of the first. */
  const follow = () => {
    if (second.element.hasAttribute("aria-busy")) return;
    const found = comparison.counterpart(first.tokens());
    if (found) second.goToken(found.query, found.key);
  };
  /** The selected pair, for questions about it. */
  const place = () => ({
    ...first.selection, view: meta.views[state.view], index: state.view, layer: state.layer, head: comparison.head, dark: state.dark,
  });
  /** Return the colour range of a picture. Maps that are shown side by side share a range.
   *  @param {Detail} detail @param {Detail} other @param {import("./range.js").Summary} summary */
  const rangeFor = (detail, other, summary) => {
    const beside = state.compare >= 0 && !comparison.subtracts && other.map.mapData ? other.map.picture?.summary : null;
    const rule = state.compare >= 0 && comparison.subtracts ? differenceRange : rangeOf;
    const range = rule(beside ? mergeSummaries([summary, beside]) : summary, /** @type {any} */ (state.scale), state.top);
    if (beside && other.map.canvas.dataset.range !== JSON.stringify(range)) other.map.draw();
    return range;
  };
  const first = new Detail(source, onSelect, report, (summary) => rangeFor(first, second, summary), { moved: () => {
    state.part = first.map.place;
    link();
  }, remove: (head) => {
    state.lined = lined().filter((_, i) => i !== head).map((one) => one.join(".")).join("_");
    if (!state.lined) state.how = "map";
    refresh();
  }, framed: (groups) => {
    state.frame = frameText(groups);
    questions.askFor(groups.map((group) => `#${group[0]}–${group[group.length - 1]}`));
    refresh();
  }, region: (name) => {
    const { token, keyToken } = first.selection;
    const isPatch = patchOf(meta.views[state.view].queries, token) >= 0;
    questions.askFor(isPatch ? [name, `#${keyToken}`] : [`#${token}`, name]);
  }, open: () => {
    if (state.unit !== "sentences") return;
    const opened = new Set(state.opened.split(".").filter(Boolean));
    const own = first.selectedSentences;
    const close = own.every((one) => opened.has(one));
    for (const one of own) close ? opened.delete(one) : opened.add(one);
    state.opened = [...opened].join(".");
    regroup();
  } });
  const second = new Detail(source, () => link(), report, (summary) => rangeFor(second, first, summary));
  second.opener.remove(); // the sentences of both are opened together
  // The maps replace these rows by those of the tokens of the link.
  if (state.pin) first.map.pinned = 0;
  if (state.beside) second.map.pinned = 0;
  /** Note the pins of the maps that are shown. */
  const notePins = () => {
    if (first.mapData) state.pin = first.map.pinned !== null;
    const { query, key } = second.tokens();
    if (second.mapData && !second.element.hidden) state.beside = second.map.pinned === null ? "" : `${query},${key}`;
  };
  const overview = new Overview((l, h) => selectHead(l, h));
  const comparison = new Comparison(meta, source, state, {
    refresh: () => { comparison.build(); refresh(); }, select: (l, h) => selectDiffering(l, h), report,
    selectPair: (l, h, q, k) => goTo(state.view, l, h, q, k).then(() => !comparison.subtracts && follow()),
  });
  const questions = new Questions(meta, source, state, {
    go: (view, layer, head, query, key) => {
      // A pinned token stays, and the pair is framed.
      const pinned = first.map.pinned !== null && view === state.view;
      state.frame = frameText([query, key], pinned);
      return goTo(view, layer, head, pinned ? state.query : query[0], pinned ? state.key : key[0]);
    },
    goQuery: (query) => {
      first.goToken(query);
      first.reveal();
      noteSelection();
    },
    changed: () => link(),
  });
  const status = createElement("div", { class: "status", role: "status" });
  const lead = createElement("p", { class: "lead" });
  const note = createElement("p", { class: "hint" });
  const roles = createElement("section", { class: "rolelist", "aria-label": "heads by role" });
  const legend = createElement("p", { class: "hint" });
  const details = createElement("div", { class: "details" }, [first.element, second.element]);
  new ResizeObserver(() => details.style.setProperty("--height", `${details.offsetHeight}px`)).observe(details);
  const controls = createElement("div", { class: "controls" });
  const leave = createElement("button", { class: "ask leave", text: "← → best head of each role · Esc leaves", onclick: () => present(false) });
  el.replaceChildren(
    createElement("div", { class: "head" }, [createElement("h1", { text: meta.title }), lead, controls, questions.effect.active]),
    createElement("div", { class: "body" }, [
      details,
      createElement("nav", { "aria-label": "heads" }, [overview.element, roles, comparison.ranking, comparison.others, legend, note]),
      questions.element,
    ]),
    status, leave,
  );
  comparison.build();

  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let linking;
  /** whether another link is shown */
  let left = false;

  /** Update the address, at most ten times per second, because browsers limit the rate. */
  function link() {
    if (!linked || linking || left) return;
    linking = setTimeout(() => {
      linking = undefined;
      writeLink();
    }, 100);
  }

  /** Return the state as the fragment of a link. */
  function stateText() {
    notePins();
    const hash = new URLSearchParams();
    for (const [name, value] of Object.entries(state)) {
      if (value === "" || value === USUAL[name] || (value === false && name !== "dark")) continue;
      if (["other", "mean", "beside"].includes(name) && state.compare < 0) continue;
      hash.set(name, typeof value === "boolean" ? (value ? "1" : "0") : String(value));
    }
    return hash.toString();
  }

  function writeLink() {
    history.replaceState(null, "", `#${stateText()}`);
  }

  /** @param {number} layer @param {number} head */
  function selectHead(layer, head) {
    state.layer = layer;
    state.head = head;
    overview.select(layer, head);
    if (comparison.shown === "lines" && !state.present) addLines([layer, head]);
    return refresh();
  }

  /** The heads whose lines are shown together. @returns {[number, number][]} */
  function lined() {
    const { layers } = meta.views[state.view];
    return state.lined.split("_").map((one) => /** @type {[number, number]} */ (one.split(".").map(Number))).filter(([l, h]) => layers[l]?.heads[h]);
  }

  /** Show the lines of more heads, in place of the first ones if they are too many. @param {[number, number][]} heads */
  function addLines(...heads) {
    const all = new Set([...lined(), ...heads].map((one) => one.join(".")));
    state.lined = [...all].slice(-MOST_HEADS).join("_");
  }

  /** Show a single map in large type, or the whole page again. @param {boolean} on */
  function present(on) {
    state.present = on;
    el.dataset.mode = on ? "present" : "page";
    first.map.scale = on && el.dataset.width !== "narrow" ? LARGE : 1;
    // Browsers refuse the whole screen to links; a presentation then fills the window.
    if (on) el.requestFullscreen?.().catch(() => {});
    else if (document.fullscreenElement) document.exitFullscreen();
    if (first.mapData && comparison.shown === "lines") refresh();
    link();
  }

  /** @param {KeyboardEvent} event */
  function onKeyDown(event) {
    const typing = event.target instanceof Element && event.target.matches("input, select, textarea");
    if (event.ctrlKey || event.metaKey || event.altKey || typing) return;
    const step = state.present && STEP_KEYS[event.key];
    if (step) stepRole(step);
    else if (event.key === "p" || (state.present && event.key === "Escape")) present(!state.present);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Select the next or the previous head with a role, or, without roles, the next or previous head. @param {number} step */
  function stepRole(step) {
    const view = meta.views[state.view];
    const roles = new Map(roleHeads(view.roles || {}).map(({ layer, head, role }) => [`${layer},${head}`, role]));
    const heads = roles.size ? [...roles.keys()] : headOptions(view).map(([value]) => value);
    const at = heads.indexOf(`${state.layer},${state.head}`);
    const next = heads[(Math.max(at, step < 0 ? 0 : -1) + step + heads.length) % heads.length];
    const [layer, head] = next.split(",").map(Number);
    return selectRole(layer, head, roles.get(next) || "");
  }

  /** Show a pair of a head, whose indices are those of tokens.
   *  @param {number} view @param {number} layer @param {number} head @param {number} query @param {number} key */
  function goTo(view, layer, head, query, key) {
    const same = view === state.view;
    Object.assign(state, { view, layer, head, query, key });
    return (same ? (overview.select(layer, head), refresh()) : restart()).then(() => {
      first.reveal();
      questions.update(place());
      link();
    });
  }

  /** Select a head that differs between two texts, and the pair whose difference is largest. @param {number} layer @param {number} head */
  async function selectDiffering(layer, head) {
    await selectHead(layer, head);
    first.reveal();
    const { aligned, subtracts, target } = comparison;
    if (first.map.pinned === null && first.matrix && aligned.rows.pairs.length && aligned.columns.pairs.length) {
      const shown = { view: meta.views[state.view], index: state.view, layer, head: comparison.head };
      const matrix = subtracts ? first.matrix : /** @type {any} */ ((await loadMap(source, shown, { ...state, subtract: target, aligned }, () => {})).matrix);
      const [row, column] = largestPair(matrix);
      first.goToken(matrix.rows[row][0], matrix.columns[column][0]);
      if (!subtracts) follow();
    }
    noteSelection();
  }

  /** Select the head of a role, and a word that shows what it does. @param {number} layer @param {number} head @param {string} role */
  async function selectRole(layer, head, role) {
    await selectHead(layer, head);
    first.reveal();
    const query = exampleWord(role, first.mapData?.queries ?? []);
    if (first.matrix) first.go(query < 0 || first.map.pinned !== null ? first.query : query);
    Object.assign(state, first.tokens());
    link();
  }

  async function refresh() {
    notePins();
    fillSelect(headControl, headNames, `${state.layer},${state.head}`);
    fillSelect(viewControl, comparison.views, comparison.shown);
    const overlay = comparison.shown === "lines" && !state.present ? lined() : null;
    overview.frame((overlay ?? []).map(([l, h], i) => [l, h, headColour(i, state.dark)]));
    const two = state.compare >= 0 && !comparison.subtracts;
    const options = { ...state, overlay, reduction: state.cell, palette: paletteOf(state.dark), selected: () => state, maxTokens: two ? 200 : undefined };
    try {
      await comparison.load();
      await first.show(meta.views[state.view], state.view, state.layer, comparison.head, { ...options, ...(comparison.subtracts ? { subtract: comparison.target, aligned: comparison.aligned } : {}) });
      second.element.hidden = !two;
      details.classList.toggle("two", two);
      if (two) {
        const target = comparison.target;
        const [query, key] = state.beside.split(",").map(Number);
        const selected = () => ({ ...(state.beside ? { query, key } : { ...state, ...(comparison.counterpart(state) ?? target.view.opening) }), frame: "" });
        await second.show(target.view, target.index, target.layer, target.head, { ...options, selected });
      }
      questions.update(place());
      search.mark();
      el.dataset.shown = `${state.view},${state.layer},${state.head}`;
      showPage();
      report("");
    } catch (error) {
      const { name, message } = error instanceof Error ? error : new Error(String(error));
      report(name === "NoCommonTokens" ? message : `This head could not be loaded: ${message}`);
    }
    link();
  }

  let painting = 0;

  async function restart() {
    const view = meta.views[state.view];
    comparison.build();
    el.dataset.theme = state.dark ? "dark" : "light";
    const acts = ACTS[Number(matchMedia("(pointer: coarse)").matches)];
    lead.replaceChildren(...(imageSize(view) ? [IMAGE_LEAD] : [createElement("span", { class: "what", text: LEAD }), acts]));
    headNames = headOptions(view, (l, h) => {
      const mark = markOf(view.roles[`${l},${h}`] || []);
      return mark ? ` ${mark.text}` : "";
    });
    note.textContent = view.note || "";
    note.hidden = !view.note;
    // A model with fewer layers shows the last one, not the maps over all heads below it.
    const own = view.layers.filter((/** @type {any} */ { name }) => name !== ALL_HEADS).length || 1;
    if (state.layer >= view.layers.length) state.layer = own - 1;
    state.head = Math.min(state.head, view.layers[state.layer].heads.length - 1);
    overview.build(view.layers, (l, h) => {
      const roles = (view.roles[`${l},${h}`] || []).map((/** @type {any} */ role) => role.role).join(", ");
      return `${view.layers[l].name}, ${view.layers[l].heads[h]}${roles ? `: ${roles}` : ""}`;
    }, (l, h) => markOf(view.roles?.[`${l},${h}`] || []));
    fillRoles(roles, view.roles || {}, selectRole);
    overview.select(state.layer, state.head);
    await repaint();
  }

  /** Show other groups of tokens. */
  const regroup = () => (comparison.build(), repaint());

  /** Draw the map and the grid again after a setting of both has changed. */
  const repaint = () => Promise.all([refresh(), paintOverview()]);

  async function paintOverview() {
    const request = ++painting;
    const side = meta.thumbnail_size;
    try {
      const data = await loadGrid(source, meta.views[state.view], state.view, /** @type {any} */ (state), side);
      if (request !== painting) return;
      overview.paint(data, { side, palette: paletteOf(state.dark), scale: /** @type {any} */ (state.scale), top: state.top });
      legend.textContent = overview.rule;
    } catch (error) {
      report(`The overview could not be loaded: ${error instanceof Error ? error.message : error}`);
    }
  }

  const leaving = new AbortController();
  // Escape may leave the whole screen without an event of the key.
  el.addEventListener("fullscreenchange", () => document.fullscreenElement || !state.present || present(false), { signal: leaving.signal });
  const names = meta.views.map((/** @type {any} */ view) => (meta.models > 1 && view.model ? `${view.name} (${view.model})` : view.name));
  const views = shortNames(names).map((name, i) => /** @type {[string, string, string]} */ ([String(i), name, names[i]]));
  const search = new TextSearch(state.find, {
    detail: first, view: () => meta.views[state.view], report: notify,
    go: (query, key) => { first.go(query, key); noteSelection(); },
    changed: (text) => { state.find = text; link(); },
  });
  /** Select the pair that is shown, over which the pointer may have moved. */
  const settle = () => { if (first.mapData) Object.assign(state, first.tokens()); };
  const copyLink = () => {
    settle();
    writeLink();
    const copied = navigator.clipboard?.writeText(location.href) ?? Promise.reject(new Error());
    const where = !model.get("served") ? "" : ` on this machine while qkv runs${meta.html ? "; for colleagues, save the page as HTML" : ""}`;
    copied.then(() => notify(`The link is copied. It restores this state${where}.`), () => notify(`Copy the address of this page. It restores this state${where}.`));
  };
  const top = createElement("input", {
    type: "number", min: 0, step: "any", class: "number", placeholder: "automatic", value: state.top || null, disabled: state.scale === "row",
    title: "Weight from which on the colour is strongest; empty: automatic",
    onchange: () => { state.top = Math.max(0, Number(top.value) || 0); repaint(); },
  });
  const compareControl = createSelect("Compare with", [["-1", "none"], ...(views.length > 1 ? views : /** @type {[string, string][]} */ ([["0", "another head"]]))],
    String(state.compare), (value) => { state.compare = Number(value); comparison.build(); refresh(); });
  let headNames = /** @type {[string, string][]} */ ([]);
  const headControl = createSelect("Head", headNames, "", (value) => { const [l, h] = value.split(",").map(Number); selectHead(l, h); });
  const viewControl = createSelect("View", [], "", (value) => {
    [state.how] = value.split(" ");
    state.mean = value.endsWith(" mean");
    if (value === "lines" && !lined().length) {
      // The heads of the first roles, and the selected one.
      const { roles } = meta.views[state.view];
      addLines(...roleHeads(roles || {}).slice(0, 3).map(({ layer, head }) => /** @type {[number, number]} */ ([layer, head])), [state.layer, state.head]);
    }
    refresh();
  }, "view");
  const settings = createSection("settings", "Settings and saving", [
    ...(meta.views.some((/** @type {any} */ one) => one.queries.segments && !one.levels) ? [
      createSelect("Attention", PAIRS, state.pairs, (value) => { state.pairs = value; regroup(); }, "pairs"),
    ] : []),
    createSelect("Scale", SCALES, state.scale, (value) => { state.scale = value; top.disabled = value === "row"; repaint(); }, "scale"),
    createElement("label", { class: "control" }, [createElement("span", { text: "Colour limit" }), top]),
    createSelect("Cell value", REDUCTIONS, state.cell, (value) => { state.cell = value; refresh(); }),
    createSelect("Rows and columns", units.map((unit) => /** @type {[string, string]} */ ([unit, unit])), state.unit, (value) => { Object.assign(state, { unit: value, opened: "" }); regroup(); }, "unit"),
    units.some((unit) => !["tokens", "sentences"].includes(unit)) || meta.views.some(imageSize) ? null
      : createElement("span", { class: "quiet", text: `no words: ${meta.views.some((/** @type {any} */ { levels }) => levels) ? "the map is in tiles" : "each is one token"}` }),
    createCheckBox("Hide special tokens", state.hide, (on) => { state.hide = on; regroup(); }),
    ...(meta.views.some((/** @type {any} */ view) => view.values?.some(Boolean)) ? [
      createCheckBox("× norm of the value", state.values, (on) => { state.values = on; repaint(); }),
    ] : []),
    createCheckBox("Dark", state.dark, (on) => { state.dark = on; restart(); }),
    search.input,
    createElement("button", { class: "ask", text: "Present", "aria-keyshortcuts": "p", onclick: () => { present(true); leave.focus(); } }),
    ...(linked ? [createElement("button", { class: "ask", text: "Copy link", onclick: copyLink })] : []),
    saveControls({
      details: () => (second.element.hidden ? [first] : [first, second]), overview, signal: linked ? leaving.signal : null, report, notify, element: el, lacking: missingParts(meta, {}),
      link: () => { settle(); return stateText(); },
      name: () => `attention-${comparison.fileName}`, title: () => meta.views[state.view].name,
    }, meta.html),
    createElement("p", { class: "hint keys", text: `${KEYS} ${source.digits ?? "Weights have three significant digits, sums as many as are known; ≈: the last is not certain."}` }),
  ]);
  controls.append(
    ...(views.length > 1 ? [createSelect("Text", views, String(state.view), (value) => { Object.assign(state, { view: Number(value), opened: "", frame: "" }); restart(); })] : []),
    compareControl, comparison.element, headControl, viewControl, settings,
  );
  // In a notebook, keys belong to the page while it has the focus.
  (linked ? document : el).addEventListener("keydown", (event) => onKeyDown(/** @type {KeyboardEvent} */ (event)), { capture: true, signal: leaving.signal });
  // A link that is entered into the address of the open page. The page itself changes the address without this event.
  if (linked) {
    addEventListener("hashchange", (event) => {
      // An update of the address that is still waiting must not replace the new link.
      left = true;
      leaving.abort();
      clearTimeout(linking);
      render({ model, el, hash: new URL(event.newURL).hash });
    }, { once: true });
  }
  const visited = state.part;
  present(state.present);
  restart().then(() => visited && first.map.visit(visited));
}

/** Return the first and last tokens of a passage of queries and of keys as texts; empty for regions of an image and, without `single`, for
 *  two single words. @param {number[][]} groups @param {boolean} [single] */
function frameText(groups, single = false) {
  const passages = groups.every((group) => group[group.length - 1] - group[0] === group.length - 1);
  return passages && (single || groups.some((group) => group.length > 1)) ? groups.map((group) => `${group[0]}-${group[group.length - 1]}`).join() : "";
}

/** Return the view with which the first one is compared at first: its text in another model, or the second of two texts; −1: none.
 *  @param {import("./detail.js").View[]} views */
function openingComparison(views) {
  const [own, ...more] = views;
  const others = more.filter(({ kind }) => kind === own.kind);
  const model = others.find((one) => one.model !== own.model && one.name === own.name);
  return views.indexOf(model ?? (others.length === 1 ? others[0] : own)) || -1;
}

/** Return "tokens" and the other units in which rows or columns can be merged: those of which a group has several tokens.
 *  @param {import("./detail.js").View[]} views @param {import("./source.js").Source} source */
function unitsOf(views, source) {
  const found = views.flatMap(({ queries, keys, levels }) => [queries, keys ?? queries].flatMap((axis) => Object.keys(axis.units).filter((unit) =>
    groupsOf(axis, unit).length < (levels ? MOST_SENTENCES : axis.tokens.length) && (!levels || (unit === "sentences" && source.sentences)))));
  return ["tokens", ...new Set(found)];
}

/** Create the tokens of numbered axes, because the server sends only their number. @param {any} meta */
function withNumberedTokens(meta) {
  const side = (/** @type {any} */ sent) => {
    if (!sent || sent.count === undefined) return sent;
    const tokens = Array.from({ length: sent.count }, (_, i) => String(i));
    const numbers = tokens.map(Number);
    const spans = numbers.map((i) => [i, i + 1]);
    return { tokens, units: { words: numbers }, special: tokens.map(() => false), text: "", spans };
  };
  // Every panel names its model if there are several.
  const label = (/** @type {any} */ view) => (meta.models > 1 ? view.model : "");
  const views = meta.views.map((/** @type {any} */ view) => ({ ...view, label: label(view), queries: side(view.queries), keys: side(view.keys) }));
  return { ...meta, views };
}

export default { render };
