// The image whose patches are tokens: the more weight a patch has for the selected query, the brighter it is.

import { createElement } from "./dom.js";
import { drawInFrames, imageCanvas, screenPen } from "./drawing.js";
import { patchOf } from "./groups.js";

/** Brightness of a patch without weight, so that the image stays recognizable. */
const DIM = 0.22;

export class Picture {
  /** @param {(patch: number) => void} hover @param {(patch: number) => void} pick
   *  @param {(name: string) => void} region called with the corners of a region that was drawn */
  constructor(hover, pick, region) {
    this.canvas = createElement("canvas", { class: "picture", role: "img" });
    this.element = createElement("div", { class: "between", hidden: true }, [this.canvas]);
    /** The image, its grid of patches, and the patches that are the query and the key, −1: none; `share` returns the share of the colour
     *  table of the weight of a patch.
     *  @type {{pixels: Uint8Array, size: [number, number], grid: [number, number], share: (patch: number) => number,
     *    name: (patch: number) => string, query: number, key: number} | null} */
    this.patches = null;
    this.canvas.addEventListener("pointermove", (event) => event.pointerType !== "touch" && this.#act(event, hover));
    /** where a region is drawn from @type {number | null} */
    this.corner = null;
    this.canvas.addEventListener("pointerdown", (event) => event.shiftKey && this.#act(event, (patch) => (this.corner = patch)));
    this.canvas.addEventListener("click", (event) => this.#act(event, (patch) => {
      const corner = this.corner;
      this.corner = null;
      if (corner === null || !this.patches) pick(patch);
      else region([corner, patch].map(this.patches.name).join("–"));
    }));
    this.draw = drawInFrames(this.canvas, () => this.patches, (patches) => this.#draw(patches));
  }

  /** Show the weights of a pair's query on the image, or those of its key if the keys are no patches.
   *  @param {import("./map_data.js").ShownImage} image @param {import("./load.js").Loaded} matrix
   *  @param {number} query @param {number} key @param {(weight: number, row: number) => number} shade */
  show(image, matrix, query, key, shade) {
    const axis = image.columns.grid ? image.columns : image.rows;
    const width = matrix.keys.length;
    const at = new Map(axis.patches.map((patch, i) => [patch, i]));
    const weight = (/** @type {number} */ patch) => {
      const i = at.get(patch);
      if (i === undefined) return 0;
      return axis === image.columns ? matrix.weights[query * width + i] : matrix.weights[i * width + key];
    };
    const largest = Math.max(0, ...Array.from(at.keys(), (patch) => Math.abs(weight(patch)) || 0));
    this.patches = {
      ...image, grid: /** @type {[number, number]} */ (axis.grid), share: (patch) => Math.abs(shade(weight(patch), largest)),
      name: (patch) => `${Math.floor(patch / axis.grid[1])},${patch % axis.grid[1]}`,
      query: image.rows.grid ? image.rows.patches[query] : -1, key: image.columns.grid ? image.columns.patches[key] : -1,
    };
    this.draw();
  }

  /** @param {NonNullable<Picture["patches"]>} patches */
  #draw({ pixels, size: [height, width], grid: [rows, columns], share, name, query, key }) {
    const { canvas } = this;
    const image = new ImageData(width, height);
    const light = Float32Array.from({ length: rows * columns }, (_, patch) => DIM + (1 - DIM) * Math.max(0, Math.min(1, share(patch) || 0)));
    for (let y = 0; y < height; y++) {
      const row = Math.min(rows - 1, Math.floor((y * rows) / height)) * columns;
      for (let x = 0; x < width; x++) {
        const at = y * width + x;
        const factor = light[row + Math.min(columns - 1, Math.floor((x * columns) / width))];
        for (let c = 0; c < 3; c++) image.data[4 * at + c] = pixels[3 * at + c] * factor;
        image.data[4 * at + 3] = 255;
      }
    }
    canvas.style.aspectRatio = `${width} / ${height}`;
    const [wide, high] = [canvas.clientWidth, (canvas.clientWidth * height) / width];
    const pen = screenPen(canvas, wide, high);
    pen.imageSmoothingEnabled = width > canvas.width;
    pen.drawImage(imageCanvas(image), 0, 0, wide, high);
    const [across, down] = [wide / columns, high / rows];
    const frame = (/** @type {number} */ patch, /** @type {string} */ colour, /** @type {number} */ line) => {
      if (patch < 0) return;
      pen.strokeStyle = colour;
      pen.lineWidth = line;
      pen.strokeRect((patch % columns) * across, Math.floor(patch / columns) * down, across, down);
    };
    frame(key, "#ffffff", 1);
    frame(query, getComputedStyle(canvas).getPropertyValue("--mark"), 2);
    const what = query < 0 ? "the selected token" : `patch ${name(query)}`;
    canvas.setAttribute("aria-label", `image with the weights of ${what} on its patches; the table lists them`);
  }

  /** @param {MouseEvent} event @param {(patch: number) => void} call */
  #act(event, call) {
    if (!this.patches) return;
    const [rows, columns] = this.patches.grid;
    const edge = this.canvas.getBoundingClientRect();
    const row = Math.floor(((event.clientY - edge.top) / edge.height) * rows);
    const column = Math.floor(((event.clientX - edge.left) / edge.width) * columns);
    if (row >= 0 && column >= 0 && row < rows && column < columns) call(row * columns + column);
  }
}

/** Return the patch of each group of tokens, −1 for other tokens, and the grid of patches.
 *  @param {import("./detail.js").Side} side @param {number[][]} groups */
export function patchesOf(side, groups) {
  return { grid: /** @type {any} */ (side.patches?.grid), patches: groups.map((group) => patchOf(side, group[0])) };
}
