// One map on a canvas, with queries as rows and keys as columns; it supports hover, a keyboard cursor, zoom and pan.

import { axisItems, curveDepths } from "./axes.js";
import { createElement } from "./dom.js";
import { paletteFor, pixels } from "./colour.js";
import { corners, drawInFrames, imageCanvas, paintItems, screenPen } from "./drawing.js";
import { NOT_SHARES, summarize, uniformWeight } from "./range.js";
import { Pinch } from "./touch.js";

/** Milliseconds in which a map becomes another one. */
const BLEND = 160;
/** Pixels around the cells of a map, and sizes of its labels. */
const MARGIN = { left: 92, top: 8, right: 10, bottom: 76 };
const LABEL = 13;

/** The data of a map: a matrix in memory, or tiles loaded on demand.
 *  @typedef {Object} MapData
 *  @property {string[]} queries the tokens of the rows @property {string[]} keys
 *  @property {number} rows @property {number} columns
 *  @property {ArrayLike<number>} counts number of keys that each query may attend to
 *  @property {boolean} normalized whether the weights are shares of 1
 *  @property {(part: [number, number, number, number], height: number, width: number, reduction: "max" | "mean")
 *    => Float32Array} cells
 *  @property {(row: number, column: number) => number | null} weight null: not loaded yet
 *  @property {(row: number, column: number, weight?: number) => number} error largest difference from the exact weight; `weight` is that
 *    of the pair, which may not be loaded @property {number} relative that of the largest weight, in proportion to it
 *  @property {[import("./axes.js").AxisDrawing, import("./axes.js").AxisDrawing]} axes of the rows and the columns
 *  @property {() => boolean} [loading] whether coarser weights are shown until others are loaded */

