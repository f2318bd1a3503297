// Chart of the values for a typed query: those of all rows, those of the rows with weight, and the answer.

import { AnswerChart, LABEL_COLOURS, shortened } from "./answer_chart.js";

const [SIDE, HIGH, LOW] = [20, 14, 46];

/** A chart with the values across; or, for values with labels, a bar for the share of each label. */
export class ValuesChart extends AnswerChart {
  /** @param {any} meta */
  constructor(meta) {
    super(meta, meta.value, { ends: [0, 1] });
    this.handle.hidden = true;
  }

  get area() { return { left: SIDE, right: this.width - SIDE, top: HIGH, bottom: this.height - LOW }; }

  /** Rows of one value are spread upwards. @param {any} rows @param {number} i @returns {[number, number]} */
  place({ values }, i) {
    const { low, span } = this.meta.value;
    return [this.x(low + (values[i] / 65535) * span), this.y(0.86 - (((values[i] + i) * 0.618034) % 1) * 0.72)];
  }

  drawRows() {
    if (!this.labels) super.drawRows();
  }

  drawWeights() {
    if (!this.labels) this.discs([3, 6], [0.2, 0.75], (context) => context.fill());
  }

  /** @param {import("./answer_chart.js").Add} add */
  fill(add) {
    const { answer, area: { left, right, top, bottom } } = this;
    if (this.labels) {
      const shares = answer?.found ? answer.shares : [];
      const length = Math.max(...shares.map((/** @type {any} */ each) => Math.min(24, each.label.length)), 4) * 6.8 + 14;
      shares.forEach((/** @type {any} */ each, /** @type {number} */ i) => {
        const y = HIGH + 13 + i * 21;
        const width = each.share * (this.width - length - 90);
        add("text", { class: "label", x: length, y: y + 4, "text-anchor": "end" }, shortened(each.label, 24));
        add("rect", { x: length + 8, y: y - 7, width: Math.max(1, width), height: 14, rx: 2, fill: LABEL_COLOURS[0] });
        add("text", { class: "label strong", x: length + 14 + width, y: y + 4 }, each.text);
      });
      add("text", { class: "name", x: length + 8, y: this.height - 8 }, `share of the vote for ${this.meta.value.label}`);
      return;
    }
    this.acrossTicks(add, this.across, this.across.ends, (at) => this.x(at), bottom, Math.max(2, this.width / 105));
    add("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom });
    add("text", { class: "name", x: this.width / 2, y: this.height - 8, "text-anchor": "middle" }, this.across.label);
    if (!answer?.found || answer.value === null) return;
    const [x, y] = [this.x(answer.value), bottom - 1];
    this.errors(add, (value) => [this.x(value), y], [0, 5]);
    add("line", { class: "query", x1: x, x2: x, y1: top, y2: bottom });
    add("circle", { class: "answer", cx: x, cy: y, r: 6 });
  }
}
