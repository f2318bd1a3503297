// Chart of the rows along one key: their values, the answers to all queries, and the weights for the query.

import { AnswerChart, LABEL_COLOURS } from "./answer_chart.js";
import { createShape, tickMarks } from "./answer_ticks.js";

const [LEFT, RIGHT, TOP, BOTTOM, STRIP, GAP] = [66, 14, 12, 42, 58, 12];

/** A chart with the key across and the values, or labels of values, up; below it the weights of the rows. */
export class AxisChart extends AnswerChart {
  /** @param {any} meta @param {(at: number[]) => void} move */
  constructor(meta, move) {
    super(meta, move);
    this.key = meta.keys[0];
    this.labels = meta.value.labels || null;
    this.curve = { at: /** @type {number[]} */ ([]), values: [], low: [], high: [] };
    this.handle.setAttribute("role", "slider");
    this.handle.setAttribute("aria-label", `query: ${this.key.name}`);
    this.handle.setAttribute("aria-valuemin", String(this.key.ends[0]));
    this.handle.setAttribute("aria-valuemax", String(this.key.ends[1]));
    this.handle.setAttribute("aria-valuenow", String(this.key.low));
  }

  /** The right end of the axis; the shares of labels are beside it. */
  get right() { return this.width - RIGHT - (this.labels ? 118 : 0); }

  get left() {
    const longest = Math.max(...(this.labels || []).map((/** @type {string} */ label) => Math.min(16, label.length)), 0);
    return Math.max(LEFT, 14 + 6.6 * longest);
  }
  get bottom() { return this.height - BOTTOM - STRIP - GAP; }
  get base() { return this.height - BOTTOM; }

  /** @param {number} coordinate */
  x(coordinate) {
    const [low, high] = this.key.ends;
    return this.left + ((coordinate - low) / (high - low)) * (this.right - this.left);
  }

  /** @param {number} coordinate of a value, or index of a label */
  y(coordinate) {
    if (this.labels) return TOP + ((coordinate + 0.5) / this.labels.length) * (this.bottom - TOP);
    const [low, high] = this.meta.value.ends;
    return this.bottom - ((coordinate - low) / (high - low)) * (this.bottom - TOP);
  }

  /** @param {number} x @returns {number[]} */
  coordinatesAt(x) {
    const [low, high] = this.key.ends;
    return [low + ((x - this.left) / (this.right - this.left)) * (high - low)];
  }

  placeHandle() {
    if (!this.at) return;
    const x = Math.min(this.width - 4, Math.max(this.left - 10, this.x(this.at[0])));
    this.handle.style.left = `${x}px`;
    this.handle.style.top = `${this.base}px`;
    this.handle.setAttribute("aria-valuenow", String(this.at[0]));
    if (this.answer) this.handle.setAttribute("aria-valuetext", `${this.answer.shown}: ${this.answer.found ? this.answer.estimate : this.answer.reason}`);
    const line = this.drawing.querySelector(".query");
    for (const name of ["x1", "x2"]) line?.setAttribute(name, String(x));
  }

  /** A place for a row among those with the same label: rows of a label fill its lane. @param {number} i @param {number} code */
  lane(i, code) {
    const spread = 0.7 * (this.bottom - TOP) / this.labels.length;
    return this.y(code) + (((i * 0.618034) % 1) - 0.5) * spread;
  }

  /** @param {Uint16Array | number[]} keys @param {Uint16Array | number[]} values @param {number} i @returns {[number, number]} */
  place(keys, values, i) {
    const x = this.x(this.key.low + (keys[i] / 65535) * this.key.span);
    if (this.labels) return [x, this.lane(keys[i] + 31 * values[i], values[i])];
    return [x, this.y(this.meta.value.low + (values[i] / 65535) * this.meta.value.span)];
  }

  drawRows() {
    const context = this.clear(this.rows);
    const { points } = this;
    if (!points) return;
    const colour = this.colours.rows;
    this.dots(context, (i) => this.place(points.keys[0], points.values, i), points.shown, () => colour);
  }

  drawWeights() {
    this.discs((drawn, i) => this.place(drawn.keys[0], drawn.values, i), [1.5, 4], [0.12, 0.8], (context, share, x) => {
      context.fill();
      context.fillRect(x - 0.75, this.base - share * STRIP, 1.5, share * STRIP);
    });
  }

