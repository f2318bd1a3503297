// Map of the rows over two keys: their values as colours, the answers as a field, and rings for the weights.

import { AnswerChart, LABEL_COLOURS } from "./answer_chart.js";
import { createShape, tickMarks } from "./answer_ticks.js";

const [MAP_LEFT, MAP_RIGHT, MAP_TOP, MAP_BOTTOM] = [66, 14, 12, 84];

/** A chart with one key across and one up. */
export class MapChart extends AnswerChart {
  /** @param {any} meta @param {(at: number[]) => void} move */
  constructor(meta, move) {
    super(meta, move);
    this.labels = meta.value.labels || null;
    /** Answers at the middle of the cells of a grid: values or labels, undefined where not yet known. */
    this.field = { size: 0, values: /** @type {any[]} */ ([]), labels: /** @type {any[]} */ ([]) };
  }

  get right() { return this.width - MAP_RIGHT; }
  get floor() { return this.height - MAP_BOTTOM; }

  /** @param {number} coordinate */
  x(coordinate) {
    const [low, high] = this.meta.keys[0].ends;
    return MAP_LEFT + ((coordinate - low) / (high - low)) * (this.right - MAP_LEFT);
  }

  /** @param {number} coordinate */
  y(coordinate) {
    const [low, high] = this.meta.keys[1].ends;
    return this.floor - ((coordinate - low) / (high - low)) * (this.floor - MAP_TOP);
  }

  /** @param {number} x @param {number} y @returns {number[]} */
  coordinatesAt(x, y) {
    const [across, up] = this.meta.keys;
    return [
      across.ends[0] + ((x - MAP_LEFT) / (this.right - MAP_LEFT)) * (across.ends[1] - across.ends[0]),
      up.ends[0] + ((this.floor - y) / (this.floor - MAP_TOP)) * (up.ends[1] - up.ends[0]),
    ];
  }

  placeHandle() {
    if (!this.at) return;
    this.handle.style.left = `${this.x(this.at[0])}px`;
    this.handle.style.top = `${this.y(this.at[1])}px`;
    const place = this.answer ? this.answer.shown : this.at.join(", ");
    this.handle.setAttribute("aria-label", `query at ${place}; the arrow keys move it`);
  }

  /** @param {number} share from 0 to 1 @returns {string} */
  colour(share) {
    const stops = this.colours.scale;
    const at = Math.min(1, Math.max(0, share)) * (stops.length - 1);
    const low = Math.min(stops.length - 2, Math.floor(at));
    return `rgb(${stops[low].map((each, i) => Math.round(each + (at - low) * (stops[low + 1][i] - each))).join(" ")})`;
  }

  /** @param {Uint16Array | number[]} keys0 @param {Uint16Array | number[]} keys1 @param {number} i @returns {[number, number]} */
  place(keys0, keys1, i) {
    const [across, up] = this.meta.keys;
    return [this.x(across.low + (keys0[i] / 65535) * across.span), this.y(up.low + (keys1[i] / 65535) * up.span)];
  }

  drawRows() {
    const context = this.clear(this.rows);
    const { size, values, labels } = this.field;
    const [low, span] = [this.meta.value.low, this.meta.value.span];
    if (size) {
      // One pixel per cell, enlarged without smoothing, so that cells have no seams.
      const cells = /** @type {HTMLCanvasElement} */ (document.createElement("canvas"));
      cells.width = cells.height = size;
      const field = /** @type {CanvasRenderingContext2D} */ (cells.getContext("2d"));
      for (let i = 0; i < size * size; i++) {
        const known = this.labels ? labels[i] : values[i];
        if (known === undefined || known === null) continue;
        field.fillStyle = this.labels ? LABEL_COLOURS[known % 8] : this.colour((known - low) / span);
        field.fillRect(i % size, size - 1 - Math.floor(i / size), 1, 1);
      }
      context.imageSmoothingEnabled = false;
      context.globalAlpha = 0.5;
      context.drawImage(cells, MAP_LEFT, MAP_TOP, this.right - MAP_LEFT, this.floor - MAP_TOP);
      context.globalAlpha = 1;
    }
    const { points } = this;
    if (!points) return;
    this.dots(context, (i) => this.place(points.keys[0], points.keys[1], i), points.shown,
      (i) => (this.labels ? LABEL_COLOURS[points.values[i] % 8] : this.colour(points.values[i] / 65535)), this.colours.outline);
  }

  drawWeights() {
    this.discs((drawn, i) => this.place(drawn.keys[0], drawn.keys[1], i), [2.5, 6], [0.15, 0.85], (context, share) => {
      context.lineWidth = 1 + 1.5 * share;
      context.stroke();
    });
  }

  drawAnswer() {
    const [across, up] = this.meta.keys;
    const shapes = [];
    const add = (/** @type {string} */ tag, /** @type {Record<string, any>} */ given, /** @type {string} */ text) => shapes.push(createShape(tag, given, text));
    this.acrossTicks(add, across, across.ends, (at) => this.x(at), this.floor, Math.max(4, (this.right - MAP_LEFT) / 95));
    for (const { at, text } of tickMarks(up.kind, ...up.ends, 6)) {
      add("line", { class: "tick", x1: MAP_LEFT - 5, x2: MAP_LEFT, y1: this.y(at), y2: this.y(at) });
      add("text", { class: "label", x: MAP_LEFT - 8, y: this.y(at) + 4, "text-anchor": "end" }, text);
    }
    add("rect", { class: "frame", x: MAP_LEFT, y: MAP_TOP, width: this.right - MAP_LEFT, height: this.floor - MAP_TOP });
    add("text", { class: "name", x: (MAP_LEFT + this.right) / 2, y: this.floor + 36, "text-anchor": "middle" }, `${across.label} → (up: ${up.label})`);
    this.#legend(add);
    this.drawing.replaceChildren(...shapes);
  }

  /** @param {(tag: string, attributes: Record<string, any>, text?: string) => void} add */
  #legend(add) {
    const top = this.height - 34;
    if (this.labels) {
      let left = MAP_LEFT;
      this.labels.forEach((/** @type {string} */ label, /** @type {number} */ i) => {
        const text = label.length > 14 ? `${label.slice(0, 13)}…` : label;
        if (left + 26 + 6.6 * text.length > this.right) return;
        add("rect", { x: left, y: top, width: 11, height: 11, fill: LABEL_COLOURS[i % 8] });
        add("text", { class: "label", x: left + 15, y: top + 10 }, text);
        left += 30 + 6.6 * text.length;
      });
      return;
    }
    const { value } = this.meta;
    const width = Math.min(360, this.right - MAP_LEFT - 120);
    for (let i = 0; i < 60; i++) add("rect", { x: MAP_LEFT + (i / 60) * width, y: top, width: width / 60 + 0.5, height: 9, fill: this.colour(i / 59) });
    this.acrossTicks(add, value, [value.low, value.low + value.span], (at) => MAP_LEFT + ((at - value.low) / value.span) * width, top + 9, Math.max(4, width / 70));
    add("text", { class: "name", x: MAP_LEFT + width + 12, y: top + 9 }, value.label);
  }
}
