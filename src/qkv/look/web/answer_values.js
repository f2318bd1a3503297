// Chart of the values for a typed query: those of all rows, those of the rows with weight, and the answer.

import { AnswerChart, LABEL_COLOURS } from "./answer_chart.js";
import { createShape } from "./answer_ticks.js";

const [SIDE, HIGH, LOW] = [20, 14, 46];

/** A chart with the values across; or, for values with labels, a bar for the share of each label. */
export class ValuesChart extends AnswerChart {
  /** @param {any} meta */
  constructor(meta) {
    super(meta, () => {});
    this.labels = meta.value.labels || null;
    this.handle.hidden = true;
  }

  get bottom() { return this.height - LOW; }

  /** @param {number} coordinate */
  x(coordinate) {
    const [low, high] = this.meta.value.ends;
    return SIDE + ((coordinate - low) / (high - low)) * (this.width - 2 * SIDE);
  }

  /** @param {number} i @param {number} code @returns {[number, number]} */
  place(i, code) {
    const { low, span } = this.meta.value;
    return [this.x(low + (code / 65535) * span), HIGH + ((((code + i) * 0.618034) % 1) * 0.72 + 0.14) * (this.bottom - HIGH)];
  }

  drawRows() {
    const context = this.clear(this.rows);
    const { points } = this;
    if (!points || this.labels) return;
    const colour = this.colours.rows;
    this.dots(context, (i) => this.place(i, points.values[i]), points.shown, () => colour);
  }

  drawWeights() {
    if (!this.labels) this.discs((drawn, i) => this.place(i, drawn.values[i]), [3, 6], [0.2, 0.75], (context) => context.fill());
  }

  drawAnswer() {
    const { answer } = this;
    const shapes = [];
    const add = (/** @type {string} */ tag, /** @type {Record<string, any>} */ given, /** @type {string} */ text) => shapes.push(createShape(tag, given, text));
    if (this.labels) {
      const shares = answer?.found ? answer.shares : [];
      const length = Math.max(...shares.map((/** @type {any} */ each) => Math.min(24, each.label.length)), 4) * 6.8 + 14;
      shares.forEach((/** @type {any} */ each, /** @type {number} */ i) => {
        const y = HIGH + 13 + i * 21;
        const width = each.share * (this.width - length - 90);
        add("text", { class: "label", x: length, y: y + 4, "text-anchor": "end" }, each.label.length > 24 ? `${each.label.slice(0, 23)}…` : each.label);
        add("rect", { x: length + 8, y: y - 7, width: Math.max(1, width), height: 14, rx: 2, fill: LABEL_COLOURS[0] });
        add("text", { class: "label strong", x: length + 14 + width, y: y + 4 }, each.text);
      });
      add("text", { class: "name", x: length + 8, y: this.height - 8 }, `share of the vote for ${this.meta.value.label}`);
    } else {
      this.acrossTicks(add, this.meta.value, this.meta.value.ends, (at) => this.x(at), this.bottom, Math.max(2, this.width / 105));
      add("line", { class: "axis", x1: SIDE, x2: this.width - SIDE, y1: this.bottom, y2: this.bottom });
      add("text", { class: "name", x: this.width / 2, y: this.height - 8, "text-anchor": "middle" }, this.meta.value.label);
      if (answer?.found && answer.value !== null) {
        const [x, y] = [this.x(answer.value), this.bottom - 1];
        if (answer.interval && answer.interval.every((/** @type {number | null} */ each) => each !== null)) {
          const [low, high] = answer.interval.map((/** @type {number} */ each) => Math.min(this.width, Math.max(0, this.x(each))));
          add("line", { class: "interval", x1: low, x2: high, y1: y, y2: y });
        }
        if (answer.deviation) {
          const [low, high] = answer.deviation.map((/** @type {number} */ each) => this.x(each));
          add("path", { class: "error", d: `M${low} ${y}H${high}M${low} ${y - 5}v10M${high} ${y - 5}v10` });
        }
        add("line", { class: "query", x1: x, x2: x, y1: HIGH, y2: this.bottom });
        add("circle", { class: "answer", cx: x, cy: y, r: 6 });
      }
    }
    this.drawing.replaceChildren(...shapes);
  }
}
