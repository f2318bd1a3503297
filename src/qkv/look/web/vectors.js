// Queries and keys of the heads of a layer in an exported file, from which weights are computed when they are shown, as
// `qkv/look/head_call.py` defines them.

import { MASKED, TINY } from "./codes.js";
import { fromJson, interleave } from "./unpack.js";

/** Smallest number of 32 bits with all its digits. */
const SMALLEST = 2 ** -126;

/** The queries and keys of a head, row by row, and the steps of their columns.
 *  @typedef {{query: Float32Array, key: Float32Array, steps: [Float32Array, Float32Array], sums: Float32Array, bias: Float32Array,
 *    width: number, scale: number, cap: number, error: number}} Head
 *    `sums`: log-sum-exp of each query; `error`: bound of the relative error of a weight */

export class Vectors {
  /** @param {Uint8Array} bytes */
  constructor(bytes) {
    const end = bytes.indexOf(10);
    const header = fromJson(bytes.subarray(0, end));
    const { buffer } = interleave(bytes.subarray(end + 1), 4);
    let at = 0;
    /** Read words for each head. @param {any} type @param {(width: number) => number} count */
    const read = (type, count) => header.width.map((/** @type {number} */ width) => {
      const words = new type(buffer, 4 * at, count(width));
      at += words.length;
      return words;
    });
    const { queries, keys } = header;
    this.queries = queries;
    this.keys = keys;
    const [query, key] = [queries, keys].map((count) => {
      const [offsets, steps] = [0, 1].map(() => read(Float32Array, (width) => width));
      const codes = read(Int32Array, (width) => width * count);
      return { rows: codes.map((/** @type {Int32Array} */ own, /** @type {number} */ h) => rowsOf(offsets[h], steps[h], own)), steps };
    });
    const sums = read(Float32Array, () => queries);
    const biases = read(Float32Array, () => header.bias);
    /** first key of each query, and the one after its last @type {[Int32Array, Int32Array]} */
    this.ranges = [new Int32Array(buffer, 4 * at, queries), new Int32Array(buffer, 4 * (at + queries), queries)];
    /** @type {Head[]} */
    this.heads = header.width.map((/** @type {number} */ width, /** @type {number} */ h) => ({
      query: query.rows[h], key: key.rows[h], steps: [query.steps[h], key.steps[h]], sums: sums[h], bias: biases[h],
      width, scale: header.scale[h], cap: header.cap[h], error: header.error[h],
    }));
  }

  /** Return the logit of a pair that the mask allows. @param {Head} head @param {number} row @param {number} column */
  #logit({ query, key, width, scale, cap, bias }, row, column) {
    let sum = 0;
    for (let d = 0, i = row * width, j = column * width; d < width; d++) sum += query[i + d] * key[j + d];
    const logit = cap ? cap * Math.tanh((scale * sum) / cap) : scale * sum;
    return bias.length ? logit + bias[column - row + this.queries - 1] : logit;
  }

  /** Return the weights of some queries and keys, row by row.
   *  @param {number} number of the head @param {number} top @param {number} bottom @param {number} [left] @param {number} [right] */
  weights(number, top, bottom, left = 0, right = this.keys) {
    const head = this.heads[number];
    const [first, last] = this.ranges;
    const weights = new Float32Array((bottom - top) * (right - left)).fill(MASKED);
    for (let row = top; row < bottom; row++) {
      const start = (row - top) * (right - left) - left;
      const stop = Math.min(right, last[row]);
      for (let column = Math.max(left, first[row]); column < stop; column++) {
        const weight = Math.exp(this.#logit(head, row, column) - head.sums[row]);
        weights[start + column] = weight < SMALLEST ? TINY : weight;
      }
    }
    return weights;
  }

  /** Return the maximum and the mean of each cell of a tile, as `TiledMap.tile` does. @param {number} number of the head
   *  @param {number} size cells along each side @param {number} factor tokens along each side of a cell
   *  @param {number} y @param {number} x place of the tile */
  tile(number, size, factor, y, x) {
    const cells = new Float32Array(2 * size * size).fill(MASKED);
    const [left, right] = [x * size * factor, Math.min(this.keys, (x + 1) * size * factor)];
    for (let row = 0; row < size; row++) {
      const top = (y * size + row) * factor;
      const bottom = Math.min(this.queries, top + factor);
      if (top >= bottom) break;
      const weights = this.weights(number, top, bottom, left, right);
      const width = right - left;
      for (let start = 0, at = row * size; start < width; start += factor, at++) {
        const stop = Math.min(width, start + factor);
        let [maximum, sum] = [MASKED, 0];
        for (let i = 0; i < weights.length; i += width) {
          for (let j = i + start; j < i + stop; j++) {
            if (weights[j] === MASKED) continue;
            if (weights[j] > maximum) maximum = weights[j];
            sum += weights[j];
          }
        }
        if (maximum === MASKED) continue;
        cells[at] = maximum;
        cells[at + size * size] = sum / ((bottom - top) * (stop - start));
      }
    }
    return cells;
  }

  /** Return query, key and product of a pair, dimension by dimension, and their errors.
   *  @param {number} number of the head @param {number} row @param {number} column */
  pair(number, row, column) {
    const head = this.heads[number];
    const { width, scale, steps, error } = head;
    const [query, key] = [head.query.subarray(row * width, (row + 1) * width), head.key.subarray(column * width, (column + 1) * width)];
    const [weight] = this.weights(number, row, row + 1, column, column + 1);
    const masked = weight === MASKED;
    const product = Array.from(query, (one, d) => scale * one * key[d]);
    return {
      query: Array.from(query), key: Array.from(key), product, scale, error,
      errors: {
        query: Array.from(steps[0], (step) => step / 2), key: Array.from(steps[1], (step) => step / 2),
        product: product.map((_, d) => (Math.abs(scale) * (Math.abs(query[d]) * steps[1][d] + Math.abs(key[d]) * steps[0][d])) / 2),
      },
      logit: masked ? null : this.#logit(head, row, column), weight: masked ? 0 : weight,
    };
  }
}

/** Return the elements of vectors, row by row, from the multiples of the steps of their columns, column by column.
 *  @param {Float32Array} offsets @param {Float32Array} steps @param {Int32Array} codes */
function rowsOf(offsets, steps, codes) {
  const width = offsets.length;
  const count = codes.length / width;
  const rows = new Float32Array(codes.length);
  for (let d = 0; d < width; d++) for (let i = 0; i < count; i++) rows[i * width + d] = offsets[d] + steps[d] * codes[d * count + i];
  return rows;
}