  drawAnswer() {
    const { answer } = this;
    const shapes = [];
    const add = (/** @type {string} */ tag, /** @type {Record<string, any>} */ given, /** @type {string} */ text) => shapes.push(createShape(tag, given, text));
    const { right } = this;
    this.acrossTicks(add, this.key, this.key.ends, (at) => this.x(at), this.base, Math.max(3, (right - this.left) / 95));
    add("text", { class: "name", x: (this.left + right) / 2, y: this.height - 6, "text-anchor": "middle" }, this.key.label);
    if (this.labels) {
      this.labels.forEach((/** @type {string} */ label, /** @type {number} */ i) => {
        add("text", { class: "label", x: this.left - 8, y: this.y(i) + 4, "text-anchor": "end" }, label.length > 16 ? `${label.slice(0, 15)}…` : label);
      });
    } else {
      for (const { at, text } of tickMarks(this.meta.value.kind, ...this.meta.value.ends, 6)) {
        add("line", { class: "grid", x1: this.left, x2: right, y1: this.y(at), y2: this.y(at) });
        add("text", { class: "label", x: this.left - 8, y: this.y(at) + 4, "text-anchor": "end" }, text);
      }
      add("text", { class: "name", x: this.left + 8, y: TOP + 6 }, this.meta.value.label);
    }
    add("line", { class: "axis", x1: this.left, x2: right, y1: this.base, y2: this.base });
    add("line", { class: "axis", x1: this.left, x2: right, y1: this.bottom, y2: this.bottom });
    add("text", { class: "label", x: this.left - 8, y: this.base - STRIP / 2 + 4, "text-anchor": "end" }, "weight");
    this.#curve(add);
    const x = answer?.at ? this.x(answer.at[0]) : -100;
    add("line", { class: "query", x1: x, x2: x, y1: TOP, y2: this.base });
    if (answer?.found && answer.value !== null && answer.at) {
      const y = this.y(answer.value);
      if (answer.interval && answer.interval.every((/** @type {number | null} */ each) => each !== null)) {
        add("line", { class: "interval", x1: x, x2: x, y1: this.y(answer.interval[0]), y2: this.y(answer.interval[1]) });
      }
      if (answer.deviation) {
        const [low, high] = answer.deviation.map((/** @type {number} */ each) => this.y(each));
        add("path", { class: "error", d: `M${x} ${low}V${high}M${x - 5} ${low}h10M${x - 5} ${high}h10` });
      }
      add("line", { class: "guide", x1: this.left, x2: x, y1: y, y2: y });
      add("circle", { class: "answer", cx: x, cy: y, r: 6 });
    } else if (answer?.found && this.labels) {
      for (const { label, share, text } of answer.shares) {
        const lane = this.labels.indexOf(label);
        if (lane < 0) continue;
        const length = share * 76;
        add("rect", { class: "vote", x: right + 10, y: this.y(lane) - 6, width: length, height: 12, rx: 2, fill: LABEL_COLOURS[lane % 8] });
        add("text", { class: "label strong", x: right + length + 15, y: this.y(lane) + 4 }, text);
      }
    }
    this.drawing.replaceChildren(...shapes);
    this.placeHandle();
  }

  /** Draw the answers along the axis, interrupted where no key matches, and their intervals.
   *  @param {(tag: string, attributes: Record<string, any>) => void} add */
  #curve(add) {
    const { at, values, low, high } = this.curve;
    const order = at.map((_, i) => i).sort((a, b) => at[a] - at[b]);
    const clip = (/** @type {number} */ y) => Math.min(this.bottom, Math.max(TOP, this.y(y)));
    let line = "";
    let pen = false;
    /** @type {number[]} */
    let run = [];
    const close = () => {
      if (run.length > 1) {
        const there = run.map((i) => `${this.x(at[i])} ${clip(high[i])}`);
        const back = run.map((i) => `${this.x(at[i])} ${clip(low[i])}`).reverse();
        add("path", { class: "band", d: `M${[...there, ...back].join("L")}Z` });
      }
      run = [];
    };
    for (const i of order) {
      if (values[i] === null || values[i] === undefined) pen = false;
      else {
        line += `${pen ? "L" : "M"}${this.x(at[i])} ${clip(values[i])}`;
        if (!pen) line += "h0.1";
        pen = true;
      }
      if (low[i] === null || high[i] === null || low[i] === undefined) close();
      else run.push(i);
    }
    close();
    if (line) add("path", { class: "curve", d: line });
  }
}
