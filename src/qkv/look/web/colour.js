// Colours of weights: a table for positive and one for negative weights, and colours of masked and invalid cells.

import { MASKED } from "./codes.js";
import { rowMaxima } from "./matrix.js";
import { FAINT, shadeOf } from "./range.js";

/** Colours of one theme. The first two stops of each table are the colours of 0 and of the end of the faint weights.
 *  Light: ColorBrewer's Blues and Oranges, which colour-blind readers can tell apart; dark: from the background
 *  through blue to near white, and for maps with negative weights, `signed`, through blue or orange to light blue or
 *  light orange, because two colours near white would look alike (the ends differ by ΔE00 = 42). */
const THEMES = {
  light: {
    positive: [[255, 255, 255], [234, 242, 250], [158, 202, 225], [66, 146, 198], [8, 81, 156], [3, 28, 82]],
    negative: [[255, 255, 255], [254, 244, 236], [253, 190, 133], [241, 105, 19], [166, 54, 3], [92, 26, 2]],
    masked: [222, 222, 222],
    notFinite: [200, 0, 130],
  },
  dark: {
    positive: [[21, 24, 29], [25, 33, 46], [30, 84, 140], [62, 140, 205], [150, 205, 240], [240, 249, 255]],
    signed: [[21, 24, 29], [25, 33, 46], [28, 72, 128], [45, 120, 200], [92, 170, 245], [150, 208, 255]],
    negative: [[21, 24, 29], [36, 29, 27], [120, 58, 14], [205, 108, 24], [245, 148, 50], [255, 190, 110]],
    masked: [52, 55, 60],
    notFinite: [255, 80, 190],
  },
};
const STEPS = 2048;

/** @typedef {Object} Palette
 *  @property {Uint8ClampedArray} positive RGBA of `STEPS` colours @property {Uint8ClampedArray} negative
 *  @property {Uint8ClampedArray} signed the positive weights of maps that also have negative ones
 *  @property {Uint8ClampedArray} masked RGBA @property {Uint8ClampedArray} notFinite RGBA */

/** @param {boolean} dark @returns {Palette} */
export function paletteOf(dark) {
  const theme = THEMES[dark ? "dark" : "light"];
  return {
    positive: table(theme.positive),
    signed: table(theme.signed ?? theme.positive),
    negative: table(theme.negative),
    masked: Uint8ClampedArray.from([...theme.masked, 255]),
    notFinite: Uint8ClampedArray.from([...theme.notFinite, 255]),
  };
}

/** Return the palette for a colour range. @param {Palette} palette @param {{signed: boolean} | null} range @returns {Palette} */
export function paletteFor(palette, range) {
  return range?.signed ? { ...palette, positive: palette.signed } : palette;
}

/** @param {number[][]} stops */
function table(stops) {
  const colours = new Uint8ClampedArray(STEPS * 4);
  for (let i = 0; i < STEPS; i++) {
    const share = i / (STEPS - 1);
    const at = share < FAINT ? share / FAINT : 1 + ((share - FAINT) / (1 - FAINT)) * (stops.length - 2);
    const low = Math.min(Math.floor(at), stops.length - 2);
    for (let channel = 0; channel < 3; channel++) {
      colours[4 * i + channel] = Math.round(stops[low][channel] + (at - low) * (stops[low + 1][channel] - stops[low][channel]));
    }
    colours[4 * i + 3] = 255;
  }
  return colours;
}

/** Return an image with one pixel per cell.
 *  @param {Float32Array} cells @param {number} width @param {import("./range.js").Range} range @param {Palette} palette */
export function pixels(cells, width, range, palette) {
  const shade = shadeOf(range);
  const rows = range.scale === "row" ? rowMaxima(cells, width) : null;
  const image = new ImageData(width, cells.length / width);
  // Write whole pixels, not single bytes.
  const words = new Uint32Array(image.data.buffer);
  const [positive, negative, masked, notFinite] = [palette.positive, palette.negative, palette.masked, palette.notFinite]
    .map((colours) => new Uint32Array(colours.buffer, colours.byteOffset));
  for (let i = 0; i < cells.length; i++) {
    const share = shade(cells[i], rows ? rows[Math.floor(i / width)] : 0);
    if (share >= 0) words[i] = positive[Math.round((STEPS - 1) * share)];
    else if (share === MASKED) words[i] = masked[0];
    else words[i] = share < 0 ? negative[Math.round((1 - STEPS) * share)] : notFinite[0];
  }
  return image;
}

/** @param {Palette} palette @param {number} share from −1 to 1, NaN or `MASKED` @returns {ArrayLike<number>} red, green, blue */
export function colourOf(palette, share) {
  if (share === MASKED) return palette.masked;
  if (Number.isNaN(share)) return palette.notFinite;
  const at = 4 * Math.round((STEPS - 1) * Math.abs(share));
  return (share < 0 ? palette.negative : palette.positive).subarray(at, at + 4);
}

/** Return the CSS colour of a share. @param {Palette} palette @param {number} share */
export function cssColour(palette, share) {
  const [red, green, blue] = Array.from(colourOf(palette, share));
  return `rgb(${red} ${green} ${blue})`;
}

/** Return red, green and blue of a CSS colour. @param {string} css `rgb(1 2 3)`, `rgb(1, 2, 3)` or `#112233` @returns {number[]} */
export function channels(css) {
  return css.startsWith("#") ? [1, 3, 5].map((at) => parseInt(css.slice(at, at + 2), 16)) : (css.match(/\d+/g) || []).slice(0, 3).map(Number);
}

/** Return black or white, whichever contrasts more with the colour of a share: at least 4.5 : 1. @param {Palette} palette @param {number} share */
export function inkOn(palette, share) {
  const [red, green, blue] = Array.from(colourOf(palette, share), (part) => (part <= 10 ? part / 3294.6 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000000" : "#ffffff";
}

/** Return a colour over paper, which figures need in place of opacity. @param {string} colour @param {string} paper @param {number} alpha */
export function blend(colour, paper, alpha) {
  const [over, under] = [colour, paper].map(channels);
  return `rgb(${over.map((one, i) => Math.round(alpha * one + (1 - alpha) * under[i])).join(" ")})`;
}

/** Colours of heads that people with colour blindness can tell apart, on light and dark backgrounds. */
const HEADS = {
  light: ["#0072b2", "#c44900", "#00795a", "#a3307f", "#7a5c00", "#5b46c8"],
  dark: ["#56b4e9", "#ff9d5c", "#3ecf9a", "#f08cc8", "#e6c229", "#b9a5ff"],
};
/** Maximum number of heads whose lines are drawn together. */
export const MOST_HEADS = HEADS.light.length;
/** @param {number} index of a head @param {boolean} dark */
export const headColour = (index, dark) => HEADS[dark ? "dark" : "light"][index];
