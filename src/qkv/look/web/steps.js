// Generated tokens one after the other: which step is looked at, and buttons to the one before and after.

import { make } from "./dom.js";

export class Steps {
  /** @param {(step: number) => void} pick */
  constructor(pick) {
    this.at = 0;
    const go = (/** @type {number} */ by) => () => pick(Math.max(0, Math.min(Number(this.slider.max), this.at + by)));
    this.slider = /** @type {HTMLInputElement} */ (
      make("input", {
        type: "range", min: 0, value: 0, step: 1, "aria-label": "step of generation",
        oninput: () => pick(Number(this.slider.value)),
      })
    );
    this.before = make("button", { text: "◀", "aria-label": "step before", onclick: go(-1) });
    this.after = make("button", { text: "▶", "aria-label": "next step", onclick: go(1) });
    this.said = make("span", {});
    this.element = make("div", { class: "steps", role: "group", "aria-label": "steps of generation" }, [
      this.before, this.slider, this.after, this.said,
    ]);
  }

  /** @param {number} at @param {number} count @param {string} token */
  show(at, count, token) {
    this.at = at;
    this.slider.max = String(count - 1);
    this.slider.value = String(at);
    this.slider.setAttribute("aria-valuetext", `step ${at + 1} of ${count}: ${token}`);
    this.before.toggleAttribute("disabled", at === 0);
    this.after.toggleAttribute("disabled", at === count - 1);
    this.said.textContent = `step ${at + 1} of ${count}: “${token}”`;
  }
}
