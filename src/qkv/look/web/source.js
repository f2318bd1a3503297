// Sources of maps: a server, an exported file, or the kernel of a notebook. Each source returns weights.

import { codesOf, dequantize } from "./codes.js";
import { toKernel } from "./kernel.js";
import { fromJson, interleave, openPart, partOf } from "./unpack.js";
import { Vectors } from "./vectors.js";

/** Number of keys that are listed for a query of a tiled map. */
const LISTED_KEYS = 10;
/** Cells along each side of a tile. */
export const TILE_SIZE = 256;

/** Weights, row by row. `error` bounds their relative error; 0: they have three exact digits.
 *  @typedef {{weights: Float32Array, error: number}} Weights */

/** A request, whose arguments are the indices of a view, a layer and a head, as far as it needs them, and others.
 *  @typedef {(...place: number[]) => Promise<any>} Request */

/** @typedef {Object} Source
 *  @property {Request} thumbnails weights of the thumbnails of all heads of a view @property {Request} map all `Weights` of a head
 *  @property {Request} tile of a head, level, y and x: maximum, then mean of each cell
 *  @property {Request} row of a head and query: key and weight of the keys of largest weight
 *  @property {Request} counts of a head of a tiled map: number of keys of each query, and the bound of the relative error of its weights
 *  @property {Request} [sentences] of a head of a tiled map: weights between its sentences
 *  @property {Request} pixels red, green and blue of the image of a view
 *  @property {Request} rows of a view, first query and the one after the last: their `Weights` in all heads
 *  @property {Request} valueNorms of a view and layer: norms of the values, heads × keys
 *  @property {Request} predictions predicted tokens of all queries of a view
 *  @property {Request} pair of a head, query and key: query and key vector
 *  @property {Request} aligned of two views, the first one before the other: for their queries and their keys the pair of groups to which
 *    each token belongs, −1: none
 *  @property {string} [digits] how a file stores weights
 *  @property {Request} [flow] of a view, query and key: attention flow
 *  @property {Request} [differences] of two views: layer, head, distance and its error of each head, and layer, head, query, key, both
 *    weights and their errors of the pairs that differ most
 *  @property {(view: number, query: number, heads: [number, number, number][]) => Promise<any>} [effect] of scaled heads, given by layer,
 *    head and percent
 *  @property {Request} [weight] of a head, query and key: the weight with all digits, as a text */

/** Create a source from a function that sends a request to Python and returns bytes.
 *  @param {any} meta @param {(what: string, ...place: number[]) => Promise<Uint8Array>} send @returns {Source} */
function fromRequests(meta, send) {
  const json = async (/** @type {string} */ what, /** @type {number[]} */ ...place) => fromJson(await send(what, ...place));
  const exponent = (/** @type {number[]} */ [view, layer, head]) => meta.views[view].ranges[layer][head].exponent;
  const names = ["row", "flow", "predictions", "differences", "aligned", "pair", "weight"];
  const jsonRequests = /** @type {any} */ (Object.fromEntries(names.map((name) => [name, (/** @type {number[]} */ ...place) => json(name, ...place)])));
  return {
    thumbnails: async (view) => allHeads(meta, view, await send("thumbnails", view)),
    map: async (...place) => ({ weights: dequantize(codesOf(await send("map", ...place)), exponent(place)), error: 0 }),
    rows: async (view, start, stop) => allHeads(meta, view, await send("rows", view, start, stop)).map((weights) => ({ weights, error: 0 })),
    tile: async (view, layer, head, ...place) => dequantize(codesOf(await send("tile", view, layer, head, ...place)), exponent([view, layer, head])),
    ...jsonRequests, sentences: async (...place) => new Float32Array((await send("sentences", ...place)).slice().buffer),
    counts: async (...place) => ({ counts: new Uint32Array((await send("key_counts", ...place)).slice().buffer), error: 0 }),
    pixels: (view) => send("pixels", view),
    valueNorms: (...place) => json("value_norms", ...place),
    effect: (view, query, heads) => json("effect", view, query, ...heads.flat()),
  };
}

/** Return the weights of codes of each head of a view, which are of the same number for each head.
 *  @param {any} meta @param {number} view @param {Uint8Array} bytes @returns {Float32Array[]} */
function allHeads(meta, view, bytes) {
  const codes = codesOf(bytes);
  const ranges = meta.views[view].ranges.flat();
  const area = codes.length / ranges.length;
  return ranges.map((/** @type {any} */ { exponent }, /** @type {number} */ i) => dequantize(codes.subarray(i * area, (i + 1) * area), exponent));
}

/** @param {any} meta @param {string} base address of the page @returns {Source} */
export function fromServer(meta, base) {
  return fromRequests(meta, async (what, ...place) => {
    const path = `${what}/${place.join("/")}`;
    const answer = await fetch(`${base}${path}`);
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
    return new Uint8Array(await answer.arrayBuffer());
  });
}

