// The axes of a map, on the page and in figures: names, labels, and the patches or the curve for which rows or columns stand.

import { fitText, imageCanvas, textWidth } from "./drawing.js";
import { patchOf } from "./groups.js";

/** Colour of curves, on light and dark backgrounds. */
const CURVE = "#4a83c4";
/** Depth of a curve, in proportion to the size of the labels. */
const DEPTH = 2.2;
/** Maximum length of labels, in proportion to their size. */
const LONGEST = 9;
/** How much longer a text is in bold type. */
const BOLD = 1.13;

/** What is drawn along the rows or the columns of a map beside their labels; `label` is the length of the longest label of a series or
 *  table, for a size of 1, and 0 for texts, whose labels are cut.
 *  @typedef {{curve: {name: string, low: number[], high: number[]} | null, label: number, pictured: boolean,
 *    patch: (index: number) => HTMLCanvasElement | null}} AxisDrawing `pictured`: whether there are patches */

/** Return what is drawn along an axis whose rows or columns are groups of tokens.
 *  @param {import("./detail.js").Side} side @param {number[][]} groups @param {string[]} names of the groups
 *  @param {Uint8Array | null} pixels of the image whose patches are tokens
 *  @returns {AxisDrawing} */
export function axisDrawing(side, groups, names, pixels) {
  const { curve, patches } = side;
  const cut = /** @type {Map<number, HTMLCanvasElement>} */ (new Map());
  return {
    curve: curve ? {
      name: curve.name, low: groups.map((group) => Math.min(...group.map((i) => curve.low[i]))),
      high: groups.map((group) => Math.max(...group.map((i) => curve.high[i]))),
    } : null,
    label: side.units.sentences ? 0 : Math.min(LONGEST, Math.max(...names.slice(0, 500).map((name) => textWidth(name, BOLD)))),
    pictured: Boolean(patches?.size && pixels),
    patch: (index) => {
      const patch = patchOf(side, groups[index][0]);
      if (patch < 0 || !patches?.size || !pixels) return null;
      if (!cut.has(patch)) cut.set(patch, patchImage(pixels, patches.size, patches.grid, patch));
      return cut.get(patch) ?? null;
    },
  };
}

/** @param {Uint8Array} pixels @param {[number, number]} size @param {[number, number]} grid @param {number} patch */
function patchImage(pixels, [height, width], [rows, columns], patch) {
  const [across, down] = [Math.floor(width / columns), Math.floor(height / rows)];
  const [left, top] = [(patch % columns) * across, Math.floor(patch / columns) * down];
  const image = new ImageData(across, down);
  for (let i = 0; i < across * down; i++) {
    const at = 3 * ((top + Math.floor(i / across)) * width + left + (i % across));
    image.data.set([...pixels.subarray(at, at + 3), 255], 4 * i);
  }
  return imageCanvas(image);
}

/** Return the depths of the curves of the rows and of the columns, 0: none, and by how much their labels exceed their rooms.
 *  @param {import("./map.js").MapData | null} mapData @param {number} size of the labels @param {number[]} [rooms] length of the labels */
export function curveDepths(mapData, size, rooms = [Infinity, Infinity]) {
  return [0, 1].map((axis) => {
    const { curve = null, label = 0 } = mapData?.axes[axis] ?? {};
    return { depth: curve ? DEPTH * size : 0, more: Math.max(0, label * size + 2 - rooms[axis]) };
  });
}

/** Return the items of the axes of a map, and the indices of the rows and columns that have labels.
 *  @param {import("./map.js").MapData} mapData @param {{x: number, y: number, width: number, height: number}} box the rectangle of the cells
 *  @param {[number, number, number, number]} part the visible first row, first column, rows and columns
 *  @param {{size: number, nameSize: number, names: [string, string], gap: number, room: [number, number], selected: [number[], number[]], mark?: string}} style
 *    size of the labels and of the names, the names, distance from the map, length of the labels of rows and columns, and the rows and
 *    columns that always have labels, with their colour */
