// The legend of a picture: its colour bar, and in words from which weights on cells are coloured.

import { formatWeight } from "./codes.js";
import { cssColour } from "./colour.js";
import { createElement } from "./dom.js";
import { FAINT, weightAt } from "./range.js";

/** Show the legend of a colour range.
 *  @param {HTMLElement} place @param {import("./range.js").Range} range @param {import("./colour.js").Palette} palette
 *  @param {string} [also] another sentence */
export function fillLegend(place, range, palette, also = "") {
  const { scale, signed, top, largest, masked, notFinite } = range;
  const stops = Array.from({ length: 41 }, (_, i) => cssColour(palette, signed ? i / 20 - 1 : i / 40));
  const labels = barLabels(range);
  const colours = createElement("span", { class: signed ? "colours signed" : "colours", style: { background: `linear-gradient(to right, ${stops.join(", ")})` } }, [
    scale === "auto" && !signed ? createElement("span", { class: "faint", style: { left: `${100 * FAINT}%` } }) : null,
    createElement("span", { class: "ticks" }, labels.map(({ share, text }, i) => createElement("span", {
      class: i === 0 ? "tick first" : i === labels.length - 1 ? "tick last" : "tick", text, style: { left: `${signed ? 50 + 50 * share : 100 * share}%` },
    }))),
  ]);
  const arrow = (/** @type {string} */ style, /** @type {number} */ share) => (scale === "row" || largest <= top * 1.0005 ? []
    : [createElement("span", { class: style, title: "there are larger weights", style: { background: cssColour(palette, share) } })]);
  const swatch = (/** @type {number} */ share, /** @type {string} */ text) =>
    createElement("span", { class: "control" }, [createElement("span", { class: "swatch", style: { background: cssColour(palette, share) } }), createElement("span", { text })]);
  place.replaceChildren(
    ...(signed ? arrow("more left", -1) : []), colours, ...arrow("more", 1),
    ...(masked ? [swatch(-Infinity, "masked")] : []), ...(notFinite ? [swatch(NaN, "not a number")] : []),
    createElement("span", { class: "rule", text: describeRange(range) + also }),
  );
}

/** Return the shares of the colour table that are labelled, with their labels: 0, the ends, and the middle of the colours that are not
 *  faint. @param {import("./range.js").Range} range @param {boolean} [faint] label the end of the faint ones, too */
export function barLabels(range, faint = false) {
  const { scale, signed } = range;
  const middle = scale === "auto" ? (1 + FAINT) / 2 : 0.5;
  const shares = signed ? [-1, -middle, 0, middle, 1] : faint && scale === "auto" ? [0, FAINT, middle, 1] : [0, middle, 1];
  return shares.map((share) => ({ share, text: scale === "row" ? String(share) : formatWeight(weightAt(range, Math.abs(share)) * Math.sign(share) || 0) }));
}

/** What the colours between the ends follow. */
const FOLLOWS = { auto: "the logarithm of the", linear: "the", sqrt: "the square root of the", log: "the logarithm of the", row: "the" };

/** Describe in words what the colours mean. The largest weight is that of the cells that are drawn. @param {import("./range.js").Range} range */
export function describeRange(range) {
  const { scale, start, top, largest, error, rule, signed } = range;
  const size = signed ? "magnitude" : "weight";
  if (scale === "row") return `Colour: share of the largest ${size} in the visible part of the row.`;
  const first = scale === "auto" ? `faint below ${formatWeight(start)} (${rule}), ` : `middle colour ${formatWeight(weightAt(range, 0.5))}, `;
  return `Colour: ${first}strongest from ${formatWeight(top)}, between them by ${FOLLOWS[scale]} ${size}; largest ${size} shown ${formatWeight(largest, error * largest, 3)}.`;
}
