// Find text in the tokens of a view, and phrases of whole words, also if they span several tokens.

/** The tokens of an axis.
 *  @typedef {{tokens: string[], pieces: string[], words: number[], special: boolean[]}} Axis */

/** Return the tokens of each word as ranges [start, stop]. Tokens that belong to no word are ranges of their own.
 *  @param {Axis} axis @returns {[number, number][]} */
export function wordRanges({ tokens, words }) {
  /** @type {[number, number][]} */
  const ranges = [];
  tokens.forEach((_, i) => {
    if (i > 0 && words[i] >= 0 && words[i] === words[i - 1]) ranges[ranges.length - 1][1] = i + 1;
    else ranges.push([i, i + 1]);
  });
  return ranges;
}

/** Return the ranges of tokens at which a phrase occurs as whole words, ignoring case, as `qkv.look.search` does.
 *  @param {Axis} axis @param {string} phrase @returns {[number, number][]} */
export function findPhrase(axis, phrase) {
  const text = phrase.trim().toLowerCase();
  if (!text) return [];
  const wanted = text.split(/\s+/);
  const ranges = wordRanges(axis);
  const names = ranges.map(([start, stop]) => axis.pieces.slice(start, stop).join("").trim().toLowerCase());
  /** @type {[number, number][]} */
  const found = [];
  for (let at = 0; at + wanted.length <= names.length; at++) {
    if (!wanted.every((word, i) => names[at + i] === word)) continue;
    found.push([ranges[at][0], ranges[at + wanted.length - 1][1]]);
    at += wanted.length - 1;
  }
  if (found.length) return found;
  return axis.tokens.flatMap((token, i) => (token.toLowerCase() === text ? [/** @type {[number, number]} */ ([i, i + 1])] : []));
}

/** Return the ranges of tokens that contain a part of each occurrence of a text, ignoring case. Words are separated by
 *  one space; the text of single tokens, such as `##ness`, is found, too.
 *  @param {Axis} axis @param {string} query @returns {[number, number][]} */
export function findText(axis, query) {
  const wanted = query.trim().toLowerCase().replace(/\s+/g, " ");
  if (!wanted) return [];
  let text = "";
  // The token of each letter; a space between words belongs to the token before it.
  /** @type {number[]} */
  const owners = [];
  for (const [start, stop] of wordRanges(axis)) {
    for (let i = start; i < stop; i++) {
      const piece = axis.pieces[i].toLowerCase().trim();
      text += piece;
      for (let letter = 0; letter < piece.length; letter++) owners.push(i);
    }
    text += " ";
    owners.push(stop - 1);
  }
  /** @type {[number, number][]} */
  const found = [];
  for (let at = text.indexOf(wanted); at >= 0; at = text.indexOf(wanted, at + wanted.length)) {
    found.push([owners[at], owners[at + wanted.length - 1] + 1]);
  }
  if (found.length) return found;
  return axis.tokens.flatMap((token, i) => (token.toLowerCase().includes(wanted) ? [/** @type {[number, number]} */ ([i, i + 1])] : []));
}
