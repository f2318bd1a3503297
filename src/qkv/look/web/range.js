// The colour range of a picture: which weights are faint, and from which weight on the colour is strongest.
//
// The rule of the automatic range, for the cells of a picture:
//   faint below     the mean over its queries of 1 / (number of keys), the weight that uniform attention gives,
//                   but at most 1.96 times the smallest of them; for pooled cells at least the median cell; at most 1/4,
//                   the strongest colour being at most at 1; for weights that are not shares of 1, the median cell, but
//                   at least 1/1000 and at most 1/4 of the largest
//   strongest from  the weight that 99 % of the cells that are not faint do not exceed
// Between the two, the colour follows the logarithm of the weight. The colours of a difference of two maps follow the
// difference itself, from 0 to the same strongest one, so that a difference twice as large has twice the share.

/** @typedef {"auto" | "linear" | "sqrt" | "log" | "row"} Scale */

/** @typedef {Object} Range
 *  @property {Scale} scale
 *  @property {number} low weights up to this one have the colour of 0 (automatic scale only)
 *  @property {number} start the smallest weight that is not faint
 *  @property {number} top the smallest weight of the strongest colour
 *  @property {number} largest the largest magnitude in the picture @property {number} error its relative error
 *  @property {boolean} signed whether there are negative weights
 *  @property {boolean} masked whether there are masked cells
 *  @property {boolean} notFinite whether there are cells that are not finite
 *  @property {string} rule what `start` is */

/** Statistics of the cells of a picture. Statistics of several pictures can be merged.
 *  @typedef {Object} Summary
 *  @property {Uint32Array} bins number of cells by the logarithm of their magnitude
 *  @property {number} zeros number of cells that are 0 @property {number} count number of the other cells
 *  @property {number} largest magnitude @property {number} error its relative error
 *  @property {boolean} signed @property {boolean} masked @property {boolean} notFinite
 *  @property {number} uniform about the weight of uniform attention; 0: the weights are not shares of 1
 *  @property {string} rule what `uniform` is
 *  @property {boolean} pooled whether a cell covers several pairs */

/** Share of the colour table that faint cells use. The colour at this share differs from that of 0 by ΔE00 = 5. */
export const FAINT = 0.1;
const BINS_PER_DECADE = 64;
const LOWEST_DECADE = -46;
const BINS = 100 * BINS_PER_DECADE;
/** Share of the cells that are not faint from which on the colour is strongest. */
const TOP_SHARE = 0.99;
/** Share of all cells that have the colour of 0. */
const LOW_SHARE = 0.2;
/** The automatic range spans at least this factor. */
const LEAST_SPAN = 4;

/** @param {ArrayLike<number>} cells @param {{uniform: number, rule: string}} uniform from `uniformWeight`
 *  @param {boolean} pooled @param {number} [error] relative error of the largest weight @returns {Summary} */
export function summarize(cells, uniform, pooled, error = 0) {
  const bins = new Uint32Array(BINS);
  let [zeros, count, largest] = [0, 0, 0];
  let [signed, masked, notFinite] = [false, false, false];
  for (let i = 0; i < cells.length; i++) {
    const cell = cells[i];
    const magnitude = Math.abs(cell);
    if (magnitude === 0) zeros++;
    else if (magnitude === Infinity) masked = true;
    else if (magnitude > 0) {
      count++;
      if (cell < 0) signed = true;
      if (magnitude > largest) largest = magnitude;
      bins[binOf(magnitude)]++;
    } else notFinite = true;
  }
  return { bins, zeros, count, largest, error, signed, masked, notFinite, pooled, ...uniform };
}

/** Merge the statistics of pictures that share a scale. @param {Summary[]} all @returns {Summary} */
export function mergeSummaries(all) {
  const bins = new Uint32Array(BINS);
  for (const one of all) for (let i = 0; i < BINS; i++) bins[i] += one.bins[i];
  const some = (/** @type {"signed" | "masked" | "notFinite" | "pooled"} */ name) => all.some((one) => one[name]);
  return {
    bins,
    zeros: all.reduce((sum, one) => sum + one.zeros, 0),
    count: all.reduce((sum, one) => sum + one.count, 0),
    largest: Math.max(...all.map((one) => one.largest)), error: Math.max(...all.map((one) => one.error)),
    signed: some("signed"), masked: some("masked"), notFinite: some("notFinite"), pooled: some("pooled"),
    // The picture with the smaller uniform weight decides, so that nothing that stands out in it is faint.
    ...all.map(({ uniform, rule }) => ({ uniform, rule })).reduce((a, b) => (b.uniform < a.uniform ? b : a)),
  };
}

/** The uniform weight of maps whose weights are not shares of 1. */
export const NOT_SHARES = { uniform: 0, rule: "" };

/** Return the mean over queries of 1 / (number of keys), but at most 1.96 times the smallest of these weights.
 *  @param {ArrayLike<number>} counts number of keys of each query @returns {{uniform: number, rule: string}} */
export function uniformWeight(counts) {
  let [sum, rows, longest] = [0, 0, 0];
  for (let i = 0; i < counts.length; i++) {
    if (!counts[i]) continue;
    sum += 1 / counts[i];
    rows++;
    if (counts[i] > longest) longest = counts[i];
  }
  if (!rows) return NOT_SHARES;
  const mean = sum / rows;
  const keys = longest.toLocaleString("en");
  if (mean > 1.96 / longest) return { uniform: 1.96 / longest, rule: `about twice the weight of uniform attention to ${keys} keys` };
  const about = mean > 1.001 / longest ? "about " : "";
  return { uniform: mean, rule: `${about}the weight of uniform attention to ${keys} keys` };
}

