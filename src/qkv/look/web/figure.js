// Figures for papers: one map, or two side by side, with their tokens, or the grid of all heads; with title, colour bar and legend.

import { axisItems, curveDepths } from "./axes.js";
import { cssColour, inkOn, pixels } from "./colour.js";
import { SIGNS } from "./difference.js";
import { corners, fitText, imageCanvas, newPen, textWidth, wrapText } from "./drawing.js";
import { barLabels, describeRange } from "./legend.js";
import { shadeOf } from "./range.js";
import { quoted } from "./text_names.js";

/** @typedef {import("./drawing.js").Drawing} Drawing */
/** @typedef {import("./drawing.js").Text} Text */
/** Sizes of text in points. */
const SIZE = { title: 9, axis: 8, tick: 7.5 };
const PAD = 4;
const BAR = 8;
/** Points that the label of an axis takes. */
const AXIS = 12;
/** Points between two lines of the legend. */
const LEADING = 9.5;
/** Points between two lines of a title. */
const TITLE_LEADING = 11;
/** Maximum height of the maps in points, so that the figure fits on a page. */
const TALLEST = 560;
/** Maximum share of the width that the labels of the queries take. */
const LABEL_SHARE = 0.25;
/** Maximum number of cells along each side. */
const MOST_IMAGE_CELLS = 1024;

/** Return a figure of the visible parts of maps, which share a colour range.
 *  @param {import("./detail.js").Detail[]} details one or two @param {number} inches its width
 *  @param {{paper: string, ink: string}} theme @returns {Drawing} */
export function mapsFigure(details, inches, theme) {
  const { range, colours: palette } = /** @type {any} */ (details[0].map);
  const quantity = details[0].matrix?.parts ? "difference" : details[0].weighted ? "weight × norm" : "weight";
  const bar = barOf(range, palette, theme.ink, quantity);
  const width = inches * 72;
  const each = (width - bar.width - PAD) / details.length;
  const drawing = /** @type {Drawing} */ ({ width, height: 0, title: details.map((one) => one.title.textContent).join(" | "), ...theme, items: [] });
  const room = [0, 1].map((axis) => Math.max(...details.map(({ map }) => widestLabel(/** @type {any} */ (map.mapData), map.part, axis, each))));
  const titles = details.map((detail) => titleLines(detail, each - 2 * PAD));
  const lines = Math.max(...titles.map((one) => one.length));
  const panels = details.map((detail, i) => panelItems(detail, titles[i], PAD + 5 + TITLE_LEADING * lines, i * each, each, room, theme.ink));
  for (const { items } of panels) drawing.items.push(...items);
  const [top, bottom] = [panels[0].top, Math.max(...panels.map((panel) => panel.bottom))];
  const height = Math.max(40, Math.min(panels[0].height, 200));
  drawing.items.push(...bar.items(width - bar.width, top + (panels[0].height - height) / 2, height));
  const signs = (details[0].matrix?.parts ? SIGNS : "") + (panels[0].dashed ? " Orange cells from a tenth of the range on have a dash." : "");
  const words = describeRange(range) + signs + details.map(framedWords).join("");
  drawing.height = bottom + legendItems(drawing, words, range, palette, bottom);
  return drawing;
}

/** Return a figure of the small maps of all layers and heads.
 *  @param {import("./overview.js").Overview} overview @param {string} title @param {number} inches
 *  @param {{paper: string, ink: string}} theme @returns {Drawing} */
