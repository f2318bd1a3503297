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
     *  @type {Map<string, Uint8Array | null>} */
    this.tiles = new Map();
    this.sheet = {
      query: (/** @type {number} */ row) => given.queries[row] ?? "",
      key: (/** @type {number} */ column) => given.keys[column] ?? "",
      rows: given.queries.length,
      columns: given.keys.length,
      most: given.most,
      spots: this.#spots.bind(this),
      weight: (/** @type {number} */ row, /** @type {number} */ column) => this.#read(0, row, column, 0),
    };
  }

  /** The coarsest tile, so that there is something to see. */
  async first() {
    await this.#fetch(this.given.levels, 0, 0);
  }

  /** @param {number} level @param {number} y @param {number} x */
  async #fetch(level, y, x) {
    const name = `${level}/${y}/${x}`;
    if (this.tiles.has(name)) return;
    this.tiles.set(name, null);
    if (this.tiles.size > KEPT) this.#forget();
    try {
      this.tiles.set(name, await this.given.tile(level, y, x));
      this.came();
    } catch (error) {
      this.tiles.delete(name);
      throw error;
    }
  }

  #forget() {
    for (const name of this.tiles.keys()) {
      if (this.tiles.size <= KEPT) return;
      if (this.tiles.get(name) && !name.startsWith(`${this.given.levels}/`)) this.tiles.delete(name);
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

  /** @param {[number, number, number, number]} part @param {number} high @param {number} wide
   *  @param {"max" | "mean"} how */
  #spots([top, left, rows, columns], high, wide, how) {
    const finest = Math.max(rows / high, columns / wide);
    const level = Math.max(0, Math.min(this.given.levels, Math.floor(Math.log2(Math.max(1, finest)))));
    const channel = how === "max" ? 0 : 1;
    const spots = new Float32Array(high * wide);
    const tile = (/** @type {number} */ token, /** @type {0 | 1} */ axis) => Math.floor(this.#spot(level, token, axis) / SIDE);
    for (let y = tile(top, 0); y <= tile(top + rows - 1, 0); y++) {
      for (let x = tile(left, 1); x <= tile(left + columns - 1, 1); x++) this.#fetch(level, y, x).catch(() => {});
    }
    for (let y = 0; y < high; y++) {
      const row = Math.floor(top + ((y + 0.5) * rows) / high);
      for (let x = 0; x < wide; x++) {
        const column = Math.floor(left + ((x + 0.5) * columns) / wide);
        // Until the right tile is there, a coarser one stands in.
        for (let coarse = level; coarse <= this.given.levels; coarse++) {
          const found = this.#read(coarse, row, column, channel);
          if (found !== null) {
            spots[y * wide + x] = found;
            break;
          }
        }
      }
    }
    return spots;
  }
}
