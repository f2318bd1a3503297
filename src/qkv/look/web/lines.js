// Lines between words: queries on the left, keys on the right, and a line for each weight that stands out.

import { cssColour, inkOn } from "./colour.js";
import { createElement } from "./dom.js";
import { FAINT } from "./range.js";
import { quoted } from "./text_names.js";

/** Maximum number of words on each side; of a longer text, those around the selected one are shown. */
const MAX_WORDS = 40;
const GAP = 6;
/** Heights of a row in pixels: the larger one, and the one for texts whose lines would not fit beside the map. */
const [ROW, LOW_ROW, FEW] = [20, 14, 26];

/** @typedef {Object} Pairs
 *  @property {string[]} queries @property {string[]} keys
 *  @property {(row: number, column: number) => number | null} weight
 *  @property {(weight: number, row: number) => number} shade share of the colour table
 *  @property {(row: number) => number} largest magnitude of a row
 *  @property {import("./colour.js").Palette} palette @property {number} query @property {number} key */

export class Lines {
  /** @param {(row: number, column: number) => void} hover @param {(row: number, column: number) => void} pick */
  constructor(hover, pick) {
    this.canvas = /** @type {HTMLCanvasElement} */ (createElement("canvas", { class: "lines", role: "img" }));
    this.note = createElement("p", { class: "hint" });
    this.element = createElement("div", { class: "between" }, [this.canvas, this.note]);
    /** @type {Pairs | null} */
    this.pairs = null;
    this.frame = 0;
    this.row = ROW;
    const act = (/** @type {PointerEvent | MouseEvent} */ event, /** @type {(row: number, column: number) => void} */ call) => {
      const at = this.#wordAt(event);
      if (at && this.pairs) call(...(at.left ? /** @type {[number, number]} */ ([at.word, this.pairs.key]) : /** @type {[number, number]} */ ([this.pairs.query, at.word])));
    };
    this.canvas.addEventListener("pointermove", (event) => event.pointerType !== "touch" && act(event, hover));
    this.canvas.addEventListener("click", (event) => act(event, pick));
    new ResizeObserver(() => this.#later()).observe(this.canvas);
  }

  /** @param {Pairs} pairs */
  show(pairs) {
    this.pairs = pairs;
    const { queries, keys, query, key } = pairs;
    this.rows = windowOf(queries.length, query, this.rows);
    // The keys of a self-attention map are the same tokens, so both sides show the same part.
    this.columns = queries.length === keys.length ? this.rows : windowOf(keys.length, key, this.columns);
    const shown = Math.max(this.rows[1], this.columns[1]);
    this.row = shown > FEW ? LOW_ROW : ROW;
    this.canvas.style.height = `${shown * this.row + 2 * GAP}px`;
    const part = this.rows[1] < queries.length || this.columns[1] < keys.length;
    this.note.textContent = part ? `${shown} of ${Math.max(queries.length, keys.length)} tokens, around the selected one.` : "";
    this.note.hidden = !part;
    this.#later();
  }

  #later() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      if (this.pairs && this.canvas.clientWidth) this.#draw(this.pairs);
    });
  }

  /** Width of a column of words. */
  get #side() {
    return Math.min(110, Math.floor(this.canvas.clientWidth * 0.36));
  }

  /** @param {Pairs} pairs */
  #draw({ queries, keys, weight, shade, largest, palette, query, key }) {
    const { canvas } = this;
    const [rows, columns] = /** @type {[number, number][]} */ ([this.rows, this.columns]);
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    pen.scale(ratio, ratio);
    const style = getComputedStyle(canvas);
    const side = this.#side;
    const { row: high } = this;
    const y = (/** @type {number} */ place) => GAP + (place + 0.5) * high;
    const shareOf = (/** @type {number} */ row, /** @type {number} */ column) => {
      const value = weight(row, column);
      // Masked pairs, −Infinity, have no line.
      return value !== null && Number.isFinite(value) ? shade(value, largest(row)) : 0;
    };
    const line = (/** @type {number} */ row, /** @type {number} */ column, /** @type {number} */ share, /** @type {boolean} */ strong) => {
      pen.globalAlpha = strong ? 0.35 + 0.65 * Math.abs(share) : 0.3 * Math.abs(share);
      pen.strokeStyle = cssColour(palette, Math.sign(share) * Math.max(0.55, Math.abs(share)));
      pen.lineWidth = strong ? 1 + 3 * Math.abs(share) : 1;
      pen.beginPath();
      pen.moveTo(side + 2, y(row - rows[0]));
      pen.lineTo(width - side - 2, y(column - columns[0]));
      pen.stroke();
    };
    for (const strong of [false, true]) {
      for (let row = rows[0]; row < rows[0] + rows[1]; row++) {
        if (strong !== (row === query)) continue;
        for (let column = columns[0]; column < columns[0] + columns[1]; column++) {
          const share = shareOf(row, column);
          if (Math.abs(share) > FAINT && Math.abs(share) <= 1) line(row, column, share, strong);
        }
      }
    }
    pen.globalAlpha = 1;
    pen.font = `${high === ROW ? 12 : 11}px ${style.fontFamily}`;
    pen.textBaseline = "middle";
    const mark = style.getPropertyValue("--mark");
    const word = (/** @type {string} */ text, /** @type {number} */ place, /** @type {boolean} */ left, /** @type {boolean} */ framed, /** @type {number} */ share) => {
      const x = left ? 1 : width - side + 1;
      if (share) {
        pen.fillStyle = cssColour(palette, share);
        pen.fillRect(x, y(place) - high / 2 + 1, side - 2, high - 2);
      }
      pen.strokeStyle = mark;
      pen.lineWidth = 2;
      if (framed) pen.strokeRect(x, y(place) - high / 2 + 1, side - 2, high - 2);
      pen.fillStyle = share ? inkOn(palette, share) : style.color;
      pen.textAlign = left ? "right" : "left";
      pen.fillText(fitting(pen, text, side - 10), left ? side - 5 : width - side + 5, y(place));
    };
    for (let i = 0; i < rows[1]; i++) word(queries[rows[0] + i], i, true, rows[0] + i === query, 0);
    for (let i = 0; i < columns[1]; i++) {
      const share = shareOf(query, columns[0] + i);
      word(keys[columns[0] + i], i, false, columns[0] + i === key, Math.abs(share) <= 1 ? share : 0);
    }
    canvas.setAttribute("aria-label", `lines from ${quoted(queries[query])} to the tokens that it attends to; the table lists them`);
    canvas.dataset.drawn = String(Number(canvas.dataset.drawn || 0) + 1);
  }

  /** @param {MouseEvent} event @returns {{left: boolean, word: number} | null} */
  #wordAt(event) {
    const edge = this.canvas.getBoundingClientRect();
    const x = event.clientX - edge.left;
    const place = Math.floor((event.clientY - edge.top - GAP) / this.row);
    const left = x < edge.width / 2;
    const part = left ? this.rows : this.columns;
    if (!part || place < 0 || place >= part[1]) return null;
    return { left, word: part[0] + place };
  }
}

/** Return the first index and the number of the words that are shown, which are those of `before` if possible, so that the
 *  words do not move under the pointer.
 *  @param {number} count @param {number} around @param {[number, number]} [before] @returns {[number, number]} */
function windowOf(count, around, before) {
  const shown = Math.min(count, MAX_WORDS);
  if (before && before[1] === shown && before[0] + shown <= count && around >= before[0] && around < before[0] + shown) return before;
  return [Math.max(0, Math.min(count - shown, around - Math.floor(shown / 2))), shown];
}

/** Shorten a text to a width. @param {CanvasRenderingContext2D} pen @param {string} text @param {number} width */
function fitting(pen, text, width) {
  let shown = text.slice(0, 40);
  if (shown === text && pen.measureText(text).width <= width) return text;
  while (shown && pen.measureText(`${shown}…`).width > width) shown = shown.slice(0, -1);
  return `${shown}…`;
}