export function gridFigure(overview, title, inches, theme) {
  const { layers, image, range, palette, side } = /** @type {any} */ (overview.painted);
  const bar = range ? barOf(range, palette, theme.ink, "weight") : { width: 0, items: () => [] };
  const width = inches * 72;
  const most = Math.max(...layers.map((/** @type {any} */ layer) => layer.heads.length));
  const names = layers.map((/** @type {any} */ layer) => fitText(layer.name, SIZE.tick, width * LABEL_SHARE));
  const left = PAD + Math.max(...names.map((/** @type {string} */ name) => textWidth(name, SIZE.tick))) + PAD;
  const pitch = (width - left - bar.width - 2 * PAD) / most;
  const cell = pitch * 0.94;
  let top = PAD;
  const drawing = /** @type {Drawing} */ ({ width, height: 0, title, ...theme, items: [] });
  const lines = title ? titleWrapped(title, width - 2 * PAD) : [];
  lines.forEach((text, i) => drawing.items.push({ kind: "text", x: width / 2, y: top + 6 + TITLE_LEADING * i, text, size: SIZE.title, anchor: "middle" }));
  top += lines.length ? 4 + TITLE_LEADING * lines.length : 0;
  drawing.items.push({ kind: "text", x: left + (pitch * most) / 2, y: top + 4, text: "head", size: SIZE.axis, anchor: "middle" });
  top += AXIS;
  const every = Math.ceil(textWidth("000", SIZE.tick) / pitch);
  for (let h = 0; h < most; h += every) drawing.items.push({ kind: "text", x: left + h * pitch + cell / 2, y: top + 4, text: String(h), size: SIZE.tick, anchor: "middle" });
  top += 10;
  const first = top;
  let count = 0;
  layers.forEach((/** @type {any} */ layer, /** @type {number} */ l) => {
    drawing.items.push({ kind: "text", x: left - PAD, y: top + cell / 2, text: names[l], size: SIZE.tick, anchor: "end" });
    layer.heads.forEach((/** @type {string} */ _, /** @type {number} */ h) => {
      const x = left + h * pitch;
      drawing.items.push(
        { kind: "image", x, y: top, width: cell, height: cell, canvas: imageCanvas(image, side * count++, side) },
        { kind: "shape", points: corners(x, top, cell, cell), stroke: "#808080" },
      );
    });
    const named = layer.heads.some((/** @type {string} */ head, /** @type {number} */ h) => head !== `head ${h}`);
    if (named && layer.heads.length < most) {
      const x = left + layer.heads.length * pitch + 2;
      drawing.items.push({ kind: "text", x, y: top + cell / 2, text: fitText(layer.heads.join(", "), SIZE.tick, width - x - PAD), size: SIZE.tick, anchor: "start" });
    }
    top += pitch;
  });
  const height = Math.max(40, Math.min(top - first, 200));
  drawing.items.push(...bar.items(width - bar.width, first + Math.max(0, (top - first - height) / 2), height));
  const bottom = Math.max(top, first + height + 16);
  drawing.height = bottom + legendItems(drawing, overview.rule, range, palette, bottom);
  return drawing;
}

/** Return the width of the widest label of an axis, at most a quarter of that of the map.
 *  @param {import("./map.js").MapData} mapData @param {[number, number, number, number]} part @param {number} axis @param {number} width */
function widestLabel(mapData, part, axis, width) {
  const [name, { pictured }] = [axis ? mapData.keys : mapData.queries, mapData.axes[axis]];
  const [first, count] = [part[axis], part[axis + 2]];
  const samples = Math.min(count, 500);
  const indices = Array.from({ length: samples }, (_, i) => first + Math.floor((i * count) / samples));
  return Math.min(width * LABEL_SHARE, Math.max(...indices.map((index) => textWidth(name[index], SIZE.tick)))) + (pictured ? SIZE.tick + 2 : 0);
}

/** Return the lines of a title. @param {string} title @param {number} width */
function titleWrapped(title, width) {
  return wrapText(title, SIZE.title, width).map((line) => fitText(line.replaceAll("\u00a0", " "), SIZE.title, width));
}

/** Return the lines of the title, in which names of heads are not broken; that of a difference starts a line for each map.
 *  @param {import("./detail.js").Detail} detail @param {number} width */
function titleLines({ title, titled, weighted }, width) {
  const parts = (titled?.parts || []).map((part) => ({ ...part, solid: part.head.slice(0, 3) + part.head.slice(3).replaceAll(" ", "\u00a0") }));
  const long = parts.reduce((text, { head, solid }) => text.replace(head, solid), title.textContent || "");
  if (parts.length < 2 || textWidth(long, SIZE.title) <= width) return titleWrapped(long, width);
  return parts.flatMap(({ sign, text, solid }, i) =>
    titleWrapped(`${sign}${text}${solid}${weighted && i === parts.length - 1 ? " · × norm of the value" : ""}`, width));
}

/** Return the pinned pair and the frame of a map: first row, first column, rows and columns of those that are visible.
 *  @param {import("./detail.js").Detail} detail @returns {[number, number, number, number][]} */
