// The page of answers, which the notebook widget, the server and the exported file share.
//
// It follows the anywidget contract: `model.get("meta")` describes the table, and `respond` answers requests.

import { createCheckBox, createElement } from "./dom.js";
import { AxisChart } from "./answer_axis.js";
import { MapChart } from "./answer_map.js";
import { ValuesChart } from "./answer_values.js";
import { createAnswerPanel } from "./answer_panel.js";
import { createControls } from "./answer_controls.js";
import { unpackPositions } from "./unpack.js";
import { toKernel } from "./kernel.js";
import { besidePicture } from "./static_picture.js";

/** Number of places of the curve along an axis, and of cells across a map. */
const PLACES = 201;
const MOST_CELLS = 40;
/** Pairs of queries and rows that one request for a curve may need, which take about 50 ms. */
const CURVE_PAIRS = 1e6;

/** @param {{model: any, el: HTMLElement}} options */
export function renderAnswers({ model, el }) {
  const meta = model.get("meta");
  const kernel = model.get("respond") ? null : toKernel(model);
  const respond = model.get("respond") || (async (/** @type {any} */ request) => (await /** @type {any} */ (kernel)({ request }))[0].response);
  const linked = model.get("linked") === true;
  const start = new URLSearchParams(linked ? location.hash.slice(1) : "");
  const settings = /** @type {Record<string, string>} */ ({ ...meta.settings });
  for (const name of Object.keys(settings)) if (start.has(name) && !meta.saved) settings[name] = start.get(name) || "";
  let dark = start.has("dark") ? start.get("dark") === "1" : matchMedia("(prefers-color-scheme: dark)").matches;
  let query = start.get("query") || meta.query;
  let printed = false;
  /** @type {any} The request that waits for its turn; only the last one counts. */
  let waiting = null;
  let running = false;
  /** Changes with the settings that affect the curve. */
  let curveFor = "";
  let places = /** @type {number[][]} */ ([]);
  let pointsFor = "";

  el.classList.add("qkv-look", "qkv-answers");
  const showPage = besidePicture(el, model.get("picture") || "");
  const status = createElement("p", { class: "status", role: "status" });
  const panel = createAnswerPanel(meta, (open) => {
    printed = open;
    if (open) ask({ query });
  });
  const move = (/** @type {number[]} */ at) => ask({ at });
  const chart = meta.mode === "axis" ? new AxisChart(meta, move) : meta.mode === "map" ? new MapChart(meta, move) : new ValuesChart(meta);
  const listed = meta.completions.length ? createElement("datalist", { id: "keys" }, meta.completions.map((/** @type {string} */ value) => createElement("option", { value }))) : null;
  const box = createElement("input", {
    type: "text", class: "query", value: query, list: listed ? "keys" : undefined, spellcheck: "false", autocomplete: "off", "aria-label": `Query: ${meta.key_names.join(", ")}`,
    oninput: () => box.value.trim() && ask({ query: box.value }),
  });
  const controls = createControls(meta, settings, () => ask({ query }));
  const theme = createCheckBox("Dark", dark, (checked) => {
    dark = checked;
    paint();
    link();
  });
  el.replaceChildren(
    createElement("div", { class: "titlebar" }, [createElement("h1", { text: meta.title }), theme]),
    createElement("p", { class: "lead", text: leadOf(meta) }),
    createElement("div", { class: "stage" }, [
      createElement("section", { class: "main" }, [
        createElement("div", { class: "line asked" }, [createElement("label", { class: "control" }, [createElement("span", { text: `Query (${meta.key_names.join(", ")})` }), box]), listed]),
        panel.headline, status, chart.element, createElement("p", { class: "hint legend", text: legendOf(meta) }), panel.evidence,
      ]),
      createElement("aside", { "aria-label": "settings and calls" }, [controls, panel.elsewhere]),
    ]),
  );

  function paint() {
    el.dataset.theme = dark ? "dark" : "light";
    if (linked) document.documentElement.style.background = getComputedStyle(el).backgroundColor;
    chart.dark = dark;
    chart.draw();
  }

  function link() {
    if (!linked) return;
    const fields = new URLSearchParams({ query });
    for (const [name, value] of Object.entries(settings)) if (value && !(name === "top" && value === "10")) fields.set(name, value);
    if (dark !== matchMedia("(prefers-color-scheme: dark)").matches) fields.set("dark", dark ? "1" : "0");
    history.replaceState(null, "", `#${fields}`);
  }

  /** Ask for the answer to a query, by its text or its place. @param {any} what */
  function ask(what) {
    waiting = { what: "answer", ...what };
    run();
  }

  async function run() {
    if (running) return;
    running = true;
    delete el.dataset.idle;
    try {
      while (waiting || (await advance())) {
        if (!waiting) continue;
        const request = { ...waiting, settings: { ...settings }, printed };
        waiting = null;
        const slow = setTimeout(() => (status.textContent = "computing …"), 300);
        const answer = await respond(request);
        clearTimeout(slow);
        if (answer.error) {
          status.textContent = answer.error;
          el.dataset.failed = String(Number(el.dataset.failed || 0) + 1);
          continue;
        }
        status.textContent = "";
        showPage();
        query = answer.query;
        if (document.activeElement !== box) box.value = query;
        panel.fill(answer);
        chart.show(answer);
        if (!waiting) link();
        el.dataset.shown = String(Number(el.dataset.shown || 0) + 1);
      }
    } catch (error) {
      status.textContent = error instanceof TypeError ? "The program that answers has stopped; the terminal shows why." : String(error);
    }
    running = false;
    el.dataset.idle = JSON.stringify(settings);
  }

  /** Do a part of the work that can wait: read the rows, or answer some queries of the curve. Return whether there was any. */
  async function advance() {
    if (pointsFor !== settings.where || !chart.points) {
      const wanted = settings.where;
      const read = await respond({ what: "points", settings: { ...settings } });
      pointsFor = wanted;
      if (read.error) return false;
      chart.points = { ...read, keys: read.keys.map(unpackPositions), values: unpackPositions(read.values) };
      chart.drawRows();
      return true;
    }
    if (chart instanceof ValuesChart || (chart instanceof AxisChart && chart.labels)) return false;
    const wanted = JSON.stringify({ ...settings, top: "" });
    if (curveFor !== wanted) {
      curveFor = wanted;
      places = meta.saved ? [] : placesOf(meta, chart);
      if (meta.saved) {
        const whole = await respond({ what: "curve", settings: { ...settings } });
        Object.assign(chart, { curve: whole, field: whole });
        chart.draw();
      }
    }
    if (!places.length) return false;
    const some = places.splice(0, Math.max(1, Math.min(100, Math.floor(CURVE_PAIRS / meta.rows))));
    const found = await respond({ what: "curve", settings: { ...settings }, places: some.map((place) => place.slice(0, meta.keys.length)) });
    if (found.error || curveFor !== JSON.stringify({ ...settings, top: "" })) return !found.error;
    if (chart instanceof AxisChart) {
      chart.curve.at.push(...some.map(([at]) => at));
      for (const name of ["values", "low", "high"]) chart.curve[name].push(...found[name]);
      chart.drawAnswer();
    } else {
      some.forEach((place, i) => {
        chart.field.values[place[2]] = found.values[i];
        chart.field.labels[place[2]] = found.labels[i];
      });
      chart.drawRows();
    }
    return true;
  }

  paint();
  ask({ query });
}

