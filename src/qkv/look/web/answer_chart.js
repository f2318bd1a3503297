// What the charts of answers share: two canvases below a drawing, and a handle that moves the query.

import { createElement } from "./dom.js";
import { createShape, tickMarks } from "./answer_ticks.js";
import { screenPen } from "./drawing.js";

/** Colours of the rows, by theme. */
export const CHART_COLOURS = {
  light: {
    rows: "#5b6470", weight: [194, 65, 12], negative: [124, 58, 237], curve: "#1d4ed8", outline: "#6b7280",
    scale: [[253, 231, 160], [225, 180, 90], [178, 138, 110], [116, 104, 130], [52, 66, 120], [8, 28, 80]],
  },
  dark: {
    rows: "#a3adba", weight: [251, 146, 60], negative: [196, 150, 255], curve: "#7db2ff", outline: "#0b0d10",
    scale: [[30, 52, 110], [70, 90, 140], [116, 120, 140], [170, 150, 120], [226, 190, 100], [255, 236, 170]],
  },
};
/** Colours of labels, which colour-blind readers can tell apart (Okabe and Ito). */
export const LABEL_COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#8a8f98"];

/** A chart with a query that can be moved by pointer and by keyboard. */
export class AnswerChart {
  /** @param {any} meta @param {(at: number[]) => void} move called with the coordinates of the query */
  constructor(meta, move) {
    this.meta = meta;
    this.move = move;
    this.dark = false;
    /** @type {any} */
    this.answer = null;
    /** @type {{keys: Uint16Array[], values: Uint16Array, count: number, shown: number} | null} */
    this.points = null;
    this.at = /** @type {number[] | null} */ (null);
    this.rows = /** @type {HTMLCanvasElement} */ (createElement("canvas", { class: "plate", "aria-hidden": "true" }));
    this.weights = /** @type {HTMLCanvasElement} */ (createElement("canvas", { class: "plate", "aria-hidden": "true" }));
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
  get colours() { return CHART_COLOURS[this.dark ? "dark" : "light"]; }

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
    const at = [...this.at];
    if (event.key === "Home") at[0] = this.meta.keys[0].low;
    else if (event.key === "End") at[0] = this.meta.keys[0].low + this.meta.keys[0].span;
    else if (!across && !up) return;
    event.preventDefault();
    if (at.length === 1) at[0] += (across + up) * steps * this.stepOf(0);
    else {
      at[0] += across * steps * this.stepOf(0);
      at[1] += up * steps * this.stepOf(1);
    }
    this.set(at);
  }

  /** The least step by keyboard: that of queries, or a thousandth of the axis. @param {number} axis */
  stepOf(axis) {
    const { step, span } = this.meta.keys[axis];
    return Math.max(step / 5, span / 1000);
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
    this.placeHandle();
  }

  /** Return the pen of an empty canvas. @param {HTMLCanvasElement} canvas */
  clear(canvas) {
    return screenPen(canvas, this.width, this.height);
  }

  /** Draw the rows with weight, the largest last, so that they are on top. @param {(drawn: any, i: number) => [number, number]} place
   *  @param {[number, number]} radius without weight, and how much more with the largest @param {[number, number]} opacity likewise
   *  @param {(context: CanvasRenderingContext2D, share: number, x: number) => void} draw the outline of a row */
  discs(place, [least, more], [faint, strong], draw) {
    const context = this.clear(this.weights);
    const drawn = this.answer?.drawn;
    for (let i = (drawn?.weights.length ?? 0) - 1; i >= 0; i--) {
      const share = Math.abs(drawn.weights[i]);
      const [x, y] = place(drawn, i);
      const rgb = (drawn.weights[i] < 0 ? this.colours.negative : this.colours.weight).join(" ");
      context.fillStyle = context.strokeStyle = `rgb(${rgb} / ${faint + strong * share})`;
      context.beginPath();
      context.arc(x, y, least + more * Math.sqrt(share), 0, 7);
      draw(context, share, x);
    }
  }

  /** Add the ticks and the name of a horizontal axis. @param {(tag: string, attributes: Record<string, any>, text?: string) => void} add
   *  @param {any} axis @param {[number, number]} ends its coordinates @param {(at: number) => number} x @param {number} y @param {number} most ticks */
  acrossTicks(add, axis, ends, x, y, most) {
    for (const { at, text } of tickMarks(axis.kind, ...ends, most)) {
      add("line", { class: "tick", x1: x(at), x2: x(at), y1: y, y2: y + 5 });
      add("text", { class: "label", x: x(at), y: y + 18, "text-anchor": "middle" }, text);
    }
  }

  /** Draw rows as points, as dots if there are many. @param {CanvasRenderingContext2D} context
   *  @param {(i: number) => [number, number]} place @param {number} count @param {(i: number) => string} colour
   *  @param {string} [outline] colour of the outline, which few points have */
  dots(context, place, count, colour, outline) {
    const size = count > 20000 ? 1 : count > 3000 ? 1.6 : count > 500 ? 2.4 : 3.2;
    context.globalAlpha = outline ? (count > 20000 ? 0.5 : 0.95) : count > 20000 ? 0.25 : count > 3000 ? 0.35 : 0.55;
    context.strokeStyle = outline || "none";
    context.lineWidth = 0.7;
    for (let i = 0; i < count; i++) {
      const [x, y] = place(i);
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
    this.placeHandle();
    this.element.dataset.drawn = String(Number(this.element.dataset.drawn || 0) + 1);
  }

  /** @param {number} x @param {number} y @returns {number[]} */
  coordinatesAt(x, y) { throw new Error(`no place at ${x}, ${y}`); }
  placeHandle() {}
  drawRows() {}
  drawWeights() {}
  drawAnswer() {}
}
