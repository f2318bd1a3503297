// How a weight becomes a colour: one table of 256 colours, and three scales that lead into it.

/** @typedef {"linear" | "sqrt" | "log"} Scale */

/** Stops of the two maps, in one hue each, from nothing to everything. Light: ColorBrewer's Blues (safe for
 *  every kind of colour vision); dark: from the paper through blue to near white. */
const STOPS = {
  light: [[255, 255, 255], [222, 235, 247], [158, 202, 225], [66, 146, 198], [8, 81, 156], [3, 28, 82]],
  dark: [[21, 24, 29], [24, 44, 74], [30, 84, 140], [62, 140, 205], [150, 205, 240], [240, 249, 255]],
};

/** 256 colours as RGBA bytes.
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

/** Where a weight stands between nothing and the largest weight: 0 to 1.
 *  @param {number} weight @param {number} most @param {Scale} scale */
export function shade(weight, most, scale) {
  const share = most > 0 ? Math.min(1, weight / most) : 0;
  if (scale === "sqrt") return Math.sqrt(share);
  if (scale === "log") return share <= 1e-4 ? 0 : 1 + Math.log10(share) / 4;
  return share;
}

/** Spots as pixels.
 *  @param {Float32Array} spots @param {number} wide @param {number} most @param {Scale} scale
 *  @param {Uint8ClampedArray} table */
export function pixels(spots, wide, most, scale, table) {
  const image = new ImageData(wide, spots.length / wide);
  // A pixel at a time, not four bytes.
  const words = new Uint32Array(image.data.buffer);
  const colours = new Uint32Array(table.buffer, table.byteOffset, 256);
  for (let i = 0; i < spots.length; i++) words[i] = colours[Math.round(255 * shade(spots[i], most, scale))];
  return image;
}

/** The same as a CSS colour.
 *  @param {Uint8ClampedArray} table @param {number} share */
export function cssColour(table, share) {
  const i = 4 * Math.round(255 * share);
  return `rgb(${table[i]} ${table[i + 1]} ${table[i + 2]})`;
}

/** Ink that can be read on that colour.
 *  @param {Uint8ClampedArray} table @param {number} share */
export function inkOn(table, share) {
  const i = 4 * Math.round(255 * share);
  const light = 0.299 * table[i] + 0.587 * table[i + 1] + 0.114 * table[i + 2];
  return light > 140 ? "#10141b" : "#ffffff";
}
