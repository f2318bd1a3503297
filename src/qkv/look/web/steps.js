// Controls for the steps of generation: a slider over the generated tokens, and buttons for the previous and next step.

import { createElement } from "./dom.js";
import { quoted } from "./text_names.js";

export class Steps {
  /** @param {(step: number) => void} onSelect */
  constructor(onSelect) {
    const go = (/** @type {number} */ by) => () => onSelect(Number(this.slider.value) + by);
    this.slider = createElement("input", { type: "range", min: 0, value: 0, step: 1, "aria-label": "step of generation", oninput: go(0) });
    this.previous = createElement("button", { text: "◀", "aria-label": "previous step", onclick: go(-1) });
    this.next = createElement("button", { text: "▶", "aria-label": "next step", onclick: go(1) });
    this.label = createElement("span", {});
    this.element = createElement("div", { class: "steps", role: "group", "aria-label": "steps of generation" }, [
      this.previous, this.slider, this.next, this.label,
    ]);
  }

  /** @param {number} at @param {number} count @param {string} token */
  show(at, count, token) {
    this.slider.max = String(count - 1);
    this.slider.value = String(at);
    this.slider.setAttribute("aria-valuetext", `step ${at + 1} of ${count}: ${token}`);
    this.previous.toggleAttribute("disabled", at === 0);
    this.next.toggleAttribute("disabled", at === count - 1);
    this.label.textContent = `step ${at + 1} of ${count}: ${quoted(token)}`;
  }
}
