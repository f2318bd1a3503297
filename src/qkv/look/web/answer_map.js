// Map of the rows over two keys: their values as colours, the answers as a field, and rings for the weights.

import { AnswerChart, LABEL_COLOURS, shortened } from "./answer_chart.js";
import { tickMarks } from "./answer_ticks.js";
import { screenPen } from "./drawing.js";

/** Colours of the values, from the least to the largest, on light and dark backgrounds. */
const VALUE_COLOURS = {
  light: [[253, 231, 160], [225, 180, 90], [178, 138, 110], [116, 104, 130], [52, 66, 120], [8, 28, 80]],
  dark: [[30, 52, 110], [70, 90, 140], [116, 120, 140], [170, 150, 120], [226, 190, 100], [255, 236, 170]],
};
const [MAP_LEFT, MAP_RIGHT, MAP_TOP, MAP_BOTTOM] = [66, 14, 12, 84];

/** A chart with one key across and one up. */
export class MapChart extends AnswerChart {
  /** @param {any} meta @param {(at: number[]) => void} move */
  constructor(meta, move) {
    super(meta, ...meta.keys, move);
    /** Answers at the middle of the cells of a grid: values or labels, undefined where not yet known. */
    this.field = { size: 0, values: /** @type {any[]} */ ([]), labels: /** @type {any[]} */ ([]) };
  }

  get area() { return { left: MAP_LEFT, right: this.width - MAP_RIGHT, top: MAP_TOP, bottom: this.height - MAP_BOTTOM }; }

  placeHandle() {
    if (!this.at) return;
    Object.assign(this.handle.style, { left: `${this.x(this.at[0])}px`, top: `${this.y(this.at[1])}px` });
    const place = this.answer ? this.answer.shown : this.at.join(", ");
    this.handle.setAttribute("aria-label", `query at ${place}; the arrow keys move it`);
  }

  /** @param {number} share from 0 to 1 @returns {string} */
  colour(share) {
    const stops = VALUE_COLOURS[this.dark ? "dark" : "light"];
    const at = Math.min(1, Math.max(0, share)) * (stops.length - 1);
    const low = Math.min(stops.length - 2, Math.floor(at));
    return `rgb(${stops[low].map((each, i) => Math.round(each + (at - low) * (stops[low + 1][i] - each))).join(" ")})`;
  }

  drawRows() {
    const context = screenPen(this.rows, this.width, this.height);
    const { size, values, labels } = this.field;
    const [low, span] = [this.meta.value.low, this.meta.value.span];
    const { left, right, top, bottom } = this.area;
    if (size) {
      // One pixel per cell, enlarged without smoothing, so that cells have no seams.
      const cells = new OffscreenCanvas(size, size);
      const field = /** @type {OffscreenCanvasRenderingContext2D} */ (cells.getContext("2d"));
      for (let i = 0; i < size * size; i++) {
        const known = this.labels ? labels[i] : values[i];
        if (known === undefined || known === null) continue;
        field.fillStyle = this.labels ? LABEL_COLOURS[known % 8] : this.colour((known - low) / span);
        field.fillRect(i % size, size - 1 - Math.floor(i / size), 1, 1);
      }
      context.imageSmoothingEnabled = false;
      context.globalAlpha = 0.5;
      context.drawImage(cells, left, top, right - left, bottom - top);
      context.globalAlpha = 1;
    }
    const codes = this.points?.values ?? [];
    this.dots(context, (i) => (this.labels ? LABEL_COLOURS[codes[i] % 8] : this.colour(codes[i] / 65535)), this.themeColour("outline"));
  }

  drawWeights() {
    this.discs([2.5, 6], [0.15, 0.85], (context, share) => {
      context.lineWidth = 1 + 1.5 * share;
      context.stroke();
    });
  }

  /** @param {import("./answer_chart.js").Add} add */
  fill(add) {
    const { across, up, area: { left, right, top, bottom } } = this;
    this.acrossTicks(add, across, across.ends, (at) => this.x(at), bottom, Math.max(4, (right - left) / 95));
    for (const { at, text } of tickMarks(up.kind, ...up.ends, 6)) {
      add("line", { class: "tick", x1: left - 5, x2: left, y1: this.y(at), y2: this.y(at) });
      add("text", { class: "label", x: left - 8, y: this.y(at) + 4, "text-anchor": "end" }, text);
    }
    add("rect", { class: "frame", x: left, y: top, width: right - left, height: bottom - top });
    add("text", { class: "name", x: (left + right) / 2, y: bottom + 36, "text-anchor": "middle" }, `${across.label} → (up: ${up.label})`);
    this.#legend(add, left, right, this.height - 34);
  }

  /** @param {import("./answer_chart.js").Add} add @param {number} left @param {number} right @param {number} top */
  #legend(add, left, right, top) {
    for (const [i, label] of (this.labels ?? []).entries()) {
      const text = shortened(label, 14);
      if (left + 26 + 6.6 * text.length > right) continue;
      add("rect", { x: left, y: top, width: 11, height: 11, fill: LABEL_COLOURS[i % 8] });
      add("text", { class: "label", x: left + 15, y: top + 10 }, text);
      left += 30 + 6.6 * text.length;
    }
    if (this.labels) return;
    const { value } = this.meta;
    const width = Math.min(360, right - left - 120);
    for (let i = 0; i < 60; i++) add("rect", { x: left + (i / 60) * width, y: top, width: width / 60 + 0.5, height: 9, fill: this.colour(i / 59) });
    this.acrossTicks(add, value, [value.low, value.low + value.span], (at) => left + ((at - value.low) / value.span) * width, top + 9, Math.max(4, width / 70));
    add("text", { class: "name", x: left + width + 12, y: top + 9 }, value.label);
  }
}
