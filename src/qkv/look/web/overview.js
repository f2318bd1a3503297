// A grid of thumbnails of all layers and heads; a click or the arrow keys select a head.

import { createElement } from "./dom.js";

/** @typedef {{name: string, heads: string[]}} Layer */

export class Overview {
  /** @param {(layer: number, head: number) => void} onSelect */
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.element = createElement("div", { class: "overview", role: "grid", "aria-label": "layers and heads" });
    this.element.addEventListener("keydown", (event) => this.#onKeyDown(event));
    /** @type {HTMLElement[][]} */
    this.cells = [];
    this.selected = [0, 0];
  }

  /** @param {Layer[]} layers @param {(layer: number, head: number) => string} label of a head */
  build(layers, label) {
    this.element.replaceChildren();
    this.cells = layers.map((layer, l) => {
      const cells = layer.heads.map((head, h) =>
        createElement("button", {
          class: "cell",
          role: "gridcell",
          tabindex: -1,
          title: `${layer.name}, ${head}`,
          "aria-label": label(l, h),
          onclick: () => this.onSelect(l, h),
        }));
      const name = createElement("span", { class: "layer", role: "rowheader", text: layer.name, title: layer.name });
      this.element.append(createElement("div", { class: "heads", role: "row" }, [name, ...cells]));
      return cells;
    });
  }

  /** @param {Uint8Array} bytes codes of all heads, one thumbnail after the other
   *  @param {number} side @param {Uint8ClampedArray} table */
  paint(bytes, side, table) {
    // A single image of all heads; each cell shows its part of it.
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
  select(layer, head) {
    const before = this.cells[this.selected[0]]?.[this.selected[1]];
    const focused = before === document.activeElement;
    before?.setAttribute("tabindex", "-1");
    before?.removeAttribute("aria-selected");
    this.selected = [layer, head];
    const cell = this.cells[layer]?.[head];
    cell?.setAttribute("tabindex", "0");
    cell?.setAttribute("aria-selected", "true");
    if (focused) cell?.focus();
  }

  /** @param {KeyboardEvent} event */
  #onKeyDown(event) {
    const [layer, head] = this.selected;
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
    this.onSelect(next[0], Math.min(next[1], this.cells[next[0]].length - 1));
  }
}
