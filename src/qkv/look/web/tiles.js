// Tiled maps of long texts, whose tiles are loaded at the resolution of the screen when they become visible.

import { MASKED } from "./codes.js";
import { TILE_SIZE } from "./source.js";

const MAX_TILES = 200;

export class Tiles {
  /** @param {{rows: number, columns: number, levels: number, base: number, overview: [number, number],
   *    tile: (level: number, y: number, x: number) => Promise<Float32Array>}} options each level above `base` pools 2 × 2 cells of the
   *    level below
   *  @param {() => void} onLoad called after a tile is loaded */
  constructor(options, onLoad) {
    this.options = options;
    this.onLoad = onLoad;
    /** the maximum and the mean weight of each cell, in the order of loading @type {Map<string, Float32Array>} */
    this.tiles = new Map();
    this.pending = /** @type {Map<string, Promise<void>>} */ (new Map());
  }

  /** Load the coarsest tile. */
  async first() {
    await this.#fetch(this.options.levels, 0, 0);
  }

  /** Load the exact weights of a query for a range of keys. @param {number} row @param {number} first @param {number} last */
  async loadRow(row, first, last) {
    const y = Math.floor(row / TILE_SIZE);
    const load = [];
    for (let x = Math.floor(first / TILE_SIZE); x <= Math.floor(last / TILE_SIZE); x++) load.push(this.#fetch(0, y, x));
    await Promise.all(load);
  }

  /** @param {number} level @param {number} y @param {number} x @returns {Promise<void>} */
  #fetch(level, y, x) {
    const name = `${level}/${y}/${x}`;
    if (this.tiles.has(name)) return Promise.resolve();
    const load = async () => {
      const cells = await this.options.tile(level, y, x).finally(() => this.pending.delete(name));
      // The oldest tiles make room, except the coarsest.
      for (const old of [...this.tiles.keys()].slice(0, Math.max(0, this.tiles.size + 1 - MAX_TILES))) {
        if (!old.startsWith(`${this.options.levels}/`)) this.tiles.delete(old);
      }
      this.tiles.set(name, cells);
      this.onLoad();
    };
    if (!this.pending.has(name)) this.pending.set(name, load());
    return /** @type {Promise<void>} */ (this.pending.get(name));
  }

  /** Return the cell of a level that covers a token. @param {number} level @param {number} token @param {0 | 1} axis */
  #cell(level, token, axis) {
    const { base, overview } = this.options;
    if (level < base) return Math.floor(token / 2 ** level);
    const tokens = axis === 0 ? this.options.rows : this.options.columns;
    return Math.floor(Math.floor((token * overview[axis]) / tokens) / 2 ** (level - base));
  }

  /** Return a weight, or null if it is not loaded. @param {number} query @param {number} key */
  weight(query, key) {
    const [row, column] = [this.#cell(0, query, 0), this.#cell(0, key, 1)];
    const tile = this.tiles.get(`0/${Math.floor(row / TILE_SIZE)}/${Math.floor(column / TILE_SIZE)}`);
    return tile ? tile[(row % TILE_SIZE) * TILE_SIZE + (column % TILE_SIZE)] : null;
  }

  /** Reduce a part of the map to the screen resolution: each cell is the maximum or the mean of the weights that it covers.
   *  @param {[number, number, number, number]} part @param {number} rowsOnScreen @param {number} columnsOnScreen
   *  @param {"max" | "mean"} reduction */
  reduce([top, left, rows, columns], rowsOnScreen, columnsOnScreen, reduction) {
    const { levels } = this.options;
    const finest = Math.max(rows / rowsOnScreen, columns / columnsOnScreen);
    const level = Math.max(0, Math.min(levels, Math.floor(Math.log2(Math.max(1, finest)))));
    // Coarser tiles are drawn until the tiles of this level are loaded.
    const levelsDrawn = [];
    for (let at = level; at <= levels; at++) {
      const down = this.#covered(at, top, rows, rowsOnScreen, 0);
      const across = this.#covered(at, left, columns, columnsOnScreen, 1);
      const { tiles, complete } = this.#grid(at, down, across, at === level);
      levelsDrawn.push({ down, across, tiles });
      if (complete) break;
    }
    const cells = new Float32Array(rowsOnScreen * columnsOnScreen);
    const channel = reduction === "max" ? 0 : TILE_SIZE * TILE_SIZE;
    for (let y = 0; y < rowsOnScreen; y++) {
      for (let x = 0; x < columnsOnScreen; x++) {
        for (const { down, across, tiles } of levelsDrawn) {
          const weight = pool(tiles, down[2 * y], down[2 * y + 1], across[2 * x], across[2 * x + 1], channel);
          if (weight === null) continue;
          cells[y * columnsOnScreen + x] = weight;
          break;
        }
      }
    }
    return cells;
  }

  /** Return the first and last cell of a level under each pixel. @param {number} level @param {number} start
   *  @param {number} length in tokens @param {number} pixels @param {0 | 1} axis */
  #covered(level, start, length, pixels, axis) {
    const limits = new Int32Array(2 * pixels);
    for (let i = 0; i < pixels; i++) {
      const first = Math.floor(start + (i * length) / pixels);
      const last = Math.max(first, Math.ceil(start + ((i + 1) * length) / pixels) - 1);
      limits[2 * i] = this.#cell(level, first, axis);
      limits[2 * i + 1] = this.#cell(level, last, axis);
    }
    return limits;
  }

  /** Return the tiles of a level by row and column, and whether all are loaded. @param {number} level
   *  @param {Int32Array} down @param {Int32Array} across @param {boolean} load load the missing tiles */
  #grid(level, down, across, load) {
    const tiles = /** @type {(Float32Array | undefined)[][]} */ ([]);
    let complete = true;
    for (let y = Math.floor(down[0] / TILE_SIZE); y <= Math.floor(down[down.length - 1] / TILE_SIZE); y++) {
      tiles[y] = [];
      for (let x = Math.floor(across[0] / TILE_SIZE); x <= Math.floor(across[across.length - 1] / TILE_SIZE); x++) {
        tiles[y][x] = this.tiles.get(`${level}/${y}/${x}`);
        if (tiles[y][x]) continue;
        complete = false;
        if (load) this.#fetch(level, y, x).catch(() => {});
      }
    }
    return { tiles, complete };
  }
}

/** Return the maximum or the mean of a range of cells without the masked ones, `MASKED` if all are masked, and null if
 *  one of them is not loaded.
 *  @param {(Float32Array | undefined)[][]} tiles @param {number} top @param {number} bottom @param {number} left
 *  @param {number} right @param {number} channel 0: maximum
 *  @returns {number | null} */
function pool(tiles, top, bottom, left, right, channel) {
  let [maximum, sum, count] = [MASKED, 0, 0];
  for (let row = top; row <= bottom; row++) {
    for (let column = left; column <= right; column++) {
      const tile = tiles[Math.floor(row / TILE_SIZE)][Math.floor(column / TILE_SIZE)];
      if (!tile) return null;
      const weight = tile[channel + (row % TILE_SIZE) * TILE_SIZE + (column % TILE_SIZE)];
      if (weight === MASKED) continue;
      if (weight > maximum) maximum = weight;
      sum += weight;
      count++;
    }
  }
  if (!count) return MASKED;
  return channel === 0 ? maximum : sum / count;
}
