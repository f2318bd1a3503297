// Groups of tokens that correspond to each other in two texts, or in one text for two tokenizers, as `qkv.look.token_groups`.

import { groupsOf, nameOf, viewGroups } from "./groups.js";

/** Maximum size of the table of the alignment. */
const MAX_ALIGNED = 4_000_000;

/** The tokens of each pair of groups, and the tokens of each text that correspond to none.
 *  @typedef {{pairs: [number[], number[]][], others: [number[], number[]]}} Alignment */

/** Align the queries and the keys of two views. @param {import("./detail.js").View} first @param {import("./detail.js").View} second
 *  @param {import("./groups.js").Grouping} grouping */
export function alignViews(first, second, grouping) {
  const groups = [first, second].map((view) => viewGroups(view, view.levels ? { unit: "tokens", hide: false } : grouping));
  const sides = [[first.queries, second.queries], [first.keys || first.queries, second.keys || second.queries]];
  const [rows, columns] = sides.map((both, i) => {
    const found = alignGroups(both, [groups[0][i], groups[1][i]], first.model === second.model);
    return { ...found, names: found.pairs.map((pair) => pairName(both, pair, grouping.unit !== "tokens")), sides: both };
  });
  return { rows, columns };
}

/** Return the groups of two axes that correspond to each other: of one text, the smallest unions of groups that have the
 *  same characters, and of two texts, unions of groups with tokens, or words of different tokenizers, that are aligned.
 *  @param {import("./detail.js").Side[]} sides two @param {number[][][]} groups of each side @param {boolean} same tokenizer
 *  @returns {Alignment} */
export function alignGroups(sides, groups, same) {
  const places = sides[0].text === sides[1].text ? sides.map(ownPlaces) : commonPlaces(sides, same ? "tokens" : "words");
  const found = groups.flatMap((own, side) => own.flatMap((tokens) => {
    const of = tokens.flatMap((token) => places[side].get(token) ?? []);
    return of.length ? [{ side, tokens, start: Math.min(...of), stop: Math.max(...of) }] : [];
  })).sort((a, b) => a.start - b.start);
  /** @type {[number[], number[]][]} */
  const unions = [];
  let end = -Infinity;
  for (const { side, tokens, start, stop } of found) {
    if (start >= end) unions.push([[], []]);
    unions[unions.length - 1][side].push(...tokens);
    end = Math.max(end, stop);
  }
  const pairs = unions.filter(([a, b]) => a.length && b.length);
  for (const pair of pairs) for (const tokens of pair) tokens.sort((a, b) => a - b);
  const others = groups.map((own, side) => {
    const aligned = new Set(pairs.flatMap((pair) => pair[side]));
    return own.flat().filter((token) => !aligned.has(token));
  });
  return { pairs, others: /** @type {[number[], number[]]} */ (others) };
}

/** Return the beginning and end of the place of each token: four units per character, between which are tokens that stand
 *  for no text. @param {import("./detail.js").Side} side @returns {Map<number, [number, number]>} */
function ownPlaces({ spans, special }) {
  /** @type {Map<number, number>} */
  const order = new Map();
  return new Map(spans.map(([start, stop], i) => {
    if (start < stop) return [i, [4 * start, 4 * stop - 3]];
    const kind = 4 * start - (special[i] ? 2 : 1);
    order.set(kind, (order.get(kind) ?? -1) + 1);
    const place = kind + (order.get(kind) ?? 0) * 2 ** -20;
    return [i, [place, place + 2 ** -20]];
  }));
}

/** Return the places, in a common text, of the tokens of units that correspond to each other in two texts.
 *  @param {import("./detail.js").Side[]} sides @param {string} unit @returns {Map<number, [number, number]>[]} */
function commonPlaces(sides, unit) {
  const units = sides.map((side) => groupsOf(side, unit));
  const texts = sides.map((side, i) => units[i].map((group) => (unit === "tokens" ? side.tokens[group[0]] : nameOf(side, group, true).toLowerCase())));
  /** @type {Map<number, [number, number]>[]} */
  const places = [new Map(), new Map()];
  let at = 0;
  for (const pair of alignTokens(texts[0], texts[1])) {
    const [a, b] = pair.map((unit, i) => texts[i][unit]);
    const length = Math.max(a.length, 1);
    sides.forEach(({ spans }, i) => {
      const group = units[i][pair[i]];
      const offset = at - spans[group[0]][0];
      for (const token of group) {
        const [start, stop] = spans[token];
        const whole = a !== b || group.length === 1 || start === stop;
        places[i].set(token, whole ? [at, at + length] : [start + offset, stop + offset]);
      }
    });
    at += length;
  }
  return places;
}

/** Return the token of both groups, their text if the tokens differ, or both if the texts differ, too.
 *  @param {import("./detail.js").Side[]} sides @param {[number[], number[]]} pair @param {boolean} whole */
function pairName(sides, pair, whole) {
  const [[a, b], [text, other]] = [whole, true].map((one) => pair.map((group, i) => nameOf(sides[i], group, one)));
  return a === b ? a : text === other ? text : `${a} | ${b}`;
}

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
