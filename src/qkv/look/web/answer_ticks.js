// Ticks of an axis of numbers, dates, times or durations, and the names of their places.

const DAY = 86400000;
const MINUTES = [1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720];

/** @typedef {{at: number, text: string}} Tick */

/** Return the ticks between two coordinates.
 *  @param {string} kind "number", "date", "time" or "duration" @param {number} low @param {number} high
 *  @param {number} most largest number of ticks @returns {Tick[]} */
export function tickMarks(kind, low, high, most) {
  if (kind === "date") return dateMarks(low, high, most);
  if (kind === "time") return clockMarks(low, high, most);
  return numberMarks(low, high, most);
}

/** @param {number} low @param {number} high @param {number} most @returns {Tick[]} */
function numberMarks(low, high, most) {
  const least = (high - low) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(least));
  const step = power * ([1, 2, 5, 10].find((each) => each * power >= least * (1 - 1e-9)) || 10);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const largest = Math.max(Math.abs(low), Math.abs(high));
  const marks = [];
  for (let i = Math.ceil(low / step - 1e-9) || 0; i * step <= high + 1e-9 * step; i++) {
    const at = i * step || 0;
    const text = largest >= 1e9 || (largest < 1e-4 && largest > 0)
      ? at.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e")
      : at.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits, useGrouping: largest >= 1e4 });
    marks.push({ at, text: text.replace("-", "−") });
    if (marks.length > 50) break;
  }
  return marks;
}

/** Ticks of days since 1970. @param {number} low @param {number} high @param {number} most @returns {Tick[]} */
function dateMarks(low, high, most) {
  const days = (high - low) / Math.max(1, most);
  const iso = (/** @type {number} */ at) => new Date(at * DAY).toISOString();
  if (Math.abs(low) * DAY > 8.6e15 || Math.abs(high) * DAY > 8.6e15) return [];
  const marks = [];
  if (days > 27) {
    const months = [1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1200, 2400, 6000, 12000].find((each) => each * 30.4 >= days) || 24000;
    const first = new Date(low * DAY);
    const start = Math.floor((first.getUTCFullYear() * 12 + first.getUTCMonth()) / months) * months;
    for (let month = start; marks.length < 60; month += months) {
      const moment = new Date(0);
      moment.setUTCFullYear(Math.floor(month / 12), ((month % 12) + 12) % 12, 1);
      const at = moment.getTime() / DAY;
      if (!(at <= high)) break;
      if (at >= low) marks.push({ at, text: months >= 12 ? iso(at).slice(0, -20) : iso(at).slice(0, -17) });
    }
    return marks;
  }
  const whole = [1, 2, 4, 7, 14, 28].find((each) => each >= days) || 28;
  if (days >= 0.6) {
    for (let at = Math.ceil(low / whole) * whole; at <= high; at += whole) marks.push({ at, text: iso(at).slice(0, 10) });
    return marks;
  }
  const minutes = MINUTES.find((each) => each >= days * 1440);
  if (minutes === undefined || days * 1440 < 0.4) {
    return numberMarks((low % 1) * 86400, (low % 1) * 86400 + (high - low) * 86400, most).map(({ at }) => {
      const place = Math.floor(low) + at / 86400;
      return { at: place, text: iso(place).slice(11, 23).replace(/\.?0+$/, "") };
    });
  }
  const step = minutes / 1440;
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) {
    const text = iso(at + 1e-7);
    marks.push({ at, text: text.slice(11, 16) === "00:00" ? text.slice(0, 10) : text.slice(11, 16) });
  }
  return marks;
}

/** Ticks of hours since midnight. @param {number} low @param {number} high @param {number} most @returns {Tick[]} */
function clockMarks(low, high, most) {
  const least = ((high - low) * 60) / Math.max(1, most);
  const step = (MINUTES.find((each) => each >= least) || 720) / 60;
  const marks = [];
  for (let at = Math.ceil(low / step) * step; at <= high + 1e-9; at += step) {
    const minutes = Math.round(at * 60);
    marks.push({ at, text: `${String(Math.floor(minutes / 60)).padStart(2, "0")}:${String(minutes % 60).padStart(2, "0")}` });
  }
  return marks;
}

/** @param {string} text numbers of two bytes, in base64 @returns {Uint16Array} */
export function unpackPositions(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Uint16Array(bytes.buffer, 0, bytes.length >> 1);
}

/** Create an element of a drawing. @param {string} tag @param {Record<string, any>} attributes @param {string} [text] */
export function createShape(tag, attributes, text) {
  const shape = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) shape.setAttribute(name, String(value));
  if (text !== undefined) shape.textContent = text;
  return shape;
}
