// Functions on dense maps: dequantize weights, merge tokens into words, and leave out special tokens.

/** A map of weights with the tokens of its axes.
 *  @typedef {Object} Matrix
 *  @property {Float32Array} weights queries × keys, row by row
 *  @property {string[]} queries
 *  @property {string[]} keys
 *  @property {number} maximum the largest weight */

/** Convert codes, 255 · √(weight / scale), to weights; the error of a weight is at most scale / 255.
 *  @param {Uint8Array} codes @param {number} scale */
export function dequantize(codes, scale) {
  const table = Float32Array.from({ length: 256 }, (_, code) => (code / 255) ** 2 * scale);
  const weights = new Float32Array(codes.length);
  for (let i = 0; i < codes.length; i++) weights[i] = table[codes[i]];
  return weights;
}

/** Return lists of token indices, one for each group of tokens.
 *  @param {{tokens: string[], words: number[], special: boolean[]}} side
 *  @param {boolean} whole group the tokens of each word
 *  @param {boolean} hide leave out special tokens */
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

/** Return the text of a group of tokens.
 *  @param {{tokens: string[], pieces: string[]}} side @param {number[]} group */
export function nameOf(side, group) {
  return group.length === 1 ? side.tokens[group[0]] : group.map((i) => side.pieces[i]).join("");
}

/** Merge tokens into words: average over the tokens of a query and sum over the tokens of a key, which preserves
 *  the row sums (Clark et al. 2019).
 *  @param {Float32Array} weights @param {number} width number of keys
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

/** Return the largest weight.
 *  @param {Float32Array} weights */
export function maxWeight(weights) {
  let maximum = 0;
  for (const weight of weights) if (weight > maximum) maximum = weight;
  return maximum;
}

/** Return the entries of largest weight of a row, in decreasing order.
 *  @param {Matrix} matrix @param {number} row @param {number} count
 *  @returns {{key: number, weight: number}[]} */
export function strongest(matrix, row, count) {
  const width = matrix.keys.length;
  const found = Array.from({ length: width }, (_, key) => ({ key, weight: matrix.weights[row * width + key] }));
  return found.sort((a, b) => b.weight - a.weight || a.key - b.key).slice(0, count);
}

/** Reduce a part of a map to the screen resolution: each cell is the maximum or the mean of the weights that it covers.
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
      let maximum = 0;
      let sum = 0;
      for (let i = y0; i < y1; i++) {
        for (let j = x0; j < x1; j++) {
          const weight = weights[i * width + j];
          if (weight > maximum) maximum = weight;
          sum += weight;
        }
      }
      cells[y * across + x] = reduction === "max" ? maximum : sum / ((y1 - y0) * (x1 - x0));
    }
  }
  return cells;
}
