// Chart of the rows along one key: their values, the answers to all queries, and the weights for the query.

import { AnswerChart, LABEL_COLOURS, shortened } from "./answer_chart.js";
import { tickMarks } from "./answer_ticks.js";

const [LEFT, RIGHT, TOP, BOTTOM, STRIP, GAP] = [66, 14, 12, 42, 58, 12];

/** A chart with the key across and the values, or labels of values, up; below it the weights of the rows. */
export class AxisChart extends AnswerChart {
  /** @param {any} meta @param {(at: number[]) => void} move */
  constructor(meta, move) {
    super(meta, meta.keys[0], meta.value, move);
    this.curve = { at: /** @type {number[]} */ ([]), values: [], low: [], high: [] };
    const [least, most] = this.across.ends;
    const attributes = { role: "slider", "aria-label": `query: ${this.across.name}`, "aria-valuemin": least, "aria-valuemax": most, "aria-valuenow": this.across.low };
    for (const [name, value] of Object.entries(attributes)) this.handle.setAttribute(name, String(value));
  }

  /** The area of the values; the shares of labels are beside it. */
  get area() {
    const longest = Math.max(...(this.labels || []).map((label) => Math.min(16, label.length)), 0);
    return { left: Math.max(LEFT, 14 + 6.6 * longest), right: this.width - RIGHT - (this.labels ? 118 : 0), top: TOP, bottom: this.base - STRIP - GAP };
  }

  /** The bottom of the weights. */
  get base() { return this.height - BOTTOM; }

  /** @param {number} coordinate of a value, or index of a label */
  y(coordinate) {
    return this.labels ? TOP + ((coordinate + 0.5) / this.labels.length) * (this.area.bottom - TOP) : super.y(coordinate);
  }

  placeHandle() {
    if (!this.at) return;
    const x = Math.min(this.width - 4, Math.max(this.area.left - 10, this.x(this.at[0])));
    Object.assign(this.handle.style, { left: `${x}px`, top: `${this.base - 12}px` }); // above the ticks
    this.handle.setAttribute("aria-valuenow", String(this.at[0]));
    if (this.answer) this.handle.setAttribute("aria-valuetext", `${this.answer.shown}: ${this.answer.found ? this.answer.estimate : this.answer.reason}`);
    const line = this.drawing.querySelector(".query");
    for (const name of ["x1", "x2"]) line?.setAttribute(name, String(x));
  }

  /** Rows with one label fill its lane. @param {any} rows @param {number} i @returns {[number, number]} */
  place(rows, i) {
    if (!this.labels) return super.place(rows, i);
    const [code, label] = [rows.keys[0][i], rows.values[i]];
    const spread = (0.7 * (this.area.bottom - TOP)) / this.labels.length;
    return [this.x(this.across.low + (code / 65535) * this.across.span), this.y(label) + ((((code + 31 * label) * 0.618034) % 1) - 0.5) * spread];
  }

  drawWeights() {
    this.discs([1.5, 4], [0.12, 0.8], (context, share, x) => {
      context.fill();
      context.fillRect(x - 0.75, this.base - share * STRIP, 1.5, share * STRIP);
    });
  }

  /** @param {import("./answer_chart.js").Add} add */
  fill(add) {
    const { answer, labels, base, area: { left, right, bottom } } = this;
    this.acrossTicks(add, this.across, this.across.ends, (at) => this.x(at), base, Math.max(3, (right - left) / 95));
    add("text", { class: "name", x: (left + right) / 2, y: this.height - 6, "text-anchor": "middle" }, this.across.label);
    const beside = (/** @type {number} */ y, /** @type {string} */ text) => add("text", { class: "label", x: left - 8, y: y + 4, "text-anchor": "end" }, text);
    if (labels) labels.forEach((label, i) => beside(this.y(i), shortened(label, 16)));
    else {
      for (const { at, text } of tickMarks(this.up.kind, ...this.up.ends, 6)) {
        add("line", { class: "grid", x1: left, x2: right, y1: this.y(at), y2: this.y(at) });
        beside(this.y(at), text);
      }
      add("text", { class: "name", x: left + 8, y: TOP + 6 }, this.up.label);
    }
    for (const y of [base, bottom]) add("line", { class: "axis", x1: left, x2: right, y1: y, y2: y });
    beside(base - STRIP / 2, "weight");
    this.#curve(add);
    const x = answer?.at ? this.x(answer.at[0]) : -100;
    add("line", { class: "query", x1: x, x2: x, y1: TOP, y2: base });
    if (answer?.found && answer.value !== null && answer.at) {
      const y = this.y(answer.value);
      this.errors(add, (value) => [x, this.y(value)], [5, 0]);
      add("line", { class: "guide", x1: left, x2: x, y1: y, y2: y });
      add("circle", { class: "answer", cx: x, cy: y, r: 6 });
    } else if (answer?.found && labels) {
      for (const { label, share, text } of answer.shares) {
        const lane = labels.indexOf(label);
        if (lane < 0) continue;
        const length = share * 76;
        add("rect", { class: "vote", x: right + 10, y: this.y(lane) - 6, width: length, height: 12, rx: 2, fill: LABEL_COLOURS[lane % 8] });
        add("text", { class: "label strong", x: right + length + 15, y: this.y(lane) + 4 }, text);
      }
    }
  }

  /** Draw the answers along the axis, interrupted where no key matches, and their intervals. @param {import("./answer_chart.js").Add} add */
  #curve(add) {
    const { at, values, low, high } = this.curve;
    const order = at.map((_, i) => i).sort((a, b) => at[a] - at[b]);
    const point = (/** @type {number[]} */ of) => (/** @type {number} */ i) => `${this.x(at[i])} ${Math.min(this.area.bottom, Math.max(TOP, this.y(of[i])))}`;
    for (const run of runsOf(order, (i) => (low[i] ?? null) !== null && (high[i] ?? null) !== null)) {
      if (run.length > 1) add("path", { class: "band", d: `M${[...run.map(point(high)), ...run.map(point(low)).reverse()].join("L")}Z` });
    }
    const line = runsOf(order, (i) => (values[i] ?? null) !== null).map((run) => `M${run.map(point(values)).join("L").replace(/(?=L|$)/, "h0.1")}`);
    if (line.length) add("path", { class: "curve", d: line.join("") });
  }
}

/** Return the runs of neighbours that are known. @param {number[]} indices @param {(i: number) => boolean} known @returns {number[][]} */
function runsOf(indices, known) {
  const runs = /** @type {number[][]} */ ([[]]);
  for (const i of indices) known(i) ? runs[runs.length - 1].push(i) : runs.push([]);
  return runs.filter((run) => run.length);
}
