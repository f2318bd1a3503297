// Lines between words, of one head or of several: queries on the left, keys on the right, and a line for each weight that stands out.

import { formatWeight, formatWeights } from "./codes.js";
import { blend, cssColour, inkOn } from "./colour.js";
import { createElement } from "./dom.js";
import { corners, drawInFrames, fitText, paintItems, screenPen, textWidth, wrapText } from "./drawing.js";
import { quoted } from "./text_names.js";

/** Maximum number of words on each side; of a longer text, those around the selected one are shown. */
const MAX_WORDS = 40;
/** Maximum number of lines for each word, apart from those of the selected one: more cross each other too often. */
const LINES_PER_WORD = 3;
const GAP = 6;
/** Heights of a row in pixels: the larger one, and the one for texts whose lines would not fit beside the map. */
const [ROW, LOW_ROW, FEW] = [20, 16, 26];
/** Pixels of a text, and pixels above and between the words of several heads. */
const [WORD_SIZE, HEADING] = [13, 20];
/** Pixels between the lines of two heads at the same words, and from the pointer to a line that it selects. */
const [APART, NEAR] = [3, 6];
/** Length of the dashes of each head in a figure, and from one to the next, so that heads can be told apart in grey. */
const DASHES = [[1e4, 1e4], [7, 10], [2, 4], [14, 17], [5, 11], [2, 7]];

/** A head whose lines are drawn.
 *  @typedef {Object} LineHead
 *  @property {string} name
 *  @property {(row: number, column: number) => number} weight @property {(row: number, column: number) => number} error of the weight
 *  @property {(weight: number, row: number) => number} share of the thickest line, from −1 to 1; NaN and infinities: no line
 *  @property {(share: number) => string} colour */

/** @typedef {Object} Pairs
 *  @property {string[]} queries @property {string[]} keys @property {LineHead[]} heads
 *  @property {number} least share from which on there are lines @property {number} top weight of the largest share
 *  @property {boolean} pinned whether the selected pair stays selected
 *  @property {import("./colour.js").Palette} palette of the weights of a single head
 *  @property {number} query @property {number} key */

/** @typedef {{head: number, row: number, column: number, share: number}} Line */

