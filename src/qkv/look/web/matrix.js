// Functions on dense maps: merge tokens into words, leave out special tokens, and reduce to the screen resolution.

import { errorOfWeight, MASKED } from "./codes.js";

/** Name of the layer of maps over all heads, which are no heads. */
export const ALL_HEADS = "all heads";

/** A map of weights with the tokens of its axes. Masked pairs have the weight `MASKED`.
 *  @typedef {Object} Matrix
 *  @property {Float32Array} weights queries × keys, row by row
 *  @property {string[]} queries
 *  @property {string[]} keys
 *  @property {(row: number, column: number) => number} error largest difference from the exact weight */

/** Return lists of token indices, one for each group of tokens.
 *  @param {{tokens: string[], words: number[], special: boolean[], segments?: number[]}} side
 *  @param {boolean} whole group the tokens of each word
 *  @param {boolean} hide leave out special tokens
 *  @param {number} [segment] leave out tokens that do not belong to this text of a pair */
export function groupsOf(side, whole, hide, segment = -1) {
  /** @type {number[][]} */
  const groups = [];
  let last = -1;
  side.tokens.forEach((_, i) => {
    if ((hide && side.special[i]) || (segment >= 0 && side.segments?.[i] !== segment)) return;
    if (whole && groups.length && side.words[i] >= 0 && side.words[i] === last) groups[groups.length - 1].push(i);
    else groups.push([i]);
    last = side.words[i];
  });
  return groups;
}

/** Return the index of the group of a token, or of the nearest group after or before it if the token is left out.
 *  @param {number[][] | undefined} groups undefined: each token is a group @param {number} token @param {number} count of groups */
export function groupOfToken(groups, token, count) {
  const at = groups ? groups.findIndex((group) => group[group.length - 1] >= token) : token;
  return Math.max(0, Math.min(count - 1, at < 0 ? count : at));
}

/** Return the text of a group of tokens; that of a whole word is without the marks of its tokens.
 *  @param {{tokens: string[], pieces: string[]}} side @param {number[]} group @param {boolean} whole */
export function nameOf(side, group, whole) {
  return (whole && group.map((i) => side.pieces[i]).join("")) || side.tokens[group[0]];
}

/** Merge tokens into words: average over the tokens of a query and sum over the tokens of a key, which preserves
 *  the row sums (Clark et al. 2019). A word is masked if all its pairs are masked.
 *  @param {Float32Array} weights @param {number} width number of keys
 *  @param {number[][]} rows @param {number[][]} columns
 *  @returns {Float32Array} */
export function merge(weights, width, rows, columns) {
  if (areSingle(rows, weights.length / width) && areSingle(columns, width)) return weights;
  const merged = new Float32Array(rows.length * columns.length);
  rows.forEach((row, r) => {
    columns.forEach((column, c) => {
      let [sum, masked] = [0, true];
      for (const i of row) {
        for (const j of column) {
          const weight = weights[i * width + j];
          if (weight === MASKED) continue;
          masked = false;
          sum += weight;
        }
      }
      merged[r * columns.length + c] = masked ? MASKED : sum / row.length;
    });
  });
  return merged;
}

/** Return the function that bounds the error of a merged weight. The error of a single weight is 0, because its code
 *  has the digits that are shown, unless `always` is true.
 *  @param {import("./source.js").Weights} map before merging @param {number} width @param {number[][]} rows @param {number[][]} columns
 *  @param {boolean} [always] @param {number[] | null} [factors] of each key, by which the weights are multiplied
 *  @returns {(row: number, column: number) => number} */
export function errorOf({ weights, error }, width, rows, columns, always = false, factors = null) {
  return (r, c) => {
    const [row, column] = [rows[r], columns[c]];
    if (!always && !error && row.length * column.length === 1) return 0;
    let sum = 0;
    for (const i of row) for (const j of column) sum += errorOfWeight(weights[i * width + j], error) * (factors ? factors[j] : 1);
    return sum / row.length;
  };
}

/** Return whether groups are single tokens in their order. @param {number[][]} groups @param {number} count of tokens */
function areSingle(groups, count) {
  return groups.length === count && groups.every((group, i) => group.length === 1 && group[0] === i);
}

/** Return the number of keys of each query that are not masked.
 *  @param {Float32Array} weights @param {number} width @returns {Uint32Array} */
export function countKeys(weights, width) {
  const counts = new Uint32Array(weights.length / width);
  for (let i = 0; i < weights.length; i++) if (weights[i] !== MASKED) counts[Math.floor(i / width)]++;
  return counts;
}

/** Return the entries of largest magnitude of a row, in decreasing order, without masked keys.
 *  @param {Matrix} matrix @param {number} row @param {number} count
 *  @returns {{key: number, weight: number}[]} */
export function strongest(matrix, row, count) {
  const width = matrix.keys.length;
  const found = Array.from({ length: width }, (_, key) => ({ key, weight: matrix.weights[row * width + key] }));
  const magnitude = (/** @type {number} */ weight) => (Number.isNaN(weight) ? -1 : Math.abs(weight));
  return found
    .filter(({ weight }) => weight !== MASKED)
    .sort((a, b) => magnitude(b.weight) - magnitude(a.weight) || a.key - b.key)
    .slice(0, count);
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
