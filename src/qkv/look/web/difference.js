// The difference of two maps at the groups of tokens that both texts share.

import { errorOfWeight, MASKED } from "./codes.js";
import { strongest } from "./matrix.js";

/** What the colours of a difference mean. */
export const SIGNS = " Blue: larger in the first map; orange: in the second.";
/** Return the weights of a pair in both maps and their difference as text, rounded to the third digit of the larger weight, or to an
 *  earlier one if an error exceeds half a unit, so that they add up; ≈ says that the last digit is not certain, and `value` is the
 *  difference as printed. Null if a weight is masked or not finite.
 *  @param {import("./load.js").Parts} parts @param {number} row @param {number} column */
export function describeDifference({ first, second }, row, column) {
  const weights = [first, second].map((map) => ({ weight: map.weights[row * map.keys.length + column], error: map.error(row, column) }));
  if (!weights.every(({ weight }) => Number.isFinite(weight))) return null;
  const thirds = weights.map(({ weight }) => Math.floor(Math.log10(Math.abs(weight)) + 1e-6) - 2);
  const last = Math.max(...thirds, ...weights.map(({ error }) => Math.ceil(Math.log10(2 * error) - 1e-6)));
  const power = Number.isFinite(last) ? last : 0; // not of two zeros
  const unitsOf = (/** @type {number} */ weight) => Math.round(Number((power < 0 ? weight * 10 ** -power : weight / 10 ** power).toPrecision(6)));
  // The third digit of a single weight is exact, an earlier one may be rounded twice.
  const certain = weights.every(({ weight, error }, i) => {
    const far = power > thirds[i] ? errorOfWeight(weight, error) : error;
    return unitsOf(weight - far) === unitsOf(weight + far);
  });
  const [a, b] = weights.map(({ weight }) => unitsOf(weight));
  const [one, other, difference] = [a, b, a - b].map((units) => inUnits(units, power, Math.max(Math.abs(a), Math.abs(b))));
  const sum = `${one} − ${b < 0 ? `(${other})` : other} ${certain ? "=" : "≈"} ${difference}`;
  return { sum, difference: `${certain ? "" : "≈ "}${difference}`, value: (a - b) * 10 ** power };
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
  const found = strongest(matrix, row, matrix.keys.length).map(({ key, weight }) => {
    const described = describeDifference(matrix.parts, row, key);
    return { key, weight, text: described?.difference, printed: described ? Math.abs(described.value) : -1 };
  });
  return found.sort((a, b) => (Math.abs(b.printed - a.printed) > 1e-9 * Math.abs(a.printed) ? b.printed - a.printed : 0)).slice(0, count);
}

/** Return the first map minus the second, both at aligned groups; pairs that are masked in one of the maps are masked.
 *  @param {import("./load.js").Loaded} first @param {import("./load.js").Loaded} second @param {{queries: string[], keys: string[]}} names
 *  @returns {import("./load.js").Loaded} */
export function subtract(first, second, names) {
  const weights = first.weights.map((weight, i) => (weight === MASKED || second.weights[i] === MASKED ? MASKED : weight - second.weights[i]));
  const error = (/** @type {number} */ row, /** @type {number} */ column) =>
    [first, second].reduce((sum, map) => sum + errorOfWeight(map.weights[row * map.keys.length + column], map.error(row, column)), 0);
  return { ...first, ...names, weights, error, normalized: false, parts: { first, second } };
}
