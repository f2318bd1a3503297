// The small maps of the grid: of all tokens, or as the settings for tokens and values change the shown map.

import { MASKED } from "./codes.js";
import { merge, viewGroups } from "./groups.js";
import { reduce } from "./matrix.js";

/** Maximum number of weights of which small maps are computed in the browser, 8 MB. */
const MOST_GRID_WEIGHTS = 4_000_000;

/** The weights of the small maps, one after the other, and for each map whether it has the common colour range.
 *  @typedef {{weights: Float32Array, shared: boolean[], normalized: boolean, queries: number, keys: number, note: string}} GridData
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
    const shared = ranges.map((/** @type {any} */ { normalized }) => normalized);
    return { weights: await source.thumbnails(index), shared, normalized: true, queries: n, keys: width, note };
  }
  const [maps, norms] = await Promise.all([
    source.rows(index, 0, n),
    Promise.all(view.layers.map((/** @type {any} */ _, /** @type {number} */ l) => (weighted && view.values[l] ? source.valueNorms(index, l) : null))),
  ]);
  const weights = new Float32Array(ranges.length * side ** 2);
  /** @type {boolean[]} */
  const shared = [];
  view.layers.forEach((/** @type {any} */ layer, /** @type {number} */ l) => {
    layer.heads.forEach((/** @type {string} */ _, /** @type {number} */ h) => {
      const at = shared.length;
      const single = maps[at].weights;
      const norm = norms[l]?.[h];
      if (norm) for (let i = 0; i < single.length; i++) if (single[i] !== MASKED) single[i] *= norm[i % width];
      const merged = merge(single, width, rows, columns);
      weights.set(shrink(merged, rows.length, columns.length, side), at * side ** 2);
      shared.push(weighted ? Boolean(norm) : view.ranges[l][h].normalized);
    });
  });
  const note = weighted && !shared.every(Boolean) ? " Maps over several heads have no values." : "";
  return { weights, shared, normalized: !weighted, queries: rows.length, keys: columns.length, note };
}

/** Return a map with `side` × `side` cells, each the weight of largest magnitude that it covers.
 *  @param {Float32Array} weights @param {number} rows @param {number} columns @param {number} side */
function shrink(weights, rows, columns, side) {
  const [down, across] = [Math.min(side, rows), Math.min(side, columns)];
  const cells = reduce(weights, columns, [0, 0, rows, columns], down, across, "max");
  return Float32Array.from({ length: side ** 2 }, (_, i) =>
    cells[Math.floor((Math.floor(i / side) * down) / side) * across + Math.floor(((i % side) * across) / side)]);
}
