// Queries and keys of the heads of a layer in an exported file, from which weights are computed when they are shown, as
// `qkv/look/head_call.py` defines them.

import { MASKED, TINY } from "./codes.js";
import { fromJson, interleave } from "./unpack.js";

/** Smallest number of 32 bits with all its digits. */
const SMALLEST = 2 ** -126;

/** The queries and keys of a head, row by row, and the steps of their columns.
 *  @typedef {{vectors: () => {query: Float32Array, key: Float32Array}, rows?: {query: Float32Array, key: Float32Array}, steps: [Float32Array, Float32Array], sums: Float32Array, bias: Float32Array,
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
      return { rows: (/** @type {number} */ h) => rowsOf(offsets[h], steps[h], codes[h]), steps };
    });
    const sums = read(Float32Array, () => queries);
    const biases = read(Float32Array, () => header.bias);
    /** first key of each query, and the one after its last @type {[Int32Array, Int32Array]} */
    this.ranges = [new Int32Array(buffer, 4 * at, queries), new Int32Array(buffer, 4 * (at + queries), queries)];
    /** @type {Head[]} */
    this.heads = header.width.map((/** @type {number} */ width, /** @type {number} */ h) => ({
      vectors: () => ({ query: query.rows(h), key: key.rows(h) }), steps: [query.steps[h], key.steps[h]], sums: sums[h], bias: biases[h],
      width, scale: header.scale[h], cap: header.cap[h], error: header.error[h],
    }));
  }

  /** Return the weights of some queries and keys, row by row.
   *  @param {number} number of the head @param {number} top @param {number} bottom @param {number} [left] @param {number} [right] */
  weights(number, top, bottom, left = 0, right = this.keys) {
    const head = this.heads[number];
    const { width, sums } = head;
    const { query, key } = (head.rows ??= head.vectors());
    const [first, last] = this.ranges;
    const weights = new Float32Array((bottom - top) * (right - left)).fill(MASKED);
    for (let row = top; row < bottom; row++) {
      const start = (row - top) * (right - left) - left;
      const stop = Math.min(right, last[row]);
      for (let column = Math.max(left, first[row]); column < stop; column++) {
        // Four sums take half the time of one, because their additions do not wait for each other.
        let a = 0, b = 0, c = 0, d = 0, i = row * width, j = column * width;
        const end = i + width;
        for (; i < end - 3; i += 4, j += 4) {
          a += query[i] * key[j];
          b += query[i + 1] * key[j + 1];
          c += query[i + 2] * key[j + 2];
          d += query[i + 3] * key[j + 3];
        }
        for (; i < end; i++, j++) a += query[i] * key[j];
        const weight = Math.exp(this.#logit(number, row, column, a + b + c + d) - sums[row]);
        weights[start + column] = weight < SMALLEST ? TINY : Math.min(1, weight); // errors of the vectors may exceed 1
      }
    }
    return weights;
  }

  /** @param {number} number of the head @param {number} row @param {number} column @param {number} product of query and key */
  #logit(number, row, column, product) {
    const { scale, cap, bias } = this.heads[number];
    const logit = cap ? cap * Math.tanh((scale * product) / cap) : scale * product;
    return bias.length ? logit + bias[column - row + this.queries - 1] : logit;
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
    const { width, scale, cap, steps, error } = head;
    const rows = (head.rows ??= head.vectors());
    const [query, key] = [rows.query.subarray(row * width, (row + 1) * width), rows.key.subarray(column * width, (column + 1) * width)];
    const [weight] = this.weights(number, row, row + 1, column, column + 1);
    const masked = weight === MASKED;
    const product = Array.from(query, (one, d) => scale * one * key[d]);
    const errors = product.map((_, d) => (Math.abs(scale) * (Math.abs(query[d]) * steps[1][d] + Math.abs(key[d]) * steps[0][d])) / 2);
    return {
      query: Array.from(query), key: Array.from(key), product, scale, error,
      errors: {
        query: Array.from(steps[0], (step) => step / 2), key: Array.from(steps[1], (step) => step / 2),
        product: errors, logit: Math.log1p(error), rest: cap ? errors.reduce((sum, one) => sum + one, 0) : 0,
      },
      logit: masked ? null : this.#logit(number, row, column, product.reduce((sum, one) => sum + one, 0) / scale), weight: masked ? 0 : weight,
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
