// The small maps of the grid: of all tokens, or as the settings for tokens and values change the shown map.

import { merge, timesNorms, viewGroups } from "./groups.js";
import { reduce } from "./matrix.js";

/** Maximum number of weights of which small maps are computed in the browser, 8 MB. */
const MOST_GRID_WEIGHTS = 4_000_000;

/** The weights of the small maps, and whether each has the common colour range.
 *  @typedef {{maps: {weights: Float32Array, shared: boolean}[], normalized: boolean, queries: number, keys: number, note: string}} GridData
 *    `normalized`: the common range is that of shares of 1; `queries` and `keys`: their numbers; `note`: a remark */

/** Load the small maps of a view.
 *  @param {import("./source.js").Source} source @param {any} view @param {number} index of the view
 *  @param {import("./groups.js").Grouping & {values: boolean}} options @param {number} side of a small map in cells
 *  @returns {Promise<GridData>} */
export async function loadGrid(source, view, index, options, side) {
  const ranges = view.ranges.flat();
  const keyAxis = view.keys || view.queries;
  const [n, width] = [view.queries.tokens.length, keyAxis.tokens.length];
  const [rows, columns] = view.levels ? [[], []] : viewGroups(view, options);
  const weighted = Boolean(options.values && view.values?.some(Boolean));
  const changed = !view.levels && (weighted || rows.length < n || columns.length < width);
  const small = rows.length && columns.length && n * width * ranges.length <= MOST_GRID_WEIGHTS;
  if (!changed || !small) {
    const note = changed ? " They are too large to follow the settings: they show all tokens and plain weights." : "";
    const maps = (await source.thumbnails(index)).map((/** @type {Float32Array} */ weights, /** @type {number} */ i) => ({ weights, shared: ranges[i].normalized }));
    return { maps, normalized: true, queries: n, keys: width, note };
  }
  const [heads, norms] = await Promise.all([
    source.rows(index, 0, n),
    Promise.all(view.layers.map((/** @type {any} */ _, /** @type {number} */ l) => (weighted && view.values[l] ? source.valueNorms(index, l) : null))),
  ]);
  const rest = heads.values();
  const maps = view.layers.flatMap((/** @type {any} */ layer, /** @type {number} */ l) => layer.heads.map((/** @type {string} */ _, /** @type {number} */ h) => {
    const { weights } = /** @type {import("./source.js").Weights} */ (rest.next().value);
    const norm = norms[l]?.[h] ?? null;
    const merged = merge(timesNorms(weights, norm), width, rows, columns);
    return { weights: shrink(merged, rows.length, columns.length, side), shared: weighted ? norm !== null : view.ranges[l][h].normalized };
  }));
  const note = weighted && !maps.every((/** @type {any} */ one) => one.shared) ? " Maps over several heads have no values." : "";
  return { maps, normalized: !weighted, queries: rows.length, keys: columns.length, note };
}

/** Return a map with `side` × `side` cells, each the weight of largest magnitude that it covers.
 *  @param {Float32Array} weights @param {number} rows @param {number} columns @param {number} side */
function shrink(weights, rows, columns, side) {
  const [down, across] = [Math.min(side, rows), Math.min(side, columns)];
  const cells = reduce(weights, columns, [0, 0, rows, columns], down, across, "max");
  return Float32Array.from({ length: side ** 2 }, (_, i) =>
    cells[Math.floor((Math.floor(i / side) * down) / side) * across + Math.floor(((i % side) * across) / side)]);
}
