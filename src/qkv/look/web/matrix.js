// Maps of weights in the browser: decoded from bytes, words put together, special tokens left out.

/** A map of weights with the names of its axes.
 *  @typedef {Object} Matrix
 *  @property {Float32Array} weights queries × keys, row by row
 *  @property {string[]} queries
 *  @property {string[]} keys
 *  @property {number} most the largest weight */

/** Codes are 255 · √(weight / scale): the error of a weight is at most scale / 255.
 *  @param {Uint8Array} codes @param {number} scale */
export function decode(codes, scale) {
  const table = Float32Array.from({ length: 256 }, (_, code) => (code / 255) ** 2 * scale);
  const weights = new Float32Array(codes.length);
  for (let i = 0; i < codes.length; i++) weights[i] = table[codes[i]];
  return weights;
}

/** Which tokens stand together: a list of lists of token numbers.
 *  @param {{tokens: string[], words: number[], special: boolean[]}} side
 *  @param {boolean} whole put the pieces of a word together
 *  @param {boolean} hide leave special tokens out */
export function groupsOf(side, whole, hide) {
  /** @type {number[][]} */
  const groups = [];
  let last = -1;
  side.tokens.forEach((_, i) => {
    if (hide && side.special[i]) return;
    if (whole && groups.length && side.words[i] >= 0 && side.words[i] === last) groups[groups.length - 1].push(i);
    else groups.push([i]);
    last = side.words[i];
  });
  return groups;
}

/** The name of tokens that stand together.
 *  @param {{tokens: string[], pieces: string[]}} side @param {number[]} group */
export function nameOf(side, group) {
  return group.length === 1 ? side.tokens[group[0]] : group.map((i) => side.pieces[i]).join("");
}

/** Words of a map: the mean over the tokens of a query, the sum over the tokens of a key, so that a row keeps
 *  its sum (Clark et al. 2019). Where nothing stands together, the same weights in another order.
 *  @param {Float32Array} weights @param {number} width how many keys a row has
 *  @param {number[][]} rows @param {number[][]} columns
 *  @returns {Float32Array} */
export function merge(weights, width, rows, columns) {
  const single = (/** @type {number[][]} */ groups) => groups.every((group, i) => group.length === 1 && group[0] === i);
  if (columns.length === width && rows.length * width === weights.length && single(rows) && single(columns)) return weights;
  const merged = new Float32Array(rows.length * columns.length);
  rows.forEach((row, r) => {
    columns.forEach((column, c) => {
      let sum = 0;
      for (const i of row) for (const j of column) sum += weights[i * width + j];
      merged[r * columns.length + c] = sum / row.length;
    });
  });
  return merged;
}

/** The largest number.
 *  @param {Float32Array} weights */
export function largest(weights) {
  let most = 0;
  for (const weight of weights) if (weight > most) most = weight;
  return most;
}

/** The strongest entries of a row, in falling order.
 *  @param {Matrix} matrix @param {number} row @param {number} count
 *  @returns {{key: number, weight: number}[]} */
export function strongest(matrix, row, count) {
  const width = matrix.keys.length;
  const found = Array.from({ length: width }, (_, key) => ({ key, weight: matrix.weights[row * width + key] }));
  return found.sort((a, b) => b.weight - a.weight || a.key - b.key).slice(0, count);
}

/** A part of a map at the resolution of the screen: each spot is the largest, or the mean, of what it covers.
 *  @param {Float32Array} weights @param {number} width
 *  @param {[number, number, number, number]} part first row, first column, rows, columns
 *  @param {number} high @param {number} wide how many spots
 *  @param {"max" | "mean"} how */
export function reduce(weights, width, [top, left, rows, columns], high, wide, how) {
  const spots = new Float32Array(high * wide);
  for (let y = 0; y < high; y++) {
    const y0 = top + Math.floor((y * rows) / high);
    const y1 = Math.max(y0 + 1, top + Math.floor(((y + 1) * rows) / high));
    for (let x = 0; x < wide; x++) {
      const x0 = left + Math.floor((x * columns) / wide);
      const x1 = Math.max(x0 + 1, left + Math.floor(((x + 1) * columns) / wide));
      let most = 0;
      let sum = 0;
      for (let i = y0; i < y1; i++) {
        for (let j = x0; j < x1; j++) {
          const weight = weights[i * width + j];
          if (weight > most) most = weight;
          sum += weight;
        }
      }
      spots[y * wide + x] = how === "max" ? most : sum / ((y1 - y0) * (x1 - x0));
    }
  }
  return spots;
}