export class Lines {
  /** @param {(row: number, column: number) => void} hover @param {(row: number, column: number) => void} pick
   *  @param {(head: number) => void} remove called to remove a head */
  constructor(hover, pick, remove) {
    this.remove = remove;
    this.canvas = createElement("canvas", { class: "lines", role: "img" });
    this.note = createElement("p", { class: "hint" });
    this.legend = createElement("ul", { class: "badges", "aria-label": "heads of the lines" });
    this.element = createElement("div", { class: "between" }, [this.legend, this.canvas, this.note]);
    this.pairs = /** @type {Pairs | null} */ (null);
    /** the head that stands out; −1: none */
    this.marked = -1;
    this.hovered = false;
    const act = (/** @type {PointerEvent | MouseEvent} */ event, /** @type {(row: number, column: number) => void} */ call) => {
      const at = this.#pairAt(event);
      if (at) call(...at);
    };
    this.canvas.addEventListener("pointermove", (event) => event.pointerType !== "touch" && act(event, hover));
    this.canvas.addEventListener("click", (event) => act(event, pick));
    for (const name of ["pointerenter", "pointerleave"]) {
      this.canvas.addEventListener(name, () => { this.hovered = name === "pointerenter"; this.draw(); });
    }
    this.draw = drawInFrames(this.canvas, () => this.pairs, (pairs) => this.#draw(pairs));
  }

  /** @param {Pairs} pairs */
  show(pairs) {
    this.pairs = pairs;
    const { queries, keys, query, key, heads } = pairs;
    this.rows = windowOf(queries.length, query, this.rows);
    // The keys of a self-attention map are the same tokens, so both sides show the same part.
    this.columns = queries.length === keys.length ? this.rows : windowOf(keys.length, key, this.columns);
    const shown = Math.max(this.rows[1], this.columns[1]);
    this.canvas.style.height = `${this.#layout(1).bottom}px`;
    const part = this.rows[1] < queries.length || this.columns[1] < keys.length;
    this.note.textContent = `${part ? `${shown} of ${Math.max(queries.length, keys.length)} tokens, around the selected one. ` : ""}${heads.length > 1 ? `${this.rule} The view begins with the best heads of three roles and the selected head; select others to add their lines.` : ""}`;
    this.note.hidden = !this.note.textContent;
    this.legend.hidden = heads.length < 2;
    if (heads.length > 1) this.#fillLegend(pairs);
    this.draw();
  }

  /** Name the heads, with the weight of the selected pair in each. @param {Pairs} pairs */
  #fillLegend({ heads, query, key }) {
    const mark = (/** @type {number} */ i) => () => { this.marked = i; this.draw(); };
    const focused = Array.from(this.legend.children).findIndex((one) => one.contains(document.activeElement));
    const weights = formatWeights(heads.map((head) => ({ weight: head.weight(query, key), error: head.error(query, key) })));
    this.legend.replaceChildren(...heads.map((head, i) => {
      const item = createElement("li", { class: "badge" }, [
        createElement("span", { class: "swatch", style: { background: head.colour(1) } }), createElement("span", { text: ` ${head.name}: ${weights[i]} ` }),
        createElement("button", { class: "ask", text: "×", "aria-label": `remove ${head.name}`, onclick: () => this.remove(i), onfocus: mark(i), onblur: mark(-1) }),
      ]);
      item.addEventListener("pointerenter", mark(i));
      item.addEventListener("pointerleave", mark(-1));
      return item;
    }));
    if (focused >= 0) this.legend.querySelectorAll("button")[Math.min(focused, heads.length - 1)]?.focus();
  }

