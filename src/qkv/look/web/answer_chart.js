// What the charts of answers share: axes, two canvases below a drawing, and a handle that moves the query.

import { createElement, createShape } from "./dom.js";
import { tickMarks } from "./answer_ticks.js";
import { screenPen } from "./drawing.js";

/** Colours of labels, which colour-blind readers can tell apart (Okabe and Ito). */
export const LABEL_COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#8a8f98"];

/** Return a text, of which the end is replaced by … if it is longer. @param {string} text @param {number} length */
export const shortened = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

/** @typedef {(tag: string, attributes: Record<string, any>, text?: string) => void} Add adds a shape to a drawing */

/** A chart with a query that can be moved by pointer and by keyboard. Its kinds have an `area` of both axes in pixels, `drawWeights`, and
 *  `fill`, which adds the axes and the answer to the drawing. */
export class AnswerChart {
  /** @param {any} meta @param {any} across the axis from left to right @param {any} up the axis from bottom to top
   *  @param {(at: number[]) => void} [move] called with the coordinates of the query */
  constructor(meta, across, up, move = () => {}) {
    this.meta = meta;
    this.across = across;
    this.up = up;
    this.move = move;
    /** the labels of values that are not on an axis @type {string[] | null} */
    this.labels = meta.value.labels || null;
    this.dark = false;
    this.answer = /** @type {any} */ (null);
    this.points = /** @type {{keys: Uint16Array[], values: Uint16Array, count: number, shown: number} | null} */ (null);
    this.at = /** @type {number[] | null} */ (null);
    this.rows = createElement("canvas", { class: "plate", "aria-hidden": "true" });
    this.weights = createElement("canvas", { class: "plate", "aria-hidden": "true" });
    this.drawing = createShape("svg", { class: "plate", "aria-hidden": "true" });
    this.handle = createElement("button", { class: "handle", type: "button" });
    this.element = createElement("div", { class: "chart", "data-mode": meta.mode }, [this.rows, this.weights, this.drawing, this.handle]);
    this.element.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || this.meta.mode === "typed") return;
      event.preventDefault();
      this.element.setPointerCapture(event.pointerId);
      this.element.dataset.dragging = "1";
      this.handle.focus({ preventScroll: true });
      this.#moveTo(event);
    });
    this.element.addEventListener("pointermove", (event) => {
      if (this.element.dataset.dragging) this.#moveTo(event);
    });
    for (const name of ["pointerup", "pointercancel"]) this.element.addEventListener(name, () => delete this.element.dataset.dragging);
    this.handle.addEventListener("keydown", (event) => this.#key(event));
    // Reading the size after a change of the page computes its layout, so it is read once for each size.
    this.size = /** @type {[number, number] | null} */ (null);
    new ResizeObserver(() => {
      this.size = null;
      this.draw();
    }).observe(this.element);
  }

  #measure() {
    const { clientWidth, clientHeight, isConnected } = this.element;
    const size = /** @type {[number, number]} */ ([Math.max(240, clientWidth), Math.max(200, clientHeight)]);
    if (isConnected) this.size = size;
    return size;
  }

  get width() { return (this.size || this.#measure())[0]; }
  get height() { return (this.size || this.#measure())[1]; }

  /** Return a colour of the style sheet. @param {string} name */
  themeColour(name) { return getComputedStyle(this.element).getPropertyValue(`--${name}`); }

  /** @param {PointerEvent} event */
  #moveTo(event) {
    const box = this.element.getBoundingClientRect();
    this.set(this.coordinatesAt(event.clientX - box.left, event.clientY - box.top));
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (!this.at || event.ctrlKey || event.metaKey || event.altKey) return;
    const steps = event.shiftKey || event.key.startsWith("Page") ? 50 : 5;
    const [across, up] = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1], PageUp: [1, 0], PageDown: [-1, 0] }[event.key] || [0, 0];
    const { keys } = this.meta;
    const end = { Home: keys[0].low, End: keys[0].low + keys[0].span }[event.key];
    if (end === undefined && !across && !up) return;
    event.preventDefault();
    const moves = this.at.length === 1 ? [across + up] : [across, up];
    // The least step is that of queries, or a thousandth of the axis.
    const at = this.at.map((each, i) => each + moves[i] * steps * Math.max(keys[i].step / 5, keys[i].span / 1000));
    this.set(end === undefined ? at : [end, ...at.slice(1)]);
  }

  /** Move the query, within the ends of the axes. @param {number[]} at */
  set(at) {
    this.at = at.map((each, i) => Math.min(this.meta.keys[i].ends[1], Math.max(this.meta.keys[i].ends[0], each)));
    this.placeHandle();
    this.move(this.at);
  }

  /** Show an answer. @param {any} answer */
  show(answer) {
    this.answer = answer;
    if (answer.at && !this.element.dataset.dragging) this.at = answer.at;
    this.drawWeights();
    this.drawAnswer();
  }

  /** @param {number} coordinate */
  x(coordinate) {
    return placed(this.across, coordinate, this.area.left, this.area.right);
  }

  /** @param {number} coordinate */
  y(coordinate) {
    return placed(this.up, coordinate, this.area.bottom, this.area.top);
  }

  /** Return the coordinates of the query at a place of the chart. @param {number} x @param {number} y @returns {number[]} */
  coordinatesAt(x, y) {
    const { left, right, top, bottom } = this.area;
    const shares = [(x - left) / (right - left), (bottom - y) / (bottom - top)];
    return this.meta.keys.map(({ ends: [low, high] }, /** @type {number} */ i) => low + shares[i] * (high - low));
  }

  /** Return the place of a row by the codes of its coordinates, which are from 0 to 65,535.
   *  @param {{keys: ArrayLike<number>[], values: ArrayLike<number>}} rows @param {number} i @returns {[number, number]} */
  place({ keys, values }, i) {
    const at = (/** @type {any} */ { low, span }, /** @type {number} */ code) => low + (code / 65535) * span;
    return [this.x(at(this.across, keys[0][i])), this.y(at(this.up, (keys[1] ?? values)[i]))];
  }

  /** Draw the rows with weight, the largest last, so that they are on top.
   *  @param {[number, number]} radius without weight, and how much more with the largest @param {[number, number]} opacity likewise
   *  @param {(context: CanvasRenderingContext2D, share: number, x: number) => void} draw the outline of a row */
  discs([least, more], [faint, strong], draw) {
    const context = screenPen(this.weights, this.width, this.height);
    const drawn = this.answer?.drawn;
    const [mark, negative] = ["mark", "negative"].map((name) => this.themeColour(name));
    for (let i = (drawn?.weights.length ?? 0) - 1; i >= 0; i--) {
      const share = Math.abs(drawn.weights[i]);
      const [x, y] = this.place(drawn, i);
      context.fillStyle = context.strokeStyle = drawn.weights[i] < 0 ? negative : mark;
      context.globalAlpha = faint + strong * share;
      context.beginPath();
      context.arc(x, y, least + more * Math.sqrt(share), 0, 7);
      draw(context, share, x);
    }
  }

  /** Add the ticks and the name of a horizontal axis. @param {Add} add @param {any} axis @param {[number, number]} ends its coordinates
   *  @param {(at: number) => number} x @param {number} y @param {number} most ticks */
  acrossTicks(add, axis, ends, x, y, most) {
    for (const { at, text } of tickMarks(axis.kind, ...ends, most)) {
      add("line", { class: "tick", x1: x(at), x2: x(at), y1: y, y2: y + 5 });
      add("text", { class: "label", x: x(at), y: y + 18, "text-anchor": "middle" }, text);
    }
  }

  /** Add the prediction interval and the standard error of the answer. @param {Add} add
   *  @param {(coordinate: number) => [number, number]} place of a value @param {[number, number]} cap half of the ends of the error */
  errors(add, place, [dx, dy]) {
    const { interval, deviation } = this.answer;
    if (interval?.every((/** @type {number | null} */ each) => each !== null)) {
      const { top, bottom } = this.area;
      const [[x1, y1], [x2, y2]] = interval.map(place).map(([x, y]) => [Math.min(this.width, Math.max(0, x)), Math.min(bottom, Math.max(top, y))]);
      add("line", { class: "interval", x1, x2, y1, y2 });
    }
    if (deviation) {
      const ends = deviation.map(place);
      const caps = ends.map((/** @type {number[]} */ [x, y]) => `M${x - dx} ${y - dy}l${2 * dx} ${2 * dy}`);
      add("path", { class: "error", d: `M${ends.map((/** @type {number[]} */ end) => end.join(" ")).join("L")}${caps.join("")}` });
    }
  }

  /** Draw the rows as points, as dots if there are many. @param {CanvasRenderingContext2D} context @param {(i: number) => string} colour
   *  @param {string} [outline] colour of the outline, which few points have */
  dots(context, colour, outline) {
    const { points } = this;
    if (!points) return;
    const count = points.shown;
    const size = count > 20000 ? 1 : count > 3000 ? 1.6 : count > 500 ? 2.4 : 3.2;
    context.globalAlpha = outline ? (count > 20000 ? 0.5 : 0.95) : count > 20000 ? 0.25 : count > 3000 ? 0.35 : 0.55;
    context.strokeStyle = outline || "none";
    context.lineWidth = 0.7;
    for (let i = 0; i < count; i++) {
      const [x, y] = this.place(points, i);
      context.fillStyle = colour(i);
      if (count > 3000) context.fillRect(x - size / 2, y - size / 2, size, size);
      else {
        context.beginPath();
        context.arc(x, y, size, 0, 7);
        context.fill();
        if (outline) context.stroke();
      }
    }
    context.globalAlpha = 1;
  }

  draw() {
    this.drawing.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.drawRows();
    this.drawWeights();
    this.drawAnswer();
    this.element.dataset.drawn = String(Number(this.element.dataset.drawn || 0) + 1);
  }

  drawAnswer() {
    const shapes = /** @type {SVGElement[]} */ ([]);
    this.fill((tag, given, text) => shapes.push(createShape(tag, given, text)));
    this.drawing.replaceChildren(...shapes);
    this.placeHandle();
  }

  placeHandle() {}
  drawRows() {
    const colour = this.themeColour("quiet");
    this.dots(screenPen(this.rows, this.width, this.height), () => colour);
  }
}

/** Return the place between two pixels of a coordinate of an axis. @param {any} axis @param {number} coordinate @param {number} start @param {number} stop */
function placed({ ends: [low, high] }, coordinate, start, stop) {
  return start + ((coordinate - low) / (high - low)) * (stop - start);
}
