// The data of a shown map: of a head, of the mean of a layer, of a difference, or of tiles that are loaded on demand.

import { axisDrawing } from "./axes.js";
import { subtract } from "./difference.js";
import { imageSize } from "./groups.js";
import { loadHead } from "./load.js";
import { countKeys, largestPair, reduce } from "./matrix.js";
import { patchesOf } from "./picture.js";
import { Tiles } from "./tiles.js";

/** The image of a view, and the patches of the rows and columns of its map.
 *  @typedef {{pixels: Uint8Array, size: [number, number], rows: ReturnType<typeof patchesOf>, columns: ReturnType<typeof patchesOf>}} ShownImage */

/** What a map shows; `groups` are the tokens of its rows and of its columns, `matrix` and `image` belong to dense maps, `loadRow` to tiled ones.
 *  @typedef {{mapData: import("./map.js").MapData & {loadRow?: (row: number, first: number, last: number) => Promise<void>}, groups: [number[][], number[][]], matrix: import("./load.js").Loaded | null, image: ShownImage | null,
 *    loadRow: ((query: number) => Promise<[number, number][]>) | null}} Shown */

/** Load a map.
 *  @param {import("./source.js").Source} source @param {import("./comparison.js").Shown} shown
 *  @param {any} options `subtract`: the map that is subtracted, `aligned`: its rows and columns from `alignViews`; and those of
 *    `loadHead`
 *  @param {() => void} refresh called after a tile has been loaded @returns {Promise<Shown>} */
export async function loadMap(source, shown, options, refresh) {
  const { view, index, layer, head } = shown;
  // Arrays have no sentences, and files have no maps of them.
  const sentences = options.unit === "sentences" && source.sentences && view.queries.units.sentences;
  if (view.levels && !sentences) return loadTiles(source, shown, refresh);
  const { subtract: other, aligned } = options;
  if (other && !(aligned.rows.pairs.length && aligned.columns.pairs.length)) {
    throw Object.assign(new Error("The two texts have no token in common. Show them side by side."), { name: "NoCommonTokens" });
  }
  const groups = (/** @type {number} */ side) => other && [aligned.rows, aligned.columns].map(({ pairs }) => pairs.map((/** @type {any} */ pair) => pair[side]));
  const [own, subtracted] = await Promise.all([
    loadHead(source, view, index, layer, head, { ...options, groups: groups(0) }),
    other ? loadHead(source, other.view, other.index, other.layer, other.head, { ...options, groups: groups(1) }) : null,
  ]);
  const matrix = subtracted ? subtract(own, subtracted, { queries: aligned.rows.names, keys: aligned.columns.names }) : own;
  const { weights, normalized, error, rows, columns } = matrix;
  const size = imageSize(view);
  const pixels = size && source.pixels ? await source.pixels(index) : null;
  const width = matrix.keys.length;
  const [row, column] = largestPair(matrix);
  return {
    matrix, groups: [rows, columns],
    image: pixels && size
      ? { pixels, size, rows: patchesOf(view.queries, rows), columns: patchesOf(view.keys || view.queries, columns) } : null,
    loadRow: null,
    mapData: {
      queries: matrix.queries, keys: matrix.keys,
      rows: matrix.queries.length, columns: width, counts: countKeys(weights, width), normalized, error,
      cells: (part, height, across, reduction) => reduce(weights, width, part, height, across, reduction),
      weight: (row, column) => weights[row * width + column], relative: error(row, column) / Math.abs(weights[row * width + column]) || 0,
      axes: [axisDrawing(view.queries, rows, matrix.queries, pixels), axisDrawing(view.keys || view.queries, columns, matrix.keys, pixels)],
    },
  };
}

/** @param {import("./source.js").Source} source @param {import("./comparison.js").Shown} shown @param {() => void} refresh
 *  @returns {Promise<Shown>} */
async function loadTiles(source, { view, index, layer, head }, refresh) {
  const keys = view.keys || view.queries;
  const { counts, error } = await source.counts(index, layer, head);
  const [rows, columns] = [view.queries, keys].map(({ tokens }) => tokens.map((/** @type {string} */ _, /** @type {number} */ i) => [i]));
  const [{ length: count }, { length: width }] = [rows, columns];
  const tiles = new Tiles(
    { rows: count, columns: width, levels: view.levels || 0, base: view.base || 0, overview: view.overview || [1, 1], tile: (...place) => source.tile(index, layer, head, ...place) },
    refresh,
  );
  await tiles.first();
  return {
    matrix: null, image: null, groups: [rows, columns],
    mapData: {
      queries: view.queries.tokens, keys: keys.tokens, rows: count, columns: width, counts, normalized: view.ranges[layer][head].normalized,
      axes: [axisDrawing(view.queries, rows, view.queries.tokens, null), axisDrawing(keys, columns, keys.tokens, null)],
      weight: (row, column) => tiles.weight(row, column), relative: error,
      error: (row, column, weight = tiles.weight(row, column)) => (Number.isFinite(weight) ? error * Math.abs(weight ?? 0) : 0),
      cells: (...part) => tiles.reduce(...part),
      loading: () => tiles.pending.size > 0,
      loadRow: (...part) => tiles.loadRow(...part),
    },
    loadRow: (query) => source.row(index, layer, head, query),
  };
}
