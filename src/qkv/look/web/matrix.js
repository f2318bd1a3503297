// Functions on dense maps: their largest weights, and their weights at the resolution of the screen.

import { MASKED } from "./codes.js";

/** Name of the layer of maps over all heads, which are no heads. */
export const ALL_HEADS = "all heads";

/** A map of weights with the tokens of its axes. Masked pairs have the weight `MASKED`.
 *  @typedef {Object} Matrix
 *  @property {Float32Array} weights queries × keys, row by row
 *  @property {string[]} queries
 *  @property {string[]} keys
 *  @property {(row: number, column: number) => number} error largest difference from the exact weight */

/** Return the largest finite magnitude of each row. @param {Float32Array} weights @param {number} width */
export function rowMaxima(weights, width) {
  const maxima = new Float32Array(weights.length / width);
  for (let row = 0, i = 0; row < maxima.length; row++) {
    for (const end = i + width; i < end; i++) {
      const magnitude = Math.abs(weights[i]);
      if (magnitude > maxima[row] && magnitude < Infinity) maxima[row] = magnitude;
    }
  }
  return maxima;
}

/** Return the number of keys of each query that are not masked. @param {Float32Array} weights @param {number} width @returns {Uint32Array} */
export function countKeys(weights, width) {
  const counts = new Uint32Array(weights.length / width);
  for (let row = 0, i = 0; row < counts.length; row++) for (const end = i + width; i < end; i++) if (weights[i] !== MASKED) counts[row]++;
  return counts;
}

/** Return the entries of largest magnitude of a row, in decreasing order, without masked keys.
 *  @param {Matrix} matrix @param {number} row @param {number} count
 *  @returns {{key: number, weight: number}[]} */
export function strongest(matrix, row, count) {
  const width = matrix.keys.length;
  const found = Array.from({ length: width }, (_, key) => ({ key, weight: matrix.weights[row * width + key] }));
  const magnitude = (/** @type {number} */ weight) => (Number.isNaN(weight) ? -1 : Math.abs(weight));
  return found.filter(({ weight }) => weight !== MASKED).sort((a, b) => magnitude(b.weight) - magnitude(a.weight)).slice(0, count);
}

/** Return the query and the key of the weight of largest magnitude. @param {Matrix} matrix @returns {[number, number]} */
export function largestPair({ weights, keys }) {
  let at = 0;
  for (let i = 1; i < weights.length; i++) {
    const magnitude = Math.abs(weights[i]);
    if (magnitude < Infinity && !(Math.abs(weights[at]) < Infinity && Math.abs(weights[at]) >= magnitude)) at = i;
  }
  return [Math.floor(at / keys.length), at % keys.length];
}

/** Reduce a part of a map to the screen resolution: each cell is the weight of largest magnitude, or the mean of the
 *  weights, among the pairs that it covers and that are not masked.
 *  @param {Float32Array} weights @param {number} width
 *  @param {[number, number, number, number]} part first row, first column, rows, columns
 *  @param {number} down @param {number} across number of cells
 *  @param {"max" | "mean"} reduction */
export function reduce(weights, width, [top, left, rows, columns], down, across, reduction) {
  const cells = new Float32Array(down * across);
  for (let y = 0; y < down; y++) {
    const y0 = top + Math.floor((y * rows) / down);
    const y1 = Math.max(y0 + 1, top + Math.floor(((y + 1) * rows) / down));
    for (let x = 0; x < across; x++) {
      const x0 = left + Math.floor((x * columns) / across);
      const x1 = Math.max(x0 + 1, left + Math.floor(((x + 1) * columns) / across));
      let [largest, sum, count] = [0, 0, 0];
      for (let i = y0; i < y1; i++) {
        for (let j = x0; j < x1; j++) {
          const weight = weights[i * width + j];
          if (weight === MASKED) continue;
          if (Math.abs(weight) > Math.abs(largest)) largest = weight;
          sum += weight;
          count++;
        }
      }
      // One weight that is not finite makes the sum, and so the cell, not finite.
      const value = reduction === "max" && !Number.isNaN(sum) ? largest : sum / count;
      cells[y * across + x] = count ? value : MASKED;
    }
  }
  return cells;
}
