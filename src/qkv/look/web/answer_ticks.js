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

/** Return ticks at multiples of a step. @param {number} low @param {number} high @param {number} step
 *  @param {(at: number) => string} text @returns {Tick[]} */
function marksAt(low, high, step, text) {
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.max(0, Math.min(60, Math.floor(high / step + 1e-9) - first + 1)) || 0;
  return Array.from({ length: count }, (_, i) => (first + i) * step || 0).map((at) => ({ at, text: text(at) }));
}

/** @param {number} low @param {number} high @param {number} most @returns {Tick[]} */
function numberMarks(low, high, most) {
  const least = (high - low) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(least));
  const step = power * ([1, 2, 5, 10].find((each) => each * power >= least * (1 - 1e-9)) || 10);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const largest = Math.max(Math.abs(low), Math.abs(high));
  const decades = Math.floor(Math.log10(largest)) - Math.floor(Math.log10(step) + 1e-9);
  return marksAt(low, high, step, (at) => {
    const text = largest >= 1e9 || (largest < 1e-4 && largest > 0)
      ? at.toExponential(Math.max(0, Math.min(15, decades))).replace(/(?:\.0+|(\.\d+?)0+)?e\+?/, "$1e")
      : at.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits, useGrouping: largest >= 1e4 });
    return text.replace("-", "−");
  });
}

/** Ticks of days since 1970. @param {number} low @param {number} high @param {number} most @returns {Tick[]} */
function dateMarks(low, high, most) {
  const days = (high - low) / Math.max(1, most);
  const iso = (/** @type {number} */ at) => new Date(at * DAY).toISOString();
  if (Math.abs(low) * DAY > 8.6e15 || Math.abs(high) * DAY > 8.6e15) return [];
  if (days > 27) {
    const months = [1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1200, 2400, 6000, 12000].find((each) => each * 30.4 >= days) || 24000;
    const first = new Date(low * DAY);
    const start = Math.floor((first.getUTCFullYear() * 12 + first.getUTCMonth()) / months) * months;
    const places = Array.from({ length: 62 }, (_, i) => new Date(0).setUTCFullYear(0, start + i * months, 1) / DAY);
    return places.filter((at) => at >= low && at <= high).map((at) => ({ at, text: iso(at).slice(0, months >= 12 ? -20 : -17) }));
  }
  if (days * 1440 < 0.4) {
    return numberMarks((low % 1) * 86400, (low % 1) * 86400 + (high - low) * 86400, most).map(({ at }) => {
      const place = Math.floor(low) + at / 86400;
      return { at: place, text: iso(place).slice(11, 23).replace(/\.?0+$/, "") };
    });
  }
  const step = [...MINUTES.map((each) => each / 1440), 1, 2, 4, 7, 14, 28].find((each) => each >= days) || 28;
  return marksAt(low, high, step, (at) => {
    const text = iso(at + 1e-7);
    return text.slice(11, 16) === "00:00" ? text.slice(0, 10) : text.slice(11, 16);
  });
}

/** Ticks of hours since midnight. @param {number} low @param {number} high @param {number} most @returns {Tick[]} */
function clockMarks(low, high, most) {
  const least = ((high - low) * 60) / Math.max(1, most);
  return marksAt(low, high, (MINUTES.find((each) => each >= least) || 720) / 60, (at) => {
    const minutes = Math.round(at * 60);
    return [Math.floor(minutes / 60), minutes % 60].map((part) => String(part).padStart(2, "0")).join(":");
  });
}
