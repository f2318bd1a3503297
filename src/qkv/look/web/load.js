// Load dense maps of heads, or of the mean over the heads of a layer, with merged words and weights times value norms.

import { errorOf, merge, nameOf, timesNorms, viewGroups } from "./groups.js";

/** The index of the mean over the heads of a layer, in place of the index of a head. */
export const MEAN_HEAD = -1;

/** A map with the tokens of each row and column.
 *  @typedef {import("./matrix.js").Matrix & {rows: number[][], columns: number[][], normalized: boolean,
 *    parts?: Parts}} Loaded `rows`, `columns`: tokens of each */

/** The maps of a difference, at aligned groups. @typedef {{first: Loaded, second: Loaded}} Parts */

/** @param {import("./source.js").Source} source @param {import("./detail.js").View} view @param {number} index of the view
 *  @param {number} layer @param {number} head or `MEAN_HEAD`
 *  @param {import("./groups.js").Grouping & {values?: boolean, groups?: number[][][]}} options `groups`: of the queries and keys, in
 *    place of those of the view @returns {Promise<Loaded>} */
export async function loadHead(source, view, index, layer, head, options) {
  const keys = view.keys || view.queries;
  const heads = head === MEAN_HEAD ? view.layers[layer].heads.map((_, i) => i) : [head];
  const norms = options.values && view.values?.[layer] ? await source.valueNorms(index, layer) : null;
  const width = keys.tokens.length;
  const [rows, columns] = options.groups ?? viewGroups(view, options);
  const maps = await Promise.all(heads.map(async (one) => {
    if (view.levels) return { weights: await /** @type {any} */ (source.sentences)(index, layer, one), error: () => 0 };
    const map = await source.map(index, layer, one);
    const norm = norms ? norms[one] : null;
    return {
      weights: merge(timesNorms(map.weights, norm), width, rows, columns),
      error: errorOf(map, width, rows, columns, heads.length > 1 || norm !== null, norm),
    };
  }));
  const [{ weights: first }, ...more] = maps;
  const weights = more.length ? first.map((weight, i) => more.reduce((sum, map) => sum + map.weights[i], weight) / maps.length) : first;
  return {
    weights, rows, columns,
    error: (row, column) => maps.reduce((sum, map) => sum + map.error(row, column), 0) / maps.length,
    queries: rows.map((group) => nameOf(view.queries, group, options.unit)),
    keys: columns.map((group) => nameOf(keys, group, options.unit)),
    normalized: norms === null && heads.every((one) => view.ranges[layer][one].normalized),
  };
}