/** Return the places of a curve or of the cells of a map, coarse ones first.
 *  @param {any} meta @param {AxisChart | MapChart} chart @returns {number[][]} */
function placesOf(meta, chart) {
  const at = (/** @type {number} */ axis, /** @type {number} */ share) => {
    const [low, high] = meta.keys[axis].ends;
    return low + share * (high - low);
  };
  if (chart instanceof AxisChart) {
    chart.curve = { at: [], values: [], low: [], high: [] };
    const every = Array.from({ length: PLACES }, (_, i) => [at(0, i / (PLACES - 1))]);
    return [8, 4, 2, 1].flatMap((step) => every.filter((_, i) => i % step === 0 && (step === 8 || i % (2 * step) !== 0)));
  }
  const size = Math.max(12, Math.min(MOST_CELLS, Math.floor(Math.sqrt(4e7 / meta.rows))));
  chart.field = { size, values: [], labels: [] };
  return Array.from({ length: size * size }, (_, i) => [at(0, ((i % size) + 0.5) / size), at(1, (Math.floor(i / size) + 0.5) / size), i]);
}

/** @param {any} meta */
function leadOf(meta) {
  const voted = meta.value.labels;
  const answer = `${voted ? "a vote of the values" : "the mean"} of ${meta.value.name}, in which rows whose ${meta.key_names.join(" and ")} ${meta.key_names.length > 1 ? "are" : "is"} more similar to the query weigh more`;
  const how = { axis: "Drag the vertical line, or move it by the arrow keys", map: "Drag the marker over the map, or move it by the arrow keys", typed: "Type a query" }[/** @type {"axis"} */ (meta.mode)];
  const left = meta.left_out ? ` (${meta.left_out.toLocaleString("en-US")} without key or value left out)` : "";
  const place = meta.saved ? " This file holds the answers to a grid of queries; for others, run the command." : "";
  return `${how}: the answer is ${answer}. The table has ${meta.rows.toLocaleString("en-US")} rows${left}.${place}`;
}

/** @param {any} meta */
function legendOf(meta) {
  if (meta.mode === "typed") return meta.value.labels ? "" : "Grey: values of all rows. Orange: rows with weight, larger and stronger for more. Dot: the answer ± its standard error; bar: 90% prediction interval.";
  if (meta.mode === "map") return "Points: rows, coloured by value; the background shows the answers. Rings: rows with weight, larger and stronger for more. Dot: the query.";
  const curve = meta.value.labels ? "Bars: shares of the vote." : "Line and band: the answers to all queries, with their 90% prediction intervals. Dot: this answer ± its standard error.";
  return `Grey: rows. Orange: rows with weight, larger and stronger for more; their weights are drawn below. ${curve}`;
}

export default { render: renderAnswers };
