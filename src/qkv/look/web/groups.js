// Groups of tokens: tokens, words or sentences, passages, and regions of an image, with the weights between them.

import { errorOfWeight, MASKED } from "./codes.js";

/** Texts of a pair whose tokens are the queries and the keys, by the name of a filter. @type {Record<string, [number, number]>} */
const SEGMENTS = { aa: [0, 0], ab: [0, 1], ba: [1, 0], bb: [1, 1] };
/** A rectangle of patches, from the row and column of one corner to those of the opposite one. */
const REGION = /^(\d+),(\d+)\s*[–-]\s*(\d+),(\d+)$/;

/** The positions of the first and last token of a passage. */
export const POSITIONS = /^#(\d+)(?:\s*[–-]\s*(\d+))?$/;

/** How tokens are grouped: `opened` lists the sentences of queries and keys that are shown by their tokens, such as "q3.k5".
 *  @typedef {{unit: string, hide: boolean, pairs?: string, opened?: string}} Grouping */

/** Return the text of a pair whose tokens are the queries, and that of the keys; none if all tokens are shown.
 *  @param {import("./detail.js").View} view @param {string} [pairs] name of the filter @returns {number[]} */
export function segmentsOf(view, pairs = "all") {
  return view.queries.segments && (view.keys || view.queries).segments ? SEGMENTS[pairs] || [] : [];
}

/** Return the groups of the queries and of the keys of a view. @param {import("./detail.js").View} view @param {Grouping} grouping */
export function viewGroups(view, { unit, hide, pairs, opened = "" }) {
  const segments = segmentsOf(view, pairs);
  if (view.levels) [hide, opened] = [false, ""]; // whole maps of sentences are sent
  return [view.queries, view.keys || view.queries].map((side, i) => {
    const axis = view.keys ? "qk"[i] : "q"; // queries and keys of one text are opened together
    const own = opened.split(".").filter((one) => one[0] === axis).map((one) => Number(one.slice(1)));
    return groupsOf(side, unit, hide, segments[i], new Set(own));
  });
}

/** Return lists of token indices, one for each group of tokens.
 *  @param {import("./detail.js").Side} side @param {string} unit "tokens", or a unit of the axis
 *  @param {boolean} [hide] leave out special tokens
 *  @param {number} [segment] leave out tokens that do not belong to this text of a pair
 *  @param {Set<number>} [opened] sentences that are shown by their tokens */
export function groupsOf(side, unit, hide = false, segment = -1, opened = new Set()) {
  const owners = side.units[unit] ?? [];
  const groups = /** @type {number[][]} */ ([]);
  let last = /** @type {string | number} */ (-1);
  side.tokens.forEach((_, i) => {
    if ((hide && side.special[i]) || (segment >= 0 && side.segments?.[i] !== segment)) return;
    const owner = unit === "sentences" && opened.has(Number(owners[i])) ? -1 : owners[i] ?? -1;
    if (groups.length && owner !== -1 && owner !== "" && owner === last) groups[groups.length - 1].push(i);
    else groups.push([i]);
    last = owner;
  });
  return groups;
}

/** Return the index of the group of a token, or of the nearest group after or before it if the token is left out.
 *  @param {number[][]} groups @param {number} token */
export function groupOfToken(groups, token) {
  const at = groups.findIndex((group) => group[group.length - 1] >= token);
  return Math.max(0, at < 0 ? groups.length - 1 : at);
}

/** Return the name of a group of a unit, or its text without the marks of its tokens; of a single token of the unit "tokens", the token.
 *  @param {import("./detail.js").Side} side @param {number[]} group @param {string} unit */
export function nameOf({ text, spans, tokens, units }, group, unit) {
  const named = units[unit]?.[group[0]];
  if (named && typeof named === "string") return named;
  return ((unit !== "tokens" || group.length > 1) && text.slice(spans[group[0]][0], spans[group[group.length - 1]][1])) || tokens[group[0]];
}

/** Return the height and the width of the image whose patches are tokens of a view. @param {import("./detail.js").View} view */
export const imageSize = (view) => view.queries.patches?.size ?? view.keys?.patches?.size;

/** Return the tokens of each place at which a phrase occurs as whole words, or the tokens or region of an image that it names.
 *  @param {import("./detail.js").Side} side @param {string} phrase @returns {number[][]} */
export function findPhrase(side, phrase) {
  const text = phrase.trim().toLowerCase();
  if (!text) return [];
  const [, first, last] = POSITIONS.exec(text) ?? [];
  if (first) return [side.tokens.flatMap((_, i) => (i >= Number(first) && i <= Number(last ?? first) ? [i] : []))].filter((group) => group.length);
  const region = REGION.exec(text);
  if (region && side.patches) return findRegion(side, side.patches.grid, region.slice(1).map(Number));
  const wanted = text.split(/\s+/);
  const words = groupsOf(side, "words");
  const names = words.map((group) => nameOf(side, group, "words").trim().toLowerCase());
  const found = /** @type {number[][]} */ ([]);
  for (let at = 0; at + wanted.length <= names.length; at++) {
    if (!wanted.every((word, i) => names[at + i] === word)) continue;
    found.push(words.slice(at, at + wanted.length).flat());
    at += wanted.length - 1;
  }
  return found.length ? found : side.tokens.flatMap((token, i) => (token.toLowerCase() === text ? [[i]] : []));
}

/** Return the patch of a token, −1 for other tokens. @param {import("./detail.js").Side} side @param {number} token */
export const patchOf = ({ patches }, token) => patches?.places[token] ?? -1;

/** @param {import("./detail.js").Side} side @param {[number, number]} grid @param {number[]} corners */
function findRegion(side, [, columns], [top, left, bottom, right]) {
  const within = (/** @type {number} */ at, /** @type {number} */ a, /** @type {number} */ b) => at >= Math.min(a, b) && at <= Math.max(a, b);
  const isInside = (/** @type {number} */ patch) => patch >= 0 && within(Math.floor(patch / columns), top, bottom) && within(patch % columns, left, right);
  const inside = [...side.tokens.keys()].filter((i) => isInside(patchOf(side, i)));
  return inside.length ? [inside] : [];
}

/** Return weights times the norms of the values of the keys, if these are known. @param {Float32Array} weights @param {number[] | null} norms */
export function timesNorms(weights, norms) {
  return norms ? weights.map((weight, i) => (weight === MASKED ? MASKED : weight * norms[i % norms.length])) : weights;
}

/** Merge groups of tokens: average over the tokens of a query and sum over the tokens of a key, which preserves
 *  the row sums (Clark et al. 2019). A pair of groups is masked if all its pairs are masked.
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
    for (const i of row) for (const j of column) sum += errorOfWeight(weights[i * width + j], error * Math.abs(weights[i * width + j])) * (factors ? factors[j] : 1);
    return sum / row.length;
  };
}

/** Return whether groups are single tokens in their order. @param {number[][]} groups @param {number} count of tokens */
function areSingle(groups, count) {
  return groups.length === count && groups.every((group, i) => group.length === 1 && group[0] === i);
}
