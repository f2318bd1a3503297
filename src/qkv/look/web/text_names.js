// Names of texts in lists whose entries may be truncated, and tokens in sentences.

/** Number of characters before the first difference that a name keeps at its beginning. */
const CONTEXT = 12;

/** Return the names without the first of many words that they share with another name at the beginning, so that truncated
 *  names differ. @param {string[]} names */
export function shortNames(names) {
  return names.map((name, i) => {
    const shared = Math.max(0, ...names.map((other, j) => (i === j || name === other ? 0 : sharedLength(name, other))));
    const start = shared > CONTEXT ? name.indexOf(" ", name.lastIndexOf(" ", shared - 1) - CONTEXT) + 1 : 0;
    return start > CONTEXT / 2 ? `… ${name.slice(start)}` : name;
  });
}

/** @param {string} one @param {string} other */
function sharedLength(one, other) {
  let length = 0;
  while (length < one.length && one[length] === other[length]) length++;
  return length;
}

/** Letters that are written from right to left. */
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;

/** Return a text in quotation marks. A text from right to left is isolated, so that it does not reverse the sentence around it.
 *  @param {string} text */
export const quoted = (text) => (RIGHT_TO_LEFT.test(text) ? `“\u2068${text}\u2069”` : `“${text}”`);
