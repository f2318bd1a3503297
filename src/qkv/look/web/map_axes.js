// The axes of a map: their names, and as many labels as fit, always with those of the selected rows and columns.

/** Pixels around the cells of a map. */
export const MARGIN = { left: 92, top: 8, right: 10, bottom: 76 };
/** Pixels that a label takes, its font size, and pixels that the name of an axis takes. */
const [LABEL, TEXT, NAME] = [15, 13, 18];

/** Draw the axes of a map.
 *  @param {CanvasRenderingContext2D} pen @param {HTMLCanvasElement} canvas
 *  @param {{x: number, y: number, width: number, height: number}} box the rectangle of the cells
 *  @param {[number, number, number, number]} part the visible first row, first column, rows and columns
 *  @param {import("./map.js").MapData} mapData @param {[number[], number[]]} selected rows and columns @param {number} scale of the text */
export function drawAxes(pen, canvas, box, part, mapData, [rows, columns], scale) {
  const style = getComputedStyle(canvas);
  pen.strokeStyle = style.color;
  pen.lineWidth = 0.5;
  pen.strokeRect(box.x, box.y, box.width, box.height);
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  /** @param {boolean} bold */
  const choose = (bold) => {
    pen.font = `${bold ? "700 " : ""}${scale * TEXT}px ${style.fontFamily}`;
    pen.fillStyle = bold ? style.getPropertyValue("--mark") : style.color;
  };
  const down = labels(part[0], part[2], box.height / scale, rows);
  for (const row of down) {
    choose(rows.includes(row));
    pen.fillText(short(pen, mapData.query(row), box.x - 24 * scale), box.x - 5, box.y + ((row + 0.5 - part[0]) / part[2]) * box.height);
  }
  const across = labels(part[1], part[3], box.width / scale, columns);
  for (const column of across) {
    choose(columns.includes(column));
    pen.save();
    pen.translate(box.x + ((column + 0.5 - part[1]) / part[3]) * box.width, box.y + box.height + 5);
    pen.rotate(-Math.PI / 2);
    pen.fillText(short(pen, mapData.key(column), scale * (MARGIN.bottom - 25)), 0, 0);
    pen.restore();
  }
  Object.assign(canvas.dataset, { rows: down.join(), columns: across.join() });
  pen.fillStyle = style.color;
  pen.font = `600 ${scale * TEXT}px ${style.fontFamily}`;
  pen.textAlign = "center";
  pen.fillText("key (attended) →", box.x + box.width / 2, box.y + box.height + scale * 67);
  pen.save();
  pen.translate(scale * 9, box.y + box.height / 2);
  pen.rotate(-Math.PI / 2);
  pen.fillText("← query (attends)", 0, 0);
  pen.restore();
}

/** Return the row (and null) of the label of a query at a place of the canvas, or (null and) the column of the label of a key;
 *  null if there is no label.
 *  @param {HTMLCanvasElement} canvas on which `drawAxes` has drawn @param {{x: number, y: number, width: number, height: number}} box
 *  @param {[number, number, number, number]} part @param {number} x @param {number} y in CSS pixels @param {number} scale of the text
 *  @returns {[number, null] | [null, number] | null} */
export function labelAt(canvas, box, part, x, y, scale) {
  /** @param {string | undefined} indices of the labels @param {number} first @param {number} count @param {number} pixels
   *  @param {number} at the place along the axis */
  const nearest = (indices, first, count, pixels, at) => {
    const distance = (/** @type {number} */ index) => Math.abs(((index + 0.5 - first) / count) * pixels - at);
    const found = (indices ? indices.split(",").map(Number) : []).reduce((a, b) => (distance(b) < distance(a) ? b : a), -Infinity);
    return distance(found) <= Math.max(scale * LABEL, pixels / count) / 2 ? found : null;
  };
  if (x < box.x && x > scale * NAME) {
    const row = nearest(canvas.dataset.rows, part[0], part[2], box.height, y - box.y);
    return row === null ? null : [row, null];
  }
  if (y > box.y + box.height && y < box.y + box.height + scale * (MARGIN.bottom - NAME)) {
    const column = nearest(canvas.dataset.columns, part[1], part[3], box.width, x - box.x);
    return column === null ? null : [null, column];
  }
  return null;
}

/** Return the indices to label in increasing order: the selected ones that are visible, and the regular ones that do
 *  not overlap them.
 *  @param {number} first @param {number} count @param {number} pixels @param {number[]} selected */
export function labels(first, count, pixels, selected) {
  const own = selected.filter((index) => index >= first && index < first + count);
  const apart = (/** @type {number} */ index) => own.every((one) => (Math.abs(index - one) * pixels) / count >= LABEL);
  const every = ticks(first, count, pixels);
  // Neighbours keep their labels if all rows have one.
  const dense = every.length === count;
  return [...every.filter((index) => !own.includes(index) && (dense || apart(index))), ...own].sort((a, b) => a - b);
}

/** Return every n-th index, so that labels do not overlap.
 *  @param {number} first @param {number} count @param {number} pixels */
export function ticks(first, count, pixels) {
  const each = round(Math.max(1, Math.ceil((count * LABEL) / pixels)));
  const start = Math.ceil(first / each) * each;
  return Array.from({ length: Math.max(0, Math.ceil((first + count - start) / each)) }, (_, i) => start + i * each);
}

/** Round up to 10, 20, 50, 100 …; numbers below 10 do not change. @param {number} step */
function round(step) {
  const power = 10 ** Math.floor(Math.log10(step));
  return step < 10 ? step : power * (step <= power ? 1 : step <= 2 * power ? 2 : step <= 5 * power ? 5 : 10);
}

/** Shorten a text to a width, so that it does not touch the name of the axis.
 *  @param {CanvasRenderingContext2D} pen @param {string} text @param {number} pixels */
function short(pen, text, pixels) {
  let start = text.slice(0, 24);
  if (start === text && pen.measureText(text).width <= pixels) return text;
  while (start.length > 1 && pen.measureText(`${start}…`).width > pixels) start = start.slice(0, -1);
  return `${start}…`;
}