export class MapView {
  /** @param {{hover: (row: number, column: number) => void,
   *    pick: (row: number | null, column: number | null, click: boolean) => void,
   *    range: (summary: import("./range.js").Summary) => import("./range.js").Range, coloured: () => void,
   *    moved: () => void, framed: () => void, open: () => void, label: string}} handlers `pick` has null for the axis whose label was not clicked,
   *    `range` chooses the colour range of a picture, `coloured` is called
   *    when it changed, `moved` when another part of the map is visible, `framed` when a frame was drawn, and `open` by Enter */
  constructor(handlers) {
    this.handlers = handlers;
    this.canvas = createElement("canvas", {
      class: "map", tabindex: 0, role: "img", "aria-label": handlers.label,
      "aria-roledescription": "heatmap: arrow keys move, plus and minus zoom, 0 resets the zoom, Enter opens sentences",
    });
    this.mapData = /** @type {MapData | null} */ (null);
    /** first row, first column, rows, columns @type {[number, number, number, number]} */
    this.part = [0, 0, 1, 1];
    this.cursor = [0, 0];
    /** the row that keeps its frame while the pointer is elsewhere @type {number | null} */
    this.pinned = null;
    this.reduction = /** @type {"max" | "mean"} */ ("max");
    /** a frame: first row, first column, rows and columns @type {[number, number, number, number] | null} */
    this.framed = null;
    /** where a frame is drawn from @type {[number, number] | null} */
    this.corner = null;
    this.palette = /** @type {import("./colour.js").Palette | null} */ (null);
    /** the colour range of the picture @type {import("./range.js").Range | null} */
    this.range = null;
    this.picture = /** @type {{key: string, cells: Float32Array, width: number, summary: import("./range.js").Summary} | null} */ (null);
    /** the painted picture @type {{key: string, canvas: HTMLCanvasElement} | null} */
    this.painted = null;
    /** the picture that is being replaced, and when it began @type {{canvas: HTMLCanvasElement, start: number} | null} */
    this.before = null;
    /** size of the text, in proportion to its usual one */
    this.scale = 1;
    this.version = 0;
    /** the rows and the columns that have labels @type {number[][]} */
    this.labelled = [[], []];
    this.dragged = /** @type {number[] | null} */ (null);
    this.canvas.addEventListener("pointermove", (event) => this.#onPointerMove(event));
    this.canvas.addEventListener("pointerdown", (event) => this.#onPointerDown(event));
    for (const end of ["pointerup", "pointercancel"]) this.canvas.addEventListener(end, () => {
      this.dragged = null;
      if (this.corner) handlers.framed();
      this.corner = null;
    });
    // If text around the map is selected, dragging would move the text.
    this.canvas.addEventListener("dragstart", (event) => event.preventDefault());
    this.canvas.addEventListener("wheel", (event) => {
      const pair = this.at(event);
      if (!pair) return;
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, pair);
    }, { passive: false });
    this.canvas.addEventListener("keydown", (event) => this.#onKeyDown(event));
    this.pinch = new Pinch(
      this.canvas,
      (factor, x, y) => this.zoom(1 / factor, this.at(new MouseEvent("move", { clientX: x, clientY: y })) || /** @type {any} */ (this.cursor)),
      (x, y) => this.#pan(this.part[0], this.part[1], x, y),
    );
    /** Draw in the next frame. */
    this.draw = drawInFrames(this.canvas, () => this.mapData, (mapData) => this.#draw(mapData));
  }

  /** Show another map; the visible part does not change if both maps have the same size. @param {MapData} mapData */
  show(mapData) {
    const same = this.mapData && this.mapData.rows === mapData.rows && this.mapData.columns === mapData.columns;
    this.mapData = mapData;
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.before = same && !still && this.painted ? { canvas: this.painted.canvas, start: performance.now() } : null;
    if (!same) this.part = [0, 0, mapData.rows, mapData.columns];
    delete this.canvas.dataset.range; // `coloured` is called for the new map
    this.refresh();
  }

  /** Draw again after weights have been loaded. */
  refresh() {
    this.version++;
    this.draw();
  }

  /** The visible part as text, for a link; empty if the whole map is visible. */
  get place() {
    const { mapData, part } = this;
    return mapData && (part[2] < mapData.rows || part[3] < mapData.columns) ? part.join(",") : "";
  }

  /** Show the part of the map that a link names. @param {string} place from `place` */
  visit(place) {
    const part = place.split(",").map(Number);
    const { mapData } = this;
    if (!mapData || part.length !== 4 || !part.every((one) => Number.isInteger(one) && one >= 0) || !part[2] || !part[3]) return;
    const [top, left, rows, columns] = part;
    this.part = [top, left, Math.min(rows, mapData.rows), Math.min(columns, mapData.columns)];
    this.#keepInside();
  }

  /** Move the cursor to a pair of query and key; `follow` scrolls to this pair.
   *  @param {number} row @param {number} column @param {boolean} [follow] */
  point(row, column, follow = false) {
    this.cursor = [row, column];
    if (follow) this.#follow();
    this.draw();
  }

  /** The selected rows and columns: the cursor and the pinned row, whose labels are always shown. @returns {[number[], number[]]} */
  get selected() {
    const [row, column] = this.cursor;
    return [this.pinned === null || this.pinned === row ? [row] : [this.pinned, row], [column]];
  }

  /** The colours of the current range. */
  get colours() {
    return paletteFor(/** @type {import("./colour.js").Palette} */ (this.palette), this.range);
  }

  /** The length of the labels of words at rows and at columns, in CSS pixels. @returns {[number, number]} */
  get #rooms() {
    return [this.scale * (MARGIN.left - 24), this.scale * (MARGIN.bottom - 25)];
  }

  /** The rectangle of the map on the canvas, in CSS pixels. */
  get box() {
    const { canvas: { clientWidth, clientHeight }, scale } = this;
    const [beside, below] = curveDepths(this.mapData, scale * LABEL, this.#rooms).map(({ depth, more }) => depth + more);
    const [x, y] = [scale * MARGIN.left + beside, scale * MARGIN.top];
    return {
      x, y, width: Math.max(10, clientWidth - x - scale * MARGIN.right),
      height: Math.max(10, clientHeight - y - scale * MARGIN.bottom - below),
    };
  }

  /** @param {MapData} mapData */
  #draw(mapData) {
    const ratio = window.devicePixelRatio || 1;
    const { canvas, box, part } = this;
    const pen = screenPen(canvas);
    const height = Math.max(1, Math.min(part[2], Math.floor(box.height * ratio)));
    const width = Math.max(1, Math.min(part[3], Math.floor(box.width * ratio)));
    const painted = this.#paint(mapData, height, width);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(painted, box.x, box.y, box.width, box.height);
    const left = this.before ? 1 - (performance.now() - this.before.start) / BLEND : 0;
    if (this.before && left > 0) {
      pen.globalAlpha = left;
      pen.drawImage(this.before.canvas, box.x, box.y, box.width, box.height);
      pen.globalAlpha = 1;
      this.draw();
    } else this.before = null;
    this.#axes(pen, mapData);
    this.#cursor(pen);
    // One finger scrolls the page unless the map is zoomed in.
    canvas.style.touchAction = this.place ? "none" : "pan-x pan-y";
    if (canvas.dataset.part !== part.join(",")) {
      canvas.dataset.part = part.join(",");
      this.handlers.moved();
    }
    if (mapData.loading?.()) canvas.setAttribute("aria-busy", "true");
    else canvas.removeAttribute("aria-busy");
  }

  /** @param {CanvasRenderingContext2D} pen @param {MapData} mapData */
  #axes(pen, mapData) {
    const { canvas, box, part, scale, selected } = this;
    const style = getComputedStyle(canvas);
    const more = curveDepths(mapData, scale * LABEL, this.#rooms).map((one) => one.more);
    const { items, labelled } = axisItems(mapData, box, part, {
      size: scale * LABEL, nameSize: scale * LABEL, names: ["← query (attends)", "key (attended) →"], gap: 5, room: [this.#rooms[0] + more[0], this.#rooms[1] + more[1]],
      selected, mark: style.getPropertyValue("--mark").trim(),
    });
    paintItems(pen, [{ kind: "shape", points: corners(box.x, box.y, box.width, box.height), stroke: style.color }, ...items], style.color, 0.5);
    this.labelled = labelled;
    Object.assign(canvas.dataset, { rows: labelled[0].join(), columns: labelled[1].join() });
  }

  /** Return the picture of the visible part, which changes only with the part, the weights and the colours.
   *  @param {MapData} mapData @param {number} height @param {number} width in cells */
  #paint(mapData, height, width) {
    const { part, reduction } = this;
    const key = JSON.stringify([this.version, part, height, width, reduction]);
    if (this.picture?.key !== key) {
      const cells = mapData.cells(part, height, width, reduction);
      const uniform = mapData.normalized ? uniformWeight(Array.prototype.slice.call(mapData.counts, part[0], part[0] + part[2])) : NOT_SHARES;
      const pooled = height < part[2] || width < part[3];
      this.picture = { key, cells, width, summary: summarize(cells, uniform, pooled, mapData.relative) };
    }
    const range = this.handlers.range(this.picture.summary);
    const rangeKey = JSON.stringify(range);
    if (this.canvas.dataset.range !== rangeKey) {
      this.canvas.dataset.range = rangeKey;
      this.range = range;
      this.handlers.coloured();
    }
    const palette = this.colours;
    const paintedKey = `${key}${rangeKey}${palette.positive[0]}`;
    if (this.painted?.key !== paintedKey) {
      this.painted = { key: paintedKey, canvas: imageCanvas(pixels(this.picture.cells, width, range, palette)) };
    }
    return this.painted.canvas;
  }

  /** @param {CanvasRenderingContext2D} pen */
  #cursor(pen) {
    const { box, part } = this;
    const [row, column] = this.cursor;
    // The frame surrounds a small cell without covering it.
    const height = Math.max(9, box.height / part[2]);
    const width = Math.max(9, box.width / part[3]);
    const y = box.y + ((row + 0.5 - part[0]) / part[2]) * box.height - height / 2;
    const x = box.x + ((column + 0.5 - part[1]) / part[3]) * box.width - width / 2;
    pen.save();
    pen.beginPath();
    pen.rect(box.x, box.y, box.width, box.height);
    pen.clip();
    pen.strokeStyle = getComputedStyle(this.canvas).getPropertyValue("--mark");
    pen.lineWidth = 1;
    const pinned = this.pinned === null || this.pinned === row ? y : y + ((this.pinned - row) / part[2]) * box.height;
    pen.strokeRect(box.x, pinned, box.width, height);
    pen.lineWidth = 2;
    pen.strokeRect(x, y, width, height);
    if (this.framed) {
      const [top, left, rows, columns] = this.framed;
      const [down, across] = [box.height / part[2], box.width / part[3]];
      pen.setLineDash([6, 4]);
      pen.strokeRect(box.x + (left - part[1]) * across, box.y + (top - part[0]) * down, columns * across, rows * down);
    }
    pen.restore();
  }

  /** Return the pair under the pointer, or null. @param {MouseEvent} event @returns {[number, number] | null} */
  at(event) {
    const edge = this.canvas.getBoundingClientRect();
    const { box, part, mapData } = this;
    const row = Math.floor(part[0] + ((event.clientY - edge.top - box.y) / box.height) * part[2]);
    const column = Math.floor(part[1] + ((event.clientX - edge.left - box.x) / box.width) * part[3]);
    const inside = mapData && row >= 0 && column >= 0 && row < mapData.rows && column < mapData.columns;
    return inside && event.clientX - edge.left >= box.x && event.clientY - edge.top <= box.y + box.height ? [row, column] : null;
  }

  /** Return the row and null, or null and the column, of the label under the pointer; null: there is none.
   *  @param {MouseEvent} event @returns {[number, null] | [null, number] | null} */
  #labelAt(event) {
    const { canvas, box, part, scale } = this;
    const edge = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - edge.left, event.clientY - edge.top];
    const name = 1.4 * scale * LABEL; // of an axis, outside its labels
    const axis = x < box.x && x > name ? 0 : y > box.y + box.height && y < canvas.clientHeight - name ? 1 : -1;
    if (axis < 0) return null;
    const cell = (axis ? box.width : box.height) / part[axis + 2];
    const at = part[axis] + (axis ? x - box.x : y - box.y) / cell - 0.5;
    const nearest = this.labelled[axis].reduce((a, b) => (Math.abs(b - at) < Math.abs(a - at) ? b : a), -Infinity);
    if (cell * Math.abs(nearest - at) > Math.max(1.15 * scale * LABEL, cell) / 2) return null;
    return axis ? [null, nearest] : [nearest, null];
  }

  /** Show `factor` times as many tokens; the pair `fixed` keeps its place on the screen. @param {number} factor @param {[number, number]} fixed */
  zoom(factor, fixed) {
    const { mapData, part } = this;
    if (!mapData) return;
    const sizes = [mapData.rows, mapData.columns];
    for (const axis of [0, 1]) {
      const length = Math.min(sizes[axis], Math.max(Math.min(4, sizes[axis]), part[axis + 2] * factor));
      const share = (fixed[axis] + 0.5 - part[axis]) / part[axis + 2];
      part[axis + 2] = Math.round(length);
      part[axis] = Math.round(fixed[axis] + 0.5 - share * length);
    }
    this.#keepInside();
  }

  /** Move the visible part by pixels, and return whether it moved.
   *  @param {number} top first row before @param {number} left @param {number} x @param {number} y */
  #pan(top, left, x, y) {
    const before = this.place;
    this.part[0] = Math.round(top - (y / this.box.height) * this.part[2]);
    this.part[1] = Math.round(left - (x / this.box.width) * this.part[3]);
    this.#keepInside();
    return this.place !== before;
  }

  #keepInside() {
    const { mapData, part } = this;
    if (!mapData) return;
    part[0] = Math.max(0, Math.min(mapData.rows - part[2], part[0]));
    part[1] = Math.max(0, Math.min(mapData.columns - part[3], part[1]));
    this.draw();
  }

  /** @param {PointerEvent} event */
  #onPointerMove(event) {
    if (this.pinch.active) return;
    if (this.dragged && this.mapData) {
      const [x, y, top, left] = this.dragged;
      this.#pan(top, left, event.clientX - x, event.clientY - y);
      return;
    }
    const pair = this.at(event);
    if (this.corner && pair) {
      const [first, last] = [Math.min, Math.max].map((most) => pair.map((at, axis) => most(at, /** @type {number[]} */ (this.corner)[axis])));
      this.framed = [first[0], first[1], last[0] - first[0] + 1, last[1] - first[1] + 1];
      return this.draw();
    }
    this.canvas.style.cursor = !pair && this.#labelAt(event) ? "pointer" : "";
    if (pair && (pair[0] !== this.cursor[0] || pair[1] !== this.cursor[1])) {
      this.cursor = pair;
      this.handlers.hover(...pair);
      this.draw();
    }
  }

  /** @param {PointerEvent} event */
  #onPointerDown(event) {
    const pair = this.at(event);
    const label = pair ? null : this.#labelAt(event);
    if (label) this.handlers.pick(...label, true);
    if (!pair || !this.mapData) return;
    if (event.shiftKey) {
      event.preventDefault(); // of a selection of text
      [this.corner, this.framed] = [pair, [...pair, 1, 1]];
      this.canvas.setPointerCapture(event.pointerId);
      return this.draw();
    }
    this.handlers.pick(...pair, true);
    if (this.part[2] < this.mapData.rows || this.part[3] < this.mapData.columns) {
      this.dragged = [event.clientX, event.clientY, this.part[0], this.part[1]];
      this.canvas.setPointerCapture(event.pointerId);
    }
  }

  /** @param {KeyboardEvent} event */
  #onKeyDown(event) {
    if (!this.mapData) return;
    const [row, column] = this.cursor;
    const { box, part } = this;
    // When the map is zoomed out, a step is one cell, which covers several tokens.
    const times = event.shiftKey ? 10 : 1;
    const down = times * Math.max(1, Math.round(part[2] / box.height));
    const across = times * Math.max(1, Math.round(part[3] / box.width));
    const move = { ArrowUp: [-down, 0], ArrowDown: [down, 0], ArrowLeft: [0, -across], ArrowRight: [0, across] }[event.key];
    if (move) {
      const [y, x] = [Math.min(this.mapData.rows - 1, row + move[0]), Math.min(this.mapData.columns - 1, column + move[1])];
      this.cursor = [Math.max(0, y), Math.max(0, x)];
      this.#follow();
      this.handlers.pick(this.cursor[0], this.cursor[1], false);
    } else if (event.key === "+" || event.key === "=") this.zoom(0.5, [row, column]);
    else if (event.key === "-") this.zoom(2, [row, column]);
    else if (event.key === "0") this.part = [0, 0, this.mapData.rows, this.mapData.columns];
    else if (event.key === "Enter") this.handlers.open();
    else return;
    event.preventDefault();
    this.draw();
  }

  /** Scroll to the cursor. */
  #follow() {
    for (const axis of [0, 1]) {
      const [at, first, length] = [this.cursor[axis], this.part[axis], this.part[axis + 2]];
      if (at >= first && at < first + length) continue;
      // A step past the edge scrolls by that step; a jump centres the cursor.
      if (at < first - length || at >= first + 2 * length) this.part[axis] = at - Math.floor(length / 2);
      else this.part[axis] = at < first ? at : at - length + 1;
    }
    this.#keepInside();
  }
}