/** Create a source that sends requests to the kernel of a notebook. @param {any} meta @param {any} model of anywidget @returns {Source} */
export function fromKernel(meta, model) {
  const ask = toKernel(model);
  return fromRequests(meta, async (what, ...place) => {
    const [message, buffers] = await ask({ what, place });
    if (message.error) throw new Error(message.error);
    return new Uint8Array(buffers[0].buffer, buffers[0].byteOffset, buffers[0].byteLength);
  });
}

/** Create a source from the parts of an exported file, each of which is unpacked on first use. A layer has a part
 *  `vectors/…` with its queries and keys, or `layer/…` with the codes of its weights.
 *  @param {any} meta @returns {Source} */
export function fromParts(meta) {
  const vectors = (/** @type {number} */ view, /** @type {number} */ layer) => openPart(`vectors/${view}/${layer}`, (bytes) => new Vectors(bytes));
  const count = (/** @type {any} */ side) => side.count ?? side.tokens.length;
  const digits = meta.views.some((/** @type {any} */ view, /** @type {number} */ i) => view.layers.some((/** @type {any} */ _, /** @type {number} */ j) => partOf(`vectors/${i}/${j}`)))
    ? "Weights are computed from the rounded queries and keys in this file, and printed with the digits that are certain, at most three." : undefined;
  /** Return weights of some queries of a head. */
  const weights = async (/** @type {number} */ view, /** @type {number} */ layer, /** @type {number} */ head, /** @type {number} */ start, /** @type {number} */ stop) => {
    const { queries, keys, ranges } = meta.views[view];
    if (partOf(`vectors/${view}/${layer}`)) {
      const found = await vectors(view, layer);
      return { weights: found.weights(head, start, stop), error: found.heads[head].error };
    }
    const codes = await openPart(`layer/${view}/${layer}`, (bytes) => codesOf(interleave(bytes, 2)));
    const [width, first] = [count(keys || queries), head * count(queries)];
    return { weights: dequantize(codes.subarray((first + start) * width, (first + stop) * width), ranges[layer][head].exponent), error: 0 };
  };
  // The parts of a file have the names and the bytes of requests; those that need the running model are missing.
  const requests = fromRequests(meta, (what, ...place) => openPart(`${what}/${place.join("/")}`, (bytes) => bytes));
  return {
    ...requests, digits, flow: undefined, differences: undefined, effect: undefined, weight: undefined, sentences: undefined,
    map: (view, layer, head) => weights(view, layer, head, 0, count(meta.views[view].queries)),
    rows: (view, start, stop) => Promise.all(meta.views[view].ranges.flatMap((/** @type {any[]} */ heads, /** @type {number} */ layer) =>
      heads.map((_, head) => weights(view, layer, head, start, stop)))),
    tile: async (view, layer, head, level, y, x) => {
      const { base, levels, overview, ranges } = meta.views[view];
      if (level < base) {
        // The page draws coarser tiles between the tiles that it computes.
        await new Promise((done) => setTimeout(done));
        return (await vectors(view, layer)).tile(head, TILE_SIZE, 2 ** level, y, x);
      }
      const codes = await openPart(`tiles/${view}/${layer}`, (bytes) => codesOf(interleave(bytes, 2)));
      const tilesOf = (/** @type {number} */ at) => overview.map((/** @type {number} */ cells) => Math.ceil(cells / (TILE_SIZE * 2 ** (at - base))));
      let [own, index] = [0, 0];
      for (let at = base; at <= levels; at++) {
        if (at === level) index = own + y * tilesOf(at)[1] + x;
        own += tilesOf(at)[0] * tilesOf(at)[1];
      }
      const size = 2 * TILE_SIZE ** 2;
      return dequantize(codes.subarray((head * own + index) * size, (head * own + index + 1) * size), ranges[layer][head].exponent);
    },
    row: async (view, layer, head, query) => {
      const found = (await vectors(view, layer)).weights(head, query, query + 1);
      const [first, last] = (await vectors(view, layer)).ranges.map((range) => range[query]);
      return Array.from(found, (weight, key) => /** @type {[number, number]} */ ([key, weight])).slice(first, last)
        .sort((a, b) => b[1] - a[1]).slice(0, LISTED_KEYS);
    },
    counts: async (view, layer, head) => {
      const { ranges: [first, last], heads } = await vectors(view, layer);
      return { counts: last.map((end, i) => end - first[i]), error: heads[head].error };
    },
    pair: async (view, layer, head, query, key) => {
      const found = (await vectors(view, layer)).pair(head, query, key);
      return { ...found, value_norm: meta.views[view].values?.[layer] ? (await requests.valueNorms(view, layer))[head][key] : null };
    },
  };
}