  /** Where the words are, in pixels or points. @param {number} scale of the text @param {number} [width] */
  #layout(scale, width = this.canvas.clientWidth) {
    const many = (this.pairs?.heads.length ?? 1) > 1;
    const shown = Math.max(this.rows?.[1] ?? 0, this.columns?.[1] ?? 0);
    const row = scale * (shown > FEW ? LOW_ROW : ROW + (many ? 6 : 0));
    const top = scale * (many ? GAP + HEADING : GAP);
    const side = Math.min(scale * (many ? 180 : 110), Math.floor(width * 0.36));
    const y = (/** @type {number} */ place) => top + (place + 0.5) * row;
    return { width, side, row, top, y, many, bottom: top + shown * row + scale * GAP };
  }

  /** The lines, and the smallest share of which all are drawn. @returns {{lines: Line[], least: number}} */
  get #lines() {
    const { heads, least, query } = /** @type {Pairs} */ (this.pairs);
    const [rows, columns] = /** @type {[number, number][]} */ ([this.rows, this.columns]);
    const found = /** @type {Line[]} */ ([]);
    heads.forEach((head, i) => {
      for (let row = rows[0]; row < rows[0] + rows[1]; row++) {
        for (let column = columns[0]; column < columns[0] + columns[1]; column++) {
          const weight = head.weight(row, column);
          // Masked pairs, −Infinity, have no line.
          const share = Number.isFinite(weight) ? head.share(weight, row) : 0;
          if (Math.abs(share) > least && Math.abs(share) <= 1) found.push({ head: i, row, column, share });
        }
      }
    });
    found.sort((a, b) => Math.abs(b.share) - Math.abs(a.share));
    const most = LINES_PER_WORD * Math.max(rows[1], columns[1]);
    const smallest = found.length > most ? Math.abs(found[most - 1].share) : least;
    return { lines: found.filter(({ share, row }) => Math.abs(share) >= smallest || row === query).reverse(), least: smallest };
  }

  /** What is drawn, in words. */
  get rule() {
    const { lines, least } = this.#lines;
    const { least: own, top, queries, query } = /** @type {Pairs} */ (this.pairs);
    const more = least > own ? `, of ${quoted(queries[query])} ${formatWeight(own * top)}` : "";
    return `${lines.length} lines: weights of at least ${formatWeight(least * top)}${more}. Thicker lines are larger weights.`;
  }

  /** Return the items of a drawing. @param {number} scale of the text @param {number} width @param {{paper: string, ink: string, mark: string}} theme
   *  @param {boolean} page whether they are shown on the page @returns {import("./drawing.js").Drawing["items"]} */
  #items(scale, width, { paper, ink, mark }, page) {
    const { queries, keys, heads, palette, query, key, pinned } = /** @type {Pairs} */ (this.pairs);
    const [rows, columns] = /** @type {[number, number][]} */ ([this.rows, this.columns]);
    const { side, row: high, y, many, top } = this.#layout(scale, width);
    const items = /** @type {import("./drawing.js").Drawing["items"]} */ ([]);
    const { lines } = this.#lines;
    // All lines are strong until a word is chosen.
    const every = many && !pinned && !(page && this.hovered);
    const strong = (/** @type {Line} */ line) => (this.marked >= 0 ? line.head === this.marked : every || line.row === query);
    for (const line of [...lines.filter((one) => !strong(one)), ...lines.filter(strong)]) {
      const size = Math.abs(line.share);
      const alpha = strong(line) ? (page ? 0.35 + 0.65 * size : 1) : many ? 0.25 : 0.3 * size;
      const half = scale * (strong(line) || many ? 0.5 + 1.5 * size : 0.5);
      const apart = scale * APART * (line.head - (heads.length - 1) / 2);
      const [from, to] = [y(line.row - rows[0]) + apart, y(line.column - columns[0]) + apart];
      const across = width - 2 * side - 4;
      for (const piece of piecesOf(page ? 0 : line.head, across)) {
        const [[a, b], [c, d]] = piece.map((x) => [side + 2 + x, from + (x / across) * (to - from)]);
        items.push({ kind: "shape", fill: blend(heads[line.head].colour(line.share), paper, alpha), points: [[a, b - half], [c, d - half], [c, d + half], [a, b + half]] });
      }
    }
    const word = (/** @type {string} */ text, /** @type {number} */ place, /** @type {boolean} */ left, /** @type {boolean} */ chosen, /** @type {number} */ share) => {
      const box = corners(left ? 1 : width - side + 1, y(place) - high / 2 + 1, side - 2, high - 2);
      if (share) items.push({ kind: "shape", points: box, fill: cssColour(palette, share) });
      if (chosen && (page || pinned)) items.push({ kind: "shape", points: box, stroke: mark });
      items.push({
        kind: "text", x: left ? side - 5 * scale : width - side + 5 * scale, y: y(place), text: fitText(text, scale * WORD_SIZE, side - 10 * scale), size: scale * WORD_SIZE,
        anchor: left ? "end" : "start", fill: share ? inkOn(palette, share) : ink,
      });
    };
    if (many) {
      items.push({ kind: "text", x: side - 5 * scale, y: top - scale * 12, text: "attends", size: scale * WORD_SIZE, anchor: "end" });
      items.push({ kind: "text", x: width - side + 5 * scale, y: top - scale * 12, text: "is attended to", size: scale * WORD_SIZE, anchor: "start" });
    }
    const shareOf = (/** @type {number} */ column) => {
      const share = heads[0].share(heads[0].weight(query, column), query);
      return !many && Math.abs(share) <= 1 ? share : 0;
    };
    for (let i = 0; i < rows[1]; i++) word(queries[rows[0] + i], i, true, rows[0] + i === query, 0);
    for (let i = 0; i < columns[1]; i++) word(keys[columns[0] + i], i, false, columns[0] + i === key, shareOf(columns[0] + i));
    return items;
  }

  /** @param {Pairs} pairs */
  #draw({ queries, query, heads }) {
    const { canvas } = this;
    const pen = screenPen(canvas);
    const style = getComputedStyle(canvas);
    const theme = { paper: style.getPropertyValue("--paper").trim(), ink: style.color, mark: style.getPropertyValue("--mark") };
    paintItems(pen, this.#items(1, canvas.clientWidth, theme, true), theme.ink, 2);
    const whose = heads.length > 1 ? ` in ${heads.map(({ name }) => name).join(", ")}` : "";
    canvas.setAttribute("aria-label", `lines from ${quoted(queries[query])} to the tokens that it attends to${whose}; the table lists them`);
  }

  /** Return the lines of all shown words as a figure with a legend. @param {number} inches @param {{paper: string, ink: string}} theme @param {string} title
   *  @returns {import("./drawing.js").Drawing} */
  figure(inches, theme, title) {
    const scale = 7.5 / WORD_SIZE;
    const width = inches * 72;
    const { heads } = /** @type {Pairs} */ (this.pairs);
    const items = this.#items(scale, width, { ...theme, mark: theme.ink }, false);
    let [x, y] = [4, this.#layout(scale, width).bottom + 6];
    for (const [i, head] of heads.entries()) {
      const wide = 34 + textWidth(head.name, 7.5);
      if (x > 4 && x + wide > width) [x, y] = [4, y + 10];
      for (const [start, stop] of piecesOf(i, 22)) items.push({ kind: "shape", points: corners(x + start, y - 1, stop - start, 2), fill: head.colour(1) });
      items.push({ kind: "text", x: x + 25, y, text: head.name, size: 7.5, anchor: "start" });
      x += wide;
    }
    for (const text of wrapText(this.rule, 7.5, width - 8)) items.push({ kind: "text", x: 4, y: (y += 10), text, size: 7.5, anchor: "start" });
    return { width, height: y + 8, title, ...theme, items };
  }

  /** Return the pair of the word or of the line under the pointer. @param {MouseEvent} event @returns {[number, number] | null} */
  #pairAt(event) {
    const { pairs, rows, columns } = this;
    if (!pairs || !rows || !columns) return null;
    const edge = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - edge.left, event.clientY - edge.top];
    const layout = this.#layout(1);
    if (layout.many && x > layout.side && x < layout.width - layout.side) {
      const share = (x - layout.side) / (layout.width - 2 * layout.side);
      const distance = (/** @type {Line} */ line) => {
        const apart = APART * (line.head - (pairs.heads.length - 1) / 2);
        return Math.abs((1 - share) * layout.y(line.row - rows[0]) + share * layout.y(line.column - columns[0]) + apart - y);
      };
      const nearest = this.#lines.lines.reduce((best, line) => (best && distance(best) <= distance(line) ? best : line), /** @type {Line | null} */ (null));
      return nearest && distance(nearest) <= NEAR ? [nearest.row, nearest.column] : null;
    }
    const [place, left] = [Math.floor((y - layout.top) / layout.row), x < edge.width / 2];
    const part = left ? rows : columns;
    if (place < 0 || place >= part[1]) return null;
    return left ? [part[0] + place, pairs.key] : [pairs.query, part[0] + place];
  }
}

/** Return the first and last point of each dash of a line. @param {number} head @param {number} length @returns {[number, number][]} */
const piecesOf = (head, length, [dash, pitch] = DASHES[head]) =>
  Array.from({ length: Math.ceil(length / pitch) }, (_, i) => [i * pitch, Math.min(length, i * pitch + dash)]);

/** Return the first index and the number of the words that are shown, which are those of `before` if possible, so that the
 *  words do not move under the pointer.
 *  @param {number} count @param {number} around @param {[number, number]} [before] @returns {[number, number]} */
function windowOf(count, around, before) {
  const shown = Math.min(count, MAX_WORDS);
  if (before && before[1] === shown && before[0] + shown <= count && around >= before[0] && around < before[0] + shown) return before;
  return [Math.max(0, Math.min(count - shown, around - Math.floor(shown / 2))), shown];
}
