// The difference of two maps at the tokens that both texts share, aligned as by `qkv.look.difference.align_tokens`.

import { MASKED } from "./codes.js";
import { largestPair } from "./matrix.js";

/** What the colours of a difference mean. */
export const SIGNS = " Blue: larger in the first map; orange: in the second.";
/** Maximum size of the table of the alignment. */
const MAX_ALIGNED = 4_000_000;

/** Return the pairs of indices of tokens that correspond to each other: a longest common subsequence, and between its
 *  tokens the tokens of passages of equal length.
 *  @param {string[]} first @param {string[]} second @returns {[number, number][]} */
export function alignTokens(first, second) {
  let start = 0;
  const shorter = Math.min(first.length, second.length);
  while (start < shorter && first[start] === second[start]) start++;
  let end = 0;
  while (end < shorter - start && first[first.length - 1 - end] === second[second.length - 1 - end]) end++;
  const a = first.slice(start, first.length - end);
  const b = second.slice(start, second.length - end);
  /** @type {[number, number][]} */
  const anchors = [];
  for (let i = 0; i < start; i++) anchors.push([i, i]);
  for (const [i, j] of commonSubsequence(a, b)) anchors.push([start + i, start + j]);
  for (let i = 0; i < end; i++) anchors.push([first.length - end + i, second.length - end + i]);
  anchors.push([first.length, second.length]);
  /** @type {[number, number][]} */
  const pairs = [];
  let last = [-1, -1];
  for (const anchor of anchors) {
    const gap = anchor[0] - last[0];
    if (gap === anchor[1] - last[1]) for (let i = 1; i < gap; i++) pairs.push([last[0] + i, last[1] + i]);
    pairs.push(anchor);
    last = anchor;
  }
  return pairs.slice(0, -1);
}

/** @param {string[]} a @param {string[]} b @returns {[number, number][]} */
function commonSubsequence(a, b) {
  if (a.length * b.length > MAX_ALIGNED) return [];
  const width = b.length + 1;
  const lengths = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      const at = i * width + j;
      lengths[at] = a[i] === b[j] ? lengths[at + width + 1] + 1 : Math.max(lengths[at + width], lengths[at + 1]);
    }
  }
  /** @type {[number, number][]} */
  const found = [];
  for (let i = 0, j = 0; i < a.length && j < b.length; ) {
    if (a[i] === b[j]) found.push([i++, j++]);
    else if (lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]) i++;
    else j++;
  }
  return found;
}

/** Return the weights of a pair in both maps and their difference as text, rounded to the last digit that is certain in both
 *  weights, so that they add up; `value` is the difference as printed. Null if a weight is masked or not finite.
 *  @param {import("./load.js").Parts} parts @param {number} row @param {number} column */
export function describeDifference({ first, second, rows, columns }, row, column) {
  const weights = [first, second].map((map, i) => {
    const at = [rows[row][i], columns[column][i]];
    return { weight: map.weights[at[0] * map.keys.length + at[1]], error: map.error(at[0], at[1]) };
  });
  if (!weights.every(({ weight }) => Number.isFinite(weight))) return null;
  const last = Math.max(...weights.map(({ weight, error }) => lastDigit(weight, error)));
  const power = Number.isFinite(last) ? last : 0;
  const [a, b] = weights.map(({ weight }) => Math.round(Number((power < 0 ? weight * 10 ** -power : weight / 10 ** power).toPrecision(6))));
  const [one, other, difference] = [a, b, a - b].map((units) => inUnits(units, power, Math.max(Math.abs(a), Math.abs(b))));
  return { sum: `${one} − ${b < 0 ? `(${other})` : other} = ${difference}`, difference, value: (a - b) * 10 ** power };
}

/** Return the power of ten of the last certain digit of a weight: the third one, or an earlier one if its error exceeds half
 *  a unit; −Infinity for an exact 0. @param {number} weight @param {number} error */