/** Return the colour range of a picture.
 *  @param {Summary} summary @param {Scale} scale @param {number} top chosen by the user; 0: automatic
 *  @returns {Range} */
export function rangeOf(summary, scale, top) {
  const { largest, error, signed, masked, notFinite, uniform, pooled } = summary;
  const common = { scale, largest, error, signed, masked, notFinite, low: 0 };
  if (scale === "row") return { ...common, start: 0, top: 1, rule: "" };
  if (scale !== "auto") return { ...common, start: 0, top: top || largest || 1, rule: "" };
  const half = (summary.zeros + summary.count) / 2 - summary.zeros;
  const median = half > 0 ? quantile(summary, 0, half / summary.count) : 0;
  let { uniform: start, rule } = summary;
  const shares = !signed && uniform > 0;
  if (!shares || (pooled && median > uniform)) [start, rule] = [median, "half of the cells"];
  const most = shares ? 1 : largest;
  if (start > most / LEAST_SPAN) [start, rule] = [most / LEAST_SPAN, `a quarter of the ${shares ? "weight of a query" : "largest"}`];
  else if (!shares && start < largest / 1000) [start, rule] = [largest / 1000, "a thousandth of the largest"];
  if (top) start = Math.min(start, top / LEAST_SPAN);
  start = Math.max(start, largest * 1e-9) || 1 / LEAST_SPAN;
  const automatic = Math.max(LEAST_SPAN * start, Math.min(largest, quantile(summary, start, TOP_SHARE)));
  const low = Math.min(quantile(summary, 0, LOW_SHARE), start / 10);
  return { ...common, low, start, top: top || automatic, rule };
}

/** Return the colour range of a difference of two maps: with the automatic scale, it is linear.
 *  @param {Summary} summary @param {Scale} scale @param {number} top chosen by the user; 0: automatic
 *  @returns {Range} */
export function differenceRange(summary, scale, top) {
  const range = rangeOf({ ...summary, signed: true }, scale, top);
  if (scale !== "auto") return range;
  return { ...range, scale: "linear", low: 0, start: 0, top: top || Math.min(range.top, range.largest) || 1, rule: "" };
}

/** Return the function that maps a weight to a share of the colour table, from −1 to 1; negative weights have negative
 *  shares, NaN stays NaN, and masked cells stay `MASKED`.
 *  @param {Range} range @returns {(weight: number, row?: number) => number} the largest magnitude of the row is needed
 *  only on the scale "row" */
export function shadeOf(range) {
  const { scale, start, top } = range;
  const low = Math.max(range.low, start * 1e-30, 1e-44);
  const below = FAINT / Math.log(start / low);
  const above = (1 - FAINT) / Math.log(top / start);
  /** @param {number} magnitude @param {number} row */
  const share = (magnitude, row) => {
    if (scale === "auto") {
      if (magnitude >= start) return FAINT + above * Math.log(magnitude / start);
      return magnitude <= low ? 0 : below * Math.log(magnitude / low);
    }
    const part = magnitude / (scale === "row" ? row || 1 : top);
    if (scale === "sqrt") return Math.sqrt(part);
    return scale === "log" ? (part <= 1e-4 ? 0 : 1 + Math.log10(part) / 4) : part;
  };
  return (weight, row = 0) => {
    const magnitude = Math.abs(weight);
    if (!(magnitude < Infinity)) return weight;
    const bounded = Math.min(1, share(magnitude, row));
    return weight < 0 ? -bounded : bounded;
  };
}

/** Return the weight at a share of the colour table, which is the inverse of `shadeOf`. @param {Range} range @param {number} share from 0 to 1 */
export function weightAt(range, share) {
  const { scale, start, top } = range;
  if (scale === "sqrt") return share ** 2 * top;
  if (scale === "log") return share === 0 ? 0 : top * 10 ** (4 * (share - 1));
  if (scale !== "auto") return share * top;
  if (share < FAINT) return share === 0 ? 0 : Math.max(range.low, 1e-44) * (start / Math.max(range.low, 1e-44)) ** (share / FAINT);
  return start * (top / start) ** ((share - FAINT) / (1 - FAINT));
}

/** Return the magnitude that a share of the cells of at least `from` does not exceed.
 *  @param {Summary} summary @param {number} from @param {number} share */
function quantile({ bins, largest }, from, share) {
  const first = from > 0 ? binOf(from) : 0;
  let count = 0;
  for (let i = first; i < BINS; i++) count += bins[i];
  if (!count) return 0;
  let seen = 0;
  for (let i = first; i < BINS; i++) {
    seen += bins[i];
    if (seen >= share * count) return Math.min(largest, 10 ** ((i + 1) / BINS_PER_DECADE + LOWEST_DECADE));
  }
  return largest;
}

/** @param {number} magnitude */
function binOf(magnitude) {
  return Math.max(0, Math.min(BINS - 1, Math.floor((Math.log10(magnitude) - LOWEST_DECADE) * BINS_PER_DECADE)));
}