export function axisItems(mapData, box, part, { size, nameSize, names, gap, room, selected, mark }) {
  const items = /** @type {import("./drawing.js").Drawing["items"]} */ ([]);
  const depths = curveDepths(mapData, size);
  const labelled = [0, 1].map((axis) => {
    const [first, count, length] = [part[axis], part[axis + 2], axis ? box.width : box.height];
    const { curve, patch } = mapData.axes[axis];
    const label = axis ? mapData.keys : mapData.queries;
    const place = (/** @type {number} */ along, /** @type {number} */ depth) =>
      /** @type {[number, number]} */ (axis ? [box.x + along, box.y + box.height + depth] : [box.x - depth, box.y + along]);
    if (curve) items.push(curveItem(curve, first, count, length, depths[axis].depth, place, axis === 1));
    const shown = labels(first, count, length, selected[axis], 1.15 * size);
    for (const index of shown) {
      const along = ((index + 0.5 - first) / count) * length;
      const image = patch(index);
      const thumb = image ? size : 0;
      if (image) {
        const [x, y] = place(along, gap + (axis ? 0 : thumb));
        items.push({ kind: "image", x: axis ? x - thumb / 2 : x, y: axis ? y : y - thumb / 2, width: thumb, height: thumb, canvas: image });
      }
      const [x, y] = place(along, depths[axis].depth + gap + (thumb && thumb + 2));
      const bold = Boolean(mark) && selected[axis].includes(index);
      items.push({ kind: "text", x, y, text: fitText(label[index], size, room[axis] - (thumb && thumb + 2)), size, anchor: "end", rotated: axis === 1, bold, fill: bold ? mark : undefined });
    }
    const [x, y] = place(length / 2, depths[axis].depth + gap + room[axis] + 0.8 * nameSize);
    const text = (axis ? [curve?.name, names[1]] : [names[0], curve?.name]).filter(Boolean).join(" · ");
    items.push({ kind: "text", x, y, text: fitText(text, nameSize, Math.max(length, textWidth(names[axis], nameSize))), size: nameSize, anchor: "middle", rotated: axis === 0, bold: Boolean(mark) });
    return shown;
  });
  return { items, labelled };
}

/** Return the area between the smallest and the largest values along an axis, at most one of each per pixel.
 *  @param {{low: number[], high: number[]}} curve @param {number} first @param {number} count @param {number} length @param {number} depth
 *  @param {(along: number, depth: number) => [number, number]} place @param {boolean} below whether the map is above the curve
 *  @returns {import("./drawing.js").Shape} */
function curveItem({ low, high }, first, count, length, depth, place, below) {
  const [least, most] = [low.reduce((a, b) => Math.min(a, b)), high.reduce((a, b) => Math.max(a, b))];
  const points = Math.max(1, Math.min(count, Math.floor(length)));
  const side = (/** @type {number[]} */ values, /** @type {(...all: number[]) => number} */ extreme) => Array.from({ length: points }, (_, i) => {
    const [start, stop] = [i, i + 1].map((at) => first + Math.floor((at * count) / points));
    const share = (extreme(...values.slice(start, Math.max(start + 1, stop))) - least) / (most - least || 1);
    return place(((i + 0.5) * length) / points, depth * (0.1 + 0.8 * (below ? 1 - share : share)));
  });
  return { kind: "shape", points: [...side(high, Math.max), ...side(low, Math.min).reverse()], fill: CURVE, stroke: CURVE };
}

/** Return the indices to label in increasing order: the selected ones that are visible, and the regular ones that do
 *  not overlap them.
 *  @param {number} first @param {number} count @param {number} length @param {number[]} selected @param {number} pitch least distance of labels */
function labels(first, count, length, selected, pitch) {
  const own = selected.filter((index) => index >= first && index < first + count);
  const apart = (/** @type {number} */ index) => own.every((one) => (Math.abs(index - one) * length) / count >= pitch);
  const every = ticks(first, count, length, pitch);
  // Neighbours keep their labels if all rows have one.
  const dense = every.length === count;
  return [...every.filter((index) => !own.includes(index) && (dense || apart(index))), ...own].sort((a, b) => a - b);
}

/** Return every n-th index, so that labels do not overlap.
 *  @param {number} first @param {number} count @param {number} length @param {number} pitch */
function ticks(first, count, length, pitch) {
  const each = round(Math.max(1, Math.ceil((count * pitch) / length)));
  const start = Math.ceil(first / each) * each;
  return Array.from({ length: Math.max(0, Math.ceil((first + count - start) / each)) }, (_, i) => start + i * each);
}

/** Round up to 10, 20, 50, 100 …; numbers below 10 do not change. @param {number} step */
function round(step) {
  const power = 10 ** Math.floor(Math.log10(step));
  return step < 10 ? step : power * (step <= power ? 1 : step <= 2 * power ? 2 : step <= 5 * power ? 5 : 10);
}
