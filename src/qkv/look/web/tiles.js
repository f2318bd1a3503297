// Maps of many thousand tokens: tiles of the resolution that the screen shows, fetched when they are seen.

/** Tokens, or spots, on a side of a tile. */
export const SIDE = 256;
const KEPT = 200;

export class Tiles {
  /** @param {{queries: string[], keys: string[], levels: number, most: number,
   *    base: number, overview: [number, number], tile: (level: number, y: number, x: number) => Promise<Uint8Array>}}
   *    given levels from `base` on are spots of the overview, 2 × 2 joined at each step
   *  @param {() => void} came called when a tile has come */
  constructor(given, came) {
    this.given = given;
    this.came = came;
    /** codes of the largest and of the mean weight, as they came
     *  @type {Map<string, Uint8Array>} */
    this.tiles = new Map();
    /** @type {Map<string, Promise<void>>} */
    this.coming = new Map();
    this.sheet = {
      query: (/** @type {number} */ row) => given.queries[row] ?? "",
      key: (/** @type {number} */ column) => given.keys[column] ?? "",
      rows: given.queries.length,
      columns: given.keys.length,
      most: given.most,
      spots: this.#spots.bind(this),
      weight: (/** @type {number} */ row, /** @type {number} */ column) => this.#read(0, row, column, 0),
      near: (/** @type {number} */ row, /** @type {number} */ first, /** @type {number} */ last) =>
        this.#near(row, first, last),
    };
  }

  /** The coarsest tile, so that there is something to see. */
  async first() {
    await this.#fetch(this.given.levels, 0, 0);
  }

  /** The weights of a query on some keys, token by token, wherever the map is.
   *  @param {number} row @param {number} first @param {number} last */
  async #near(row, first, last) {
    const y = Math.floor(row / SIDE);
    const wanted = [];
    for (let x = Math.floor(first / SIDE); x <= Math.floor(last / SIDE); x++) wanted.push(this.#fetch(0, y, x));
    await Promise.all(wanted);
  }

