// A grid of thumbnails of all layers and heads; a click or the arrow keys select a head.

import { paletteFor, pixels } from "./colour.js";
import { createElement, moveSelection } from "./dom.js";
import { imageCanvas } from "./drawing.js";
import { describeRange } from "./legend.js";
import { NOT_SHARES, rangeOf, summarize, uniformWeight } from "./range.js";

/** @typedef {{name: string, heads: string[]}} Layer */

export class Overview {
  /** @param {(layer: number, head: number) => void} onSelect */
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.element = createElement("div", { class: "overview", role: "grid", "aria-label": "layers and heads" });
    this.element.addEventListener("keydown", (event) => this.#onKeyDown(event));
    this.cells = /** @type {HTMLElement[][]} */ ([]);
    this.selected = [0, 0];
    /** the picture, for figures
     *  @type {{layers: Layer[], image: ImageData, range: import("./range.js").Range | null, side: number,
     *    palette: import("./colour.js").Palette} | null} */
    this.painted = null;
    /** address of the picture made last @type {string | null} */
    this.newest = null;
    /** the picture that the cells show @type {HTMLImageElement | null} */
    this.picture = null;
    /** what the colours mean */
    this.rule = "";
    this.layers = /** @type {Layer[]} */ ([]);
  }

  /** @param {Layer[]} layers @param {(layer: number, head: number) => string} label of a head
   *  @param {(layer: number, head: number) => {text: string, common: boolean} | null} markOfHead */
  build(layers, label, markOfHead) {
    const most = Math.max(...layers.map((layer) => layer.heads.length));
    // Many heads get smaller cells, so that a layer fits into a row.
    this.element.style.setProperty("--heads", String(most));
    this.element.classList.toggle("small", most > 16 || layers.length > 24);
    this.element.classList.toggle("plain", !layers.some((layer, l) => layer.heads.some((_, h) => markOfHead(l, h))));
    const numbers = Array.from({ length: most }, (_, h) => createElement("span", { class: "number", role: "columnheader", text: String(h) }));
    const header = createElement("div", { class: "heads", role: "row" }, [createElement("span", { class: "layer", role: "columnheader", text: "head" }), ...numbers]);
    this.element.replaceChildren(header);
    this.layers = layers;
    this.cells = layers.map((layer, l) => {
      const cells = layer.heads.map((head, h) => {
        const [mark, named, name] = [markOfHead(l, h), !/^head \d+$/.test(head), label(l, h)];
        return createElement("button", {
          class: named ? "cell named" : "cell", role: "gridcell", tabindex: -1, title: name, "aria-label": name, onclick: () => this.onSelect(l, h),
        }, [
          mark && createElement("span", { class: mark.common ? "mark quiet" : "mark", text: mark.text, "aria-hidden": "true" }),
          named ? createElement("span", { class: "name", text: head, "aria-hidden": "true" }) : null,
        ]);
      });
      const name = createElement("span", { class: "layer", role: "rowheader", text: layer.name, title: layer.name });
      this.element.append(createElement("div", { class: "heads", role: "row" }, [name, ...cells]));
      return cells;
    });
  }

  /** Paint the thumbnails. All heads share a colour range, except those whose weights are not shares of 1, such as flow.
   *  @param {import("./grid_data.js").GridData} data
   *  @param {{side: number, palette: import("./colour.js").Palette, scale: import("./range.js").Scale, top: number}} options */
  paint({ maps, normalized, queries, keys, note }, { side, palette, scale, top }) {
    // A single image of all heads; each cell shows its part of it.
    const all = this.cells.flat();
    const area = side * side;
    const pooled = Math.max(queries, keys) > side;
    const common = maps.flatMap(({ weights, shared }) => (shared ? Array.from(weights) : []));
    const range = rangeOf(summarize(common, normalized ? uniformWeight([keys]) : NOT_SHARES, pooled), scale, top);
    const image = new ImageData(side, side * Math.max(1, all.length));
    maps.forEach(({ weights: cells, shared }, i) => {
      const own = shared ? range : rangeOf(summarize(cells, NOT_SHARES, pooled), scale, 0);
      const label = all[i].getAttribute("aria-label") || "";
      all[i].title = shared ? label : `${label}. ${describeRange(own)}`;
      image.data.set(pixels(cells, side, own, paletteFor(palette, own)).data, i * area * 4);
    });
    imageCanvas(image).toBlob((blob) => blob && this.#show(blob, all));
    const [others, few] = [maps.some(({ shared }) => !shared), common.length === 0];
    this.painted = { layers: this.layers, image, range: few ? null : range, palette: paletteFor(palette, few ? null : range), side };
    const own = normalized ? " Maps whose rows do not sum to 1 have their own." : " The others have their own.";
    this.rule = `Small maps: ${few ? "each has its own colour scale." : `one scale. ${describeRange(range)}${others ? own : ""}`}${note}`;
  }

  /** Show the picture of all heads on their cells, unless a later one is under way. @param {Blob} blob @param {HTMLElement[]} cells */
  async #show(blob, cells) {
    const url = (this.newest = URL.createObjectURL(blob));
    // Cells take a loaded picture at once. Revoking the address of one that still loads is an error of the page.
    const picture = new Image();
    picture.src = url;
    await picture.decode().catch(() => {});
    if (this.newest !== url) return URL.revokeObjectURL(url);
    cells.forEach((cell, i) => {
      const backgroundPosition = `0 ${cells.length > 1 ? (100 * i) / (cells.length - 1) : 0}%`;
      Object.assign(cell.style, { backgroundImage: `url(${url})`, backgroundSize: `100% ${100 * cells.length}%`, backgroundPosition });
    });
    if (this.picture) URL.revokeObjectURL(this.picture.src);
    this.picture = picture;
    this.element.dataset.painted = String(cells.length);
  }

  /** @param {number} layer @param {number} head */
  select(layer, head) {
    moveSelection(this.cells[this.selected[0]]?.[this.selected[1]], this.cells[layer]?.[head]);
    this.selected = [layer, head];
  }

  /** Frame heads in colours. @param {[number, number, string][]} heads layer, head and colour */
  frame(heads) {
    for (const cell of this.cells.flat()) cell.style.outline = "";
    for (const [layer, head, colour] of heads) if (this.cells[layer]?.[head]) this.cells[layer][head].style.outline = `3px solid ${colour}`;
  }

  /** @param {KeyboardEvent} event */
  #onKeyDown(event) {
    const [layer, head] = this.selected;
    const last = this.cells.length - 1;
    /** @type {Record<string, [number, number]>} */
    const moves = {
      ArrowUp: [Math.max(0, layer - 1), head], ArrowDown: [Math.min(last, layer + 1), head],
      ArrowLeft: [layer, Math.max(0, head - 1)], ArrowRight: [layer, head + 1], Home: [layer, 0], End: [layer, this.cells[layer].length - 1],
    };
    const next = moves[event.key];
    if (!next) return;
    event.preventDefault();
    this.onSelect(next[0], Math.min(next[1], this.cells[next[0]].length - 1));
  }
}