function lastDigit(weight, error) {
  const third = weight ? Math.floor(Math.log10(Math.abs(weight)) + 1e-6) - 2 : -Infinity;
  return Math.max(third, error > 0 ? Math.ceil(Math.log10(2 * error) - 1e-6) : -Infinity);
}

/** Write a multiple of a power of ten; multiples of which even the largest is below 0.0001 have an exponent.
 *  @param {number} units @param {number} power @param {number} largest magnitude of the multiples of the line */
function inUnits(units, power, largest) {
  const size = Math.abs(units);
  const exponent = Math.floor(Math.log10(largest || 1)) + power;
  const decimals = Math.max(0, exponent < -4 ? exponent - power : -power);
  const text = exponent < -4 ? `${(size / 10 ** decimals).toFixed(decimals)}e${exponent}` : (size * 10 ** power).toFixed(decimals);
  return units < 0 ? `−${text}` : text;
}

/** Return the largest differences of a row in decreasing order as they are printed.
 *  @param {import("./load.js").Loaded & {parts: import("./load.js").Parts}} matrix @param {number} row @param {number} count */
export function strongestDifferences(matrix, row, count) {
  const width = matrix.keys.length;
  const found = [];
  for (let key = 0; key < width; key++) {
    const weight = matrix.weights[row * width + key];
    if (weight === MASKED) continue;
    const described = describeDifference(matrix.parts, row, key);
    found.push({ key, weight, text: described?.difference, printed: described ? Math.abs(described.value) : -1 });
  }
  const size = (/** @type {number} */ weight) => Math.abs(weight) || 0;
  return found
    .sort((a, b) => (Math.abs(b.printed - a.printed) > 1e-9 * size(a.printed) ? b.printed - a.printed : 0) || size(b.weight) - size(a.weight) || a.key - b.key)
    .slice(0, count);
}

/** Return the pair of the first map whose weight differs most from that of the pair of the second; null if there is none.
 *  @param {import("./load.js").Loaded} first @param {import("./load.js").Loaded | null} second
 *  @returns {[number, number] | null} */
export function largestDifference(first, second) {
  if (!second || !alignTokens(first.queries, second.queries).length || !alignTokens(first.keys, second.keys).length) return null;
  const { weights, keys, parts } = /** @type {any} */ (subtract(first, second));
  const [row, column] = largestPair({ weights, keys });
  return [parts.rows[row][0], parts.columns[column][0]];
}

/** Return the first map minus the second at aligned tokens; pairs that are masked in one of the maps are masked.
 *  @param {import("./load.js").Loaded} first @param {import("./load.js").Loaded} second
 *  @returns {import("./load.js").Loaded} */
export function subtract(first, second) {
  const rows = alignTokens(first.queries, second.queries);
  const columns = alignTokens(first.keys, second.keys);
  if (!rows.length || !columns.length) throw Object.assign(new Error("The two texts have no token in common. Show them side by side."), { name: "NoCommonTokens" });
  const weights = new Float32Array(rows.length * columns.length);
  rows.forEach(([a, b], row) => {
    columns.forEach(([c, d], column) => {
      const [x, y] = [first.weights[a * first.keys.length + c], second.weights[b * second.keys.length + d]];
      weights[row * columns.length + column] = x === MASKED || y === MASKED ? MASKED : x - y;
    });
  });
  const bound = (/** @type {number} */ row, /** @type {number} */ column) =>
    first.bound(rows[row][0], columns[column][0]) + second.bound(rows[row][1], columns[column][1]);
  const name = (/** @type {string} */ one, /** @type {string} */ other) => (one === other ? one : `${one} | ${other}`);
  return {
    weights,
    error: bound, bound,
    queries: rows.map(([a, b]) => name(first.queries[a], second.queries[b])),
    keys: columns.map(([a, b]) => name(first.keys[a], second.keys[b])),
    rows: rows.map(([a]) => first.rows[a]),
    columns: columns.map(([a]) => first.columns[a]),
    normalized: false,
    parts: { first, second, rows, columns },
  };
}
