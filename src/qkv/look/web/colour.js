// Map weights to colours: a table of 256 colours, and three scales that give an index of the table.

/** @typedef {"linear" | "sqrt" | "log"} Scale */

/** Colour stops of the light and the dark theme, from 0 to the maximum. Light: ColorBrewer's Blues (safe for
 *  colour-blind readers); dark: from the background through blue to near white. */
const STOPS = {
  light: [[255, 255, 255], [222, 235, 247], [158, 202, 225], [66, 146, 198], [8, 81, 156], [3, 28, 82]],
  dark: [[21, 24, 29], [24, 44, 74], [30, 84, 140], [62, 140, 205], [150, 205, 240], [240, 249, 255]],
};

/** Return 256 colours as RGBA bytes.
 *  @param {boolean} dark
 *  @returns {Uint8ClampedArray} */
export function colourTable(dark) {
  const stops = STOPS[dark ? "dark" : "light"];
  const table = new Uint8ClampedArray(256 * 4);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    for (let channel = 0; channel < 3; channel++) {
      table[4 * i + channel] = stops[low][channel] + (at - low) * (stops[low + 1][channel] - stops[low][channel]);
    }
    table[4 * i + 3] = 255;
  }
  return table;
}

/** Map a weight to a number from 0 to 1 on a colour scale.
 *  @param {number} weight @param {number} maximum @param {Scale} scale */
export function shade(weight, maximum, scale) {
  const share = maximum > 0 ? Math.min(1, weight / maximum) : 0;
  if (scale === "sqrt") return Math.sqrt(share);
  if (scale === "log") return share <= 1e-4 ? 0 : 1 + Math.log10(share) / 4;
  return share;
}

/** Return an image with one pixel per cell.
 *  @param {Float32Array} cells @param {number} width @param {number} maximum @param {Scale} scale
 *  @param {Uint8ClampedArray} table */
export function pixels(cells, width, maximum, scale, table) {
  const image = new ImageData(width, cells.length / width);
  // Write whole pixels, not single bytes.
  const words = new Uint32Array(image.data.buffer);
  const colours = new Uint32Array(table.buffer, table.byteOffset, 256);
  for (let i = 0; i < cells.length; i++) words[i] = colours[Math.round(255 * shade(cells[i], maximum, scale))];
  return image;
}

/** Return the CSS colour of a number from 0 to 1.
 *  @param {Uint8ClampedArray} table @param {number} share */
export function cssColour(table, share) {
  const i = 4 * Math.round(255 * share);
  return `rgb(${table[i]} ${table[i + 1]} ${table[i + 2]})`;
}

/** Return a text colour that is readable on the colour of a number from 0 to 1.
 *  @param {Uint8ClampedArray} table @param {number} share */
export function inkOn(table, share) {
  const i = 4 * Math.round(255 * share);
  const light = 0.299 * table[i] + 0.587 * table[i + 1] + 0.114 * table[i + 2];
  return light > 140 ? "#10141b" : "#ffffff";
}