  /** @param {number} level @param {number} y @param {number} x @returns {Promise<void>} */
  #fetch(level, y, x) {
    const name = `${level}/${y}/${x}`;
    if (this.tiles.has(name)) return Promise.resolve();
    let coming = this.coming.get(name);
    if (!coming) {
      coming = this.given
        .tile(level, y, x)
        .then((codes) => {
          this.tiles.set(name, codes);
          this.#forget(name);
          this.came();
        })
        .finally(() => this.coming.delete(name));
      this.coming.set(name, coming);
    }
    return coming;
  }

  /** The tiles that came first go first, but for the coarsest and the one that has just come.
   *  @param {string} last */
  #forget(last) {
    for (const name of this.tiles.keys()) {
      if (this.tiles.size <= KEPT) return;
      if (name !== last && !name.startsWith(`${this.given.levels}/`)) this.tiles.delete(name);
    }
  }

  /** The spot of a level that holds a token. @param {number} level @param {number} token @param {0 | 1} axis */
  #spot(level, token, axis) {
    const { base, overview } = this.given;
    if (level < base) return Math.floor(token / 2 ** level);
    const tokens = axis === 0 ? this.sheet.rows : this.sheet.columns;
    return Math.floor(Math.floor((token * overview[axis]) / tokens) / 2 ** (level - base));
  }

  /** @param {number} level @param {number} token @param {number} other a query and a key
   *  @param {number} channel 0 largest, 1 mean */
  #read(level, token, other, channel) {
    const row = this.#spot(level, token, 0);
    const column = this.#spot(level, other, 1);
    const y = Math.floor(row / SIDE);
    const x = Math.floor(column / SIDE);
    const tile = this.tiles.get(`${level}/${y}/${x}`);
    if (!tile) return null;
    const code = tile[channel * SIDE * SIDE + (row - y * SIDE) * SIDE + (column - x * SIDE)];
    return (code / 255) ** 2 * this.given.most;
  }

  /** A part of the map at the resolution of the screen: each spot is the largest, or the mean, of all it covers.
   *  @param {[number, number, number, number]} part @param {number} high @param {number} wide
   *  @param {"max" | "mean"} how */
  #spots([top, left, rows, columns], high, wide, how) {
    const { levels, most } = this.given;
    const finest = Math.max(rows / high, columns / wide);
    const level = Math.max(0, Math.min(levels, Math.floor(Math.log2(Math.max(1, finest)))));
    // Until the right tiles are there, coarser ones stand in.
    const tried = [];
    for (let at = level; at <= levels; at++) {
      const down = this.#covered(at, top, rows, high, 0);
      const across = this.#covered(at, left, columns, wide, 1);
      const { tiles, whole } = this.#grid(at, down, across, at === level);
      tried.push({ down, across, tiles });
      if (whole) break;
    }
    const spots = new Float32Array(high * wide);
    const weights = Float32Array.from({ length: 256 }, (_, code) => (code / 255) ** 2 * most);
    const channel = how === "max" ? 0 : SIDE * SIDE;
    for (let y = 0; y < high; y++) {
      for (let x = 0; x < wide; x++) {
        for (const { down, across, tiles } of tried) {
          const found = joined(tiles, down[2 * y], down[2 * y + 1], across[2 * x], across[2 * x + 1], channel, weights);
          if (found < 0) continue;
          spots[y * wide + x] = found;
          break;
        }
      }
    }
    return spots;
  }

  /** First and last spot of a level under each pixel. @param {number} level @param {number} start
   *  @param {number} length in tokens @param {number} pixels @param {0 | 1} axis */
  #covered(level, start, length, pixels, axis) {
    const limits = new Int32Array(2 * pixels);
    for (let i = 0; i < pixels; i++) {
      const first = Math.floor(start + (i * length) / pixels);
      const last = Math.max(first, Math.ceil(start + ((i + 1) * length) / pixels) - 1);
      limits[2 * i] = this.#spot(level, first, axis);
      limits[2 * i + 1] = this.#spot(level, last, axis);
    }
    return limits;
  }

  /** The tiles of a level, by row and column, and whether all are there. @param {number} level
   *  @param {Int32Array} down @param {Int32Array} across @param {boolean} wanted ask for those that are missing */
  #grid(level, down, across, wanted) {
    /** @type {(Uint8Array | undefined)[][]} */
    const tiles = [];
    let whole = true;
    for (let y = Math.floor(down[0] / SIDE); y <= Math.floor(down[down.length - 1] / SIDE); y++) {
      tiles[y] = [];
      for (let x = Math.floor(across[0] / SIDE); x <= Math.floor(across[across.length - 1] / SIDE); x++) {
        tiles[y][x] = this.tiles.get(`${level}/${y}/${x}`);
        if (tiles[y][x]) continue;
        whole = false;
        if (wanted) this.#fetch(level, y, x).catch(() => {});
      }
    }
    return { tiles, whole };
  }
}

/** The largest, or the mean, of some spots; −1 where one of them has not come.
 *  @param {(Uint8Array | undefined)[][]} tiles @param {number} top @param {number} bottom @param {number} left
 *  @param {number} right @param {number} channel 0: largest @param {Float32Array} weights of each code */
function joined(tiles, top, bottom, left, right, channel, weights) {
  let most = 0;
  let sum = 0;
  for (let row = top; row <= bottom; row++) {
    for (let column = left; column <= right; column++) {
      const tile = tiles[Math.floor(row / SIDE)][Math.floor(column / SIDE)];
      if (!tile) return -1;
      const code = tile[channel + (row % SIDE) * SIDE + (column % SIDE)];
      if (code > most) most = code;
      sum += weights[code];
    }
  }
  return channel === 0 ? weights[most] : sum / ((bottom - top + 1) * (right - left + 1));
}