function framesOf({ map, query, key }) {
  const [top, left, rows, columns] = map.part;
  return /** @type {[number, number, number, number][]} */ ([map.pinned === null ? null : [query, key, 1, 1], map.framed].filter((frame) =>
    frame && frame[0] >= top && frame[1] >= left && frame[0] + frame[2] <= top + rows && frame[1] + frame[3] <= left + columns));
}

/** Return the pinned pair and the frame with their weights in words. @param {import("./detail.js").Detail} detail */
function framedWords(detail) {
  const { queries, keys } = /** @type {import("./map.js").MapData} */ (detail.map.mapData);
  const named = (/** @type {string[]} */ names, /** @type {number} */ at, /** @type {number} */ count) =>
    quoted(count > 3 ? `${names[at]} … ${names[at + count - 1]}` : names.slice(at, at + count).join(" "));
  return framesOf(detail).map((frame) => {
    const weight = detail.weightIn(frame);
    return weight && ` Framed: ${named(queries, frame[0], frame[2])} → ${named(keys, frame[1], frame[3])}: ${weight}.`;
  }).join("");
}

/** Return the outlines of the pinned row, and of the pinned pair and the frame, which have at least 3 points on each side.
 *  @param {import("./detail.js").Detail} detail @param {number} left @param {number} top of the map
 *  @param {number} across @param {number} down @returns {Drawing["items"]} */
function framedItems(detail, left, top, across, down) {
  const { canvas, part, pinned } = detail.map;
  const stroke = getComputedStyle(canvas).getPropertyValue("--mark");
  return framesOf(detail).flatMap(([row, column, rows, columns], i) => {
    const [height, width] = [Math.max(3, (rows / part[2]) * down), Math.max(3, (columns / part[3]) * across)];
    const y = top + ((row + rows / 2 - part[0]) / part[2]) * down - height / 2;
    const x = left + ((column + columns / 2 - part[1]) / part[3]) * across - width / 2;
    return [
      ...(pinned === null || i ? [] : [/** @type {const} */ ({ kind: "shape", points: corners(left, y, across, height), stroke })]),
      { kind: "shape", points: corners(x, y, width, height), stroke },
      { kind: "shape", points: corners(x + 0.6, y + 0.6, width - 1.2, height - 1.2), stroke },
    ];
  });
}

/** Return the items of one map with its labels, between `x0` and `x0 + width`.
 *  @param {import("./detail.js").Detail} detail @param {string[]} titles its lines @param {number} top of the map
 *  @param {number} x0 @param {number} width
 *  @param {number[]} room length of the labels of its queries and keys @param {string} ink */
function panelItems(detail, titles, top, x0, width, [rowLabel, columnLabel], ink) {
  const { map } = detail;
  const mapData = /** @type {import("./map.js").MapData} */ (map.mapData);
  const [, , rows, columns] = map.part;
  const [high, wide] = [Math.min(rows, MOST_IMAGE_CELLS), Math.min(columns, MOST_IMAGE_CELLS)];
  const image = pixels(mapData.cells(map.part, high, wide, map.reduction), wide, /** @type {any} */ (map.range), map.colours);
  const [beside, below] = curveDepths(mapData, SIZE.tick).map(({ depth }) => depth);
  const left = x0 + PAD + AXIS + rowLabel + PAD + beside;
  const across = x0 + width - left - PAD;
  const down = Math.min(TALLEST, across * Math.max(0.25, Math.min(3, rows / columns)));
  /** @type {Drawing["items"]} */
  const items = [
    ...titles.map((text, i) => /** @type {Text} */ ({ kind: "text", x: x0 + width / 2, y: PAD + 6 + TITLE_LEADING * i, text, size: SIZE.title, anchor: "middle" })),
    { kind: "image", x: left, y: top, width: across, height: down, canvas: imageCanvas(image) },
    { kind: "shape", points: corners(left, top, across, down), stroke: ink },
    ...framedItems(detail, left, top, across, down),
  ];
  const dashed = detail.matrix?.parts && map.range?.scale !== "row" && Math.min(across / columns, down / rows) >= 3;
  const shade = shadeOf(/** @type {any} */ (map.range));
  for (let row = 0; dashed && row < rows; row++) for (let column = 0; column < columns; column++) {
    const share = shade(mapData.weight(map.part[0] + row, map.part[1] + column) ?? 0);
    const [x, y] = [left + ((column + 0.25) / columns) * across, top + ((row + 0.75) / rows) * down];
    if (share < -0.1 && share >= -1) items.push({ kind: "shape", points: [[x, y], [x + across / columns / 2, y]], stroke: inkOn(map.colours, share) });
  }
  items.push(...axisItems(mapData, { x: left, y: top, width: across, height: down }, map.part, {
    size: SIZE.tick, nameSize: SIZE.axis, names: ["query (attends)", "key (attended)"], gap: PAD, room: [rowLabel, columnLabel], selected: [[], []],
  }).items);
  return { items, dashed, top, height: down, bottom: top + down + below + PAD + columnLabel + PAD + AXIS };
}

