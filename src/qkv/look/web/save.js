// The controls that save a figure of the maps as PDF, SVG or PNG, or the weights as JSON.

import { digitsOf, MASKED } from "./codes.js";
import { createElement, createSelect, download } from "./dom.js";
import { drawingToPng, drawingToSvg } from "./drawing.js";
import { gridFigure, mapsFigure } from "./figure.js";

/** Maximum number of weights in a JSON file. */
const MAX_WEIGHTS = 1_000_000;
const CONTENTS = /** @type {[string, string][]} */ ([["map", "this map"], ["grid", "all heads"]]);
const [MIN_INCHES, MAX_INCHES] = [1.5, 50];

/** What the controls save.
 *  @typedef {{details: () => import("./detail.js").Detail[], overview: import("./overview.js").Overview,
 *    name: () => string, title: () => string, report: (text: string) => void, notify: (text: string) => void, link: () => string,
 *    lacking: string[], element: HTMLElement, signal: AbortSignal | null}} Saved
 *  `details` are the visible maps, the selected one first; `name` is a file name without suffix, `title` that of the grid;
 *  `report` shows an error, `notify` a message; `link` returns the state, `lacking` names what the HTML file lacks;
 *  until `signal`, the browser prints the figure in place of the page; null: it does not */

/** Create the controls. @param {Saved} saved @param {string} [html] address of the page as one file */
export function saveControls(saved, html) {
  let content = "map";
  const inches = createElement("input", {
    type: "number", class: "number", min: MIN_INCHES, max: MAX_INCHES, step: "any", value: 3.5, title: "One column: 3.5, two columns: 7.2",
  });
  const buttons = /** @type {("pdf" | "svg" | "png" | "json")[]} */ (["pdf", "svg", "png", "json"]).map((kind) =>
    createElement("button", {
      text: kind.toUpperCase(), "aria-label": `Save as ${kind.toUpperCase()}`,
      onclick: () => {
        saved.report("");
        save(saved, content === "grid", Number(inches.value), kind).catch((error) => saved.report(`The file could not be saved: ${error.message}`));
      },
    }));
  const link = createElement("a", {
    href: html, download: "attention.html", text: "HTML", "aria-label": "Save as HTML",
    onclick: () => {
      link.setAttribute("href", `${html}?${saved.link()}`);
      const lacking = saved.lacking.length ? ` It lacks ${saved.lacking.join(", ")}, which need this running page.` : "";
      saved.notify(`attention.html opens in this state.${lacking}`);
    },
  });
  if (saved.signal) {
    const { element, signal } = saved;
    // Two columns wide, which fills a page of paper.
    addEventListener("beforeprint", () => {
      if (!element.dataset.shown) return; // nothing is loaded yet
      const { documentElement } = new DOMParser().parseFromString(drawingToSvg(drawingOf(saved, content === "grid", 7.2)), "image/svg+xml");
      element.append(createElement("div", { class: "printed" }, [documentElement]));
    }, { signal });
    addEventListener("afterprint", () => element.querySelector(":scope > .printed")?.remove(), { signal });
  }
  return createElement("div", { class: "save", role: "group", "aria-label": "Save" }, [
    createSelect("Save", CONTENTS, content, (value) => { content = value; }),
    createElement("label", { class: "control" }, [createElement("span", { text: "Width in inches" }), inches]), ...buttons, html ? link : null,
  ]);
}

/** @param {Saved} saved @param {boolean} grid @param {number} inches @param {"pdf" | "svg" | "png" | "json"} kind */
async function save(saved, grid, inches, kind) {
  if (!(inches >= MIN_INCHES && inches <= MAX_INCHES)) throw new Error(`The width must be between ${MIN_INCHES} and ${MAX_INCHES} inches.`);
  const name = grid && kind !== "json" ? "attention-heads" : saved.name();
  saved.notify(kind === "pdf" ? "Choose “Save as PDF” as the printer: its page is the figure." : `${name}.${kind} is saved.`);
  if (kind === "json") return download(`${name}.json`, json(saved.details()[0]), "application/json");
  const drawing = drawingOf(saved, grid, inches);
  if (kind === "svg") download(`${name}.svg`, drawingToSvg(drawing), "image/svg+xml");
  else if (kind === "png") download(`${name}.png`, await drawingToPng(drawing), "image/png");
  else await printDrawing(drawing, name);
}

/** Return the figure of the grid, or of the maps or lines that are shown. @param {Saved} saved @param {boolean} grid @param {number} inches */
function drawingOf(saved, grid, inches) {
  const style = getComputedStyle(saved.element);
  const theme = { paper: style.getPropertyValue("--paper").trim(), ink: style.getPropertyValue("--ink").trim() };
  const details = saved.details();
  const [{ lines, overlaid, title }] = details;
  if (grid) return gridFigure(saved.overview, saved.title(), inches, theme);
  return overlaid.length ? lines.figure(inches, theme, title.textContent || "") : mapsFigure(details, inches, theme);
}

/** Let the browser print a figure on a page of its size, which it saves as a PDF file with text in any script.
 *  @param {import("./drawing.js").Drawing} drawing @param {string} name of the file, without suffix */
async function printDrawing(drawing, name) {
  document.querySelector("iframe.printed")?.remove();
  const style = { position: "fixed", visibility: "hidden" };
  const frame = createElement("iframe", { class: "printed", "aria-hidden": "true", style, srcdoc: drawingToSvg(drawing) });
  const loaded = new Promise((resolve) => frame.addEventListener("load", resolve));
  document.body.append(frame);
  await loaded; // with its images
  const inside = /** @type {any} */ (frame.contentWindow);
  const sheet = new inside.CSSStyleSheet(); // style elements are against the policy of the page
  const size = `${drawing.width / 72}in ${drawing.height / 72}in`;
  sheet.replaceSync(`@page { size: ${size}; margin: 0; } body { margin: 0; } svg { display: block; }`);
  inside.document.adoptedStyleSheets = [sheet];
  inside.document.title = name;
  inside.print();
}

/** @param {import("./detail.js").Detail} detail */
export function json(detail) {
  const mapData = /** @type {import("./map.js").MapData} */ (detail.map.mapData);
  const [top, left, rows, columns] = detail.matrix ? [0, 0, mapData.rows, mapData.columns] : detail.map.part;
  if (rows * columns > MAX_WEIGHTS) {
    throw new Error(`A JSON file must have at most ${MAX_WEIGHTS.toLocaleString("en")} weights, got ${rows} × ${columns}. To save fewer weights, zoom in.`);
  }
  const range = (/** @type {number} */ first, /** @type {number} */ count) => Array.from({ length: count }, (_, i) => first + i);
  return JSON.stringify({
    title: detail.title.textContent,
    queries: mapData.queries.slice(top, top + rows),
    keys: mapData.keys.slice(left, left + columns),
    weights: range(top, rows).map((row) =>
      range(left, columns).map((column) => {
        const weight = mapData.weight(row, column);
        // Pairs that are masked, not loaded or not finite have no weight.
        return weight === null || weight === MASKED || Number.isNaN(weight) ? null : Number(weight.toPrecision(digitsOf(weight, mapData.error(row, column))));
      })),
  });
}
