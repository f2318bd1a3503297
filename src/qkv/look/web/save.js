// Save the map as a PNG or SVG image, or the weights as JSON.

import { MASKED } from "./codes.js";
import { pixels } from "./colour.js";
import { download } from "./dom.js";
import { describeRange } from "./legend.js";
import { rowMaxima } from "./map.js";
import { shadeOf } from "./range.js";

/** Maximum number of weights in a JSON file. */
const MAX_WEIGHTS = 1_000_000;

/** @param {import("./detail.js").Detail} detail @param {string} name file name without suffix
 *  @param {"png" | "svg" | "json"} kind */
export async function save(detail, name, kind) {
  if (kind === "png") {
    const blob = await new Promise((resolve) => detail.map.canvas.toBlob(resolve));
    download(`${name}.png`, blob, "image/png");
  } else if (kind === "svg") download(`${name}.svg`, svg(detail), "image/svg+xml");
  else download(`${name}.json`, json(detail), "application/json");
}

/** @param {string} text */
function escaped(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** Return the map as SVG, with its cells as one embedded image.
 *  @param {import("./detail.js").Detail} detail */
export function svg(detail) {
  const { map } = detail;
  const mapData = /** @type {import("./map.js").MapData} */ (map.mapData);
  const [top, left, rows, columns] = map.part;
  const down = Math.min(rows, 1024);
  const across = Math.min(columns, 1024);
  const cells = mapData.cells(map.part, down, across, map.reduction);
  const canvas = document.createElement("canvas");
  canvas.width = across;
  canvas.height = down;
  const range = /** @type {import("./range.js").Range} */ (map.range);
  const palette = /** @type {import("./colour.js").Palette} */ (map.palette);
  const image = pixels(cells, across, shadeOf(range), palette, rowMaxima(cells, across));
  /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d")).putImageData(image, 0, 0);
  const size = 14;
  const scale = Math.min(1, 1000 / (Math.max(rows, columns) * size));
  const step = size * scale;
  const every = Math.ceil(11 / step);
  const width = columns * step;
  const height = rows * step;
  const labels = [];
  for (let i = 0; i < rows; i += every) {
    labels.push(`<text x="-6" y="${(i + 0.5) * step}" text-anchor="end" dominant-baseline="middle">${escaped(mapData.query(top + i))}</text>`);
  }
  for (let i = 0; i < columns; i += every) {
    labels.push(`<text transform="translate(${(i + 0.5) * step} ${height + 6}) rotate(-90)" text-anchor="end" dominant-baseline="middle">${escaped(mapData.key(left + i))}</text>`);
  }
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="-130 -24 ${Math.max(width, 560) + 150} ${height + 180}" font-family="sans-serif" font-size="11">
<title>${escaped(detail.title.textContent || "")}</title>
<text x="0" y="-10" font-weight="600">${escaped(detail.title.textContent || "")}</text>
<image width="${width}" height="${height}" preserveAspectRatio="none" style="image-rendering:pixelated" href="${canvas.toDataURL()}"/>
<rect width="${width}" height="${height}" fill="none" stroke="#888" stroke-width=".5"/>
${labels.join("\n")}
<text x="${width / 2}" y="${height + 125}" text-anchor="middle" font-weight="600">key (attended)</text>
<text x="0" y="${height + 145}">${escaped(describeRange(range))}</text>
<text transform="translate(-112 ${height / 2}) rotate(-90)" text-anchor="middle" font-weight="600">query (attends)</text>
</svg>
`;
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
    queries: range(top, rows).map((row) => mapData.query(row)),
    keys: range(left, columns).map((column) => mapData.key(column)),
    weights: range(top, rows).map((row) =>
      range(left, columns).map((column) => savedWeight(mapData.weight(row, column)))),
  });
}

/** Return a weight with the digits of its code; null if the pair is masked, or its weight is not loaded or not finite.
 *  @param {number | null} weight */
function savedWeight(weight) {
  return weight === null || weight === MASKED || Number.isNaN(weight) ? null : Number(weight.toPrecision(3));
}
