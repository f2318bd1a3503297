// Groups of tokens that correspond to each other in two texts, or in one text for two tokenizers: unions of the smallest ones, which
// `qkv.look.token_groups` finds.

import { nameOf, viewGroups } from "./groups.js";

/** The tokens of each pair of groups, and the tokens of each text that correspond to none.
 *  @typedef {{pairs: [number[], number[]][], others: [number[], number[]]}} Alignment */

/** Align the queries and the keys of two views. @param {import("./detail.js").View} first @param {import("./detail.js").View} second
 *  @param {number[][][]} places from `Source.aligned` @param {import("./groups.js").Grouping} grouping */
export function alignViews(first, second, places, grouping) {
  const groups = [first, second].map((view) => viewGroups(view, view.levels ? { unit: "tokens", hide: false } : grouping));
  const sides = [[first.queries, second.queries], [first.keys || first.queries, second.keys || second.queries]];
  const [rows, columns] = sides.map((both, i) => {
    const found = alignGroups(places[i], [groups[0][i], groups[1][i]]);
    return { ...found, names: found.pairs.map((pair) => pairName(both, pair, grouping.unit)), sides: both };
  });
  return { rows, columns };
}

/** Return the smallest unions of the groups of two axes in which the same tokens correspond to each other.
 *  @param {number[][]} places of the tokens of each side @param {number[][][]} groups of each side @returns {Alignment} */
export function alignGroups(places, groups) {
  const found = groups.flatMap((own, side) => own.flatMap((tokens) => {
    const of = tokens.map((token) => places[side][token]).filter((place) => place >= 0);
    return of.length ? [{ side, tokens, start: Math.min(...of), stop: Math.max(...of) + 1 }] : [];
  })).sort((a, b) => a.start - b.start);
  const unions = /** @type {[number[], number[]][]} */ ([]);
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

/** Return the token of both groups, their text if the tokens differ, or both if the texts differ, too.
 *  @param {import("./detail.js").Side[]} sides @param {[number[], number[]]} pair @param {string} unit */
function pairName(sides, pair, unit) {
  const [[a, b], [text, other]] = [unit, "words"].map((one) => pair.map((group, i) => nameOf(sides[i], group, one)));
  return a === b ? a : text === other ? text : `${a} | ${b}`;
}
