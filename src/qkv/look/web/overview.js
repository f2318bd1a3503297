// Every layer and head at once: a grid of small maps; a click, or the arrow keys, goes to a head.

import { make } from "./dom.js";

/** @typedef {{name: string, heads: string[]}} Layer */

export class Overview {
  /** @param {(layer: number, head: number) => void} pick */
  constructor(pick) {
    this.pick = pick;
    this.element = make("div", { class: "overview", role: "grid", "aria-label": "layers and heads" });
    this.element.addEventListener("keydown", (event) => this.#typed(event));
    /** @type {HTMLElement[][]} */
    this.cells = [];
    this.chosen = [0, 0];
  }

  /** @param {Layer[]} layers @param {(layer: number, head: number) => string} said the label of a head */
  build(layers, said) {
    this.element.replaceChildren();
    this.cells = layers.map((layer, l) => {
      const cells = layer.heads.map((head, h) =>
        make("button", {
          class: "cell",
          role: "gridcell",
          tabindex: -1,
          title: `${layer.name}, ${head}`,
          "aria-label": said(l, h),
          onclick: () => this.pick(l, h),
        }));
      const name = make("span", { class: "layer", role: "rowheader", text: layer.name, title: layer.name });
      this.element.append(make("div", { class: "heads", role: "row" }, [name, ...cells]));
      return cells;
    });
  }

  /** @param {Uint8Array} bytes codes of all heads, one small square after the other
   *  @param {number} side @param {Uint8ClampedArray} table */
  paint(bytes, side, table) {
    // One picture of all heads; each cell shows its part of it.
    const all = this.cells.flat();
    const canvas = document.createElement("canvas");
    canvas.width = side;
    canvas.height = side * Math.max(1, all.length);
    const image = new ImageData(side, canvas.height);
    for (let i = 0; i < image.data.length / 4; i++) {
      image.data.set(table.subarray(4 * bytes[i], 4 * bytes[i] + 4), 4 * i);
    }
    /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d")).putImageData(image, 0, 0);
    canvas.toBlob((blob) => {
      if (!blob) return;
      if (this.url) URL.revokeObjectURL(this.url);
      this.url = URL.createObjectURL(blob);
      all.forEach((cell, i) => {
        cell.style.backgroundImage = `url(${this.url})`;
        cell.style.backgroundSize = `100% ${100 * all.length}%`;
        cell.style.backgroundPosition = `0 ${all.length > 1 ? (100 * i) / (all.length - 1) : 0}%`;
      });
      this.element.dataset.painted = String(all.length);
    });
  }

  /** @param {number} layer @param {number} head */
  choose(layer, head) {
    const before = this.cells[this.chosen[0]]?.[this.chosen[1]];
    const focused = before === document.activeElement;
    before?.setAttribute("tabindex", "-1");
    before?.removeAttribute("aria-selected");
    this.chosen = [layer, head];
    const cell = this.cells[layer]?.[head];
    cell?.setAttribute("tabindex", "0");
    cell?.setAttribute("aria-selected", "true");
    if (focused) cell?.focus();
  }

  /** @param {KeyboardEvent} event */
  #typed(event) {
    const [layer, head] = this.chosen;
    const last = this.cells.length - 1;
    /** @type {Record<string, [number, number]>} */
    const moves = {
      ArrowUp: [Math.max(0, layer - 1), head],
      ArrowDown: [Math.min(last, layer + 1), head],
      ArrowLeft: [layer, Math.max(0, head - 1)],
      ArrowRight: [layer, head + 1],
      Home: [layer, 0],
      End: [layer, this.cells[layer].length - 1],
    };
    const next = moves[event.key];
    if (!next) return;
    event.preventDefault();
    this.pick(next[0], Math.min(next[1], this.cells[next[0]].length - 1));
  }
}