/** Return the width of the colour bar with its labels, and a function that returns its items at a place.
 *  @param {import("./range.js").Range} range @param {import("./colour.js").Palette} palette @param {string} ink
 *  @param {string} quantity what the colours show */
function barOf(range, palette, ink, quantity) {
  const { scale, signed, top, largest } = range;
  const labels = barLabels(range, true);
  const label = scale === "row" ? "share of the row" : quantity;
  const low = signed ? -1 : 0;
  const more = scale !== "row" && largest > top * 1.0005;
  const width = Math.max(3 * PAD + BAR + Math.max(...labels.map(({ text }) => textWidth(text, SIZE.tick))), 2 * PAD + textWidth(label, SIZE.tick));
  const pen = newPen(1, 256);
  for (let i = 0; i < 256; i++) {
    pen.fillStyle = cssColour(palette, low + ((255 - i) / 255) * (1 - low));
    pen.fillRect(0, i, 1, 1);
  }
  /** @param {number} x @param {number} y @param {number} height @returns {Drawing["items"]} */
  const items = (x, y, height) => {
    const left = x + PAD;
    const place = (/** @type {number} */ share) => y + height * (1 - (share - low) / (1 - low));
    const arrow = (/** @type {number} */ share, /** @type {number} */ edge, /** @type {number} */ tip) =>
      /** @type {Drawing["items"][number]} */ ({ kind: "shape", points: [[left, edge], [left + BAR, edge], [left + BAR / 2, tip]], fill: cssColour(palette, share) });
    return [
      { kind: "image", x: left, y, width: BAR, height, canvas: pen.canvas },
      { kind: "shape", points: corners(left, y, BAR, height), stroke: ink },
      ...(more ? [arrow(1, y - 0.5, y - 6)] : []), ...(more && signed ? [arrow(-1, y + height + 0.5, y + height + 6)] : []),
      ...labels.filter(({ share }) => signed || !share || share * height >= SIZE.tick).map(({ share, text }) => /** @type {Text} */ ({ kind: "text", x: left + BAR + PAD, y: place(share), text, size: SIZE.tick, anchor: "start" })),
      { kind: "text", x: left, y: y + height + 12, text: label, size: SIZE.tick, anchor: "start" },
    ];
  };
  return { width, items };
}

/** Add the legend in words, and return its height.
 *  @param {Drawing} drawing @param {string} rule @param {import("./range.js").Range | null} range
 *  @param {import("./colour.js").Palette} palette @param {number} top */
function legendItems(drawing, rule, range, palette, top) {
  let y = top + LEADING;
  for (const text of wrapText(rule, SIZE.tick, drawing.width - 2 * PAD)) {
    drawing.items.push({ kind: "text", x: PAD, y, text, size: SIZE.tick, anchor: "start" });
    y += LEADING;
  }
  let x = PAD;
  const swatches = /** @type {[number, string, boolean][]} */ ([[-Infinity, "masked", Boolean(range?.masked)], [NaN, "not a number", Boolean(range?.notFinite)]]);
  for (const [share, text, present] of swatches) {
    if (!present) continue;
    drawing.items.push(
      { kind: "shape", points: corners(x, y - 2.5, 5, 5), fill: cssColour(palette, share), stroke: "#808080" },
      { kind: "text", x: x + 8, y, text, size: SIZE.tick, anchor: "start" },
    );
    x += 8 + textWidth(text, SIZE.tick) + 10;
  }
  return y - top + (x > PAD ? LEADING : 0);
}
