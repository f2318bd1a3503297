// The controls of the page of answers: score, bandwidth, neighbours, normalizer, aggregate, filter and distance.

import { createElement, createSelect } from "./dom.js";

/** Create the controls of the settings.
 *  @param {any} meta @param {Record<string, string>} settings which the controls change
 *  @param {() => void} change called after a change */
export function createControls(meta, settings, change) {
  const set = (/** @type {string} */ name) => (/** @type {string} */ value) => {
    settings[name] = value;
    bandwidth?.refresh();
    change();
  };
  /** @param {string} label @param {string} name @param {[string, string][]} options */
  const choice = (label, name, options) => createSelect(label, [["", "automatic"], ...options], settings[name], set(name));
  const named = (/** @type {string} */ label, /** @type {string} */ name, /** @type {string[]} */ names) =>
    choice(label, name, [...new Set([...names, settings[name]])].filter(Boolean).map((one) => [one, one]));
  /** @param {string} label @param {string} name @param {string} placeholder @param {string} type @param {Record<string, any>} [more] attributes */
  const field = (label, name, placeholder, type, more = {}) => {
    const box = createElement("input", {
      type, placeholder, value: settings[name], "data-setting": name, step: "any", min: type === "number" ? 0 : undefined, spellcheck: "false", autocomplete: "off",
      onchange: () => set(name)(box.value.trim() || (name === "top" ? "10" : "")), ...more,
    });
    return createElement("label", { class: "control" }, [createElement("span", { text: label }), box]);
  };
  const bandwidth = meta.bandwidth.length ? createBandwidth(meta, settings, set("bandwidth")) : null;
  bandwidth?.refresh();
  const createNeighbours = () => {
    if (!meta.saved) {
      const whole = (/** @type {any} */ { target: { value } }) => set("neighbours")(Number(value) >= 1 ? String(Math.floor(Number(value))) : "");
      return field("Neighbours", "neighbours", "all", "number", { min: 1, step: 1, onchange: null, oninput: whole });
    }
    const options = meta.saved.neighbours.map((/** @type {string} */ each) => [each, each || "all"]);
    return options.length > 1 ? createSelect("Neighbours", options, settings.neighbours, set("neighbours")) : null;
  };
  const [limit, name] = meta.mode === "typed" ? ["Least similarity", "min_similarity"] : ["Largest distance", "max_distance"];
  const aggregates = /** @type {[string, string][]} */ ([["mean", "mean of the values"], ["vote", "vote"]]);
  if (meta.lines) aggregates.push(["local-linear", "line through the rows"]);
  /** whether an exported page has it, too, the control, and what it means @type {[boolean, (() => HTMLElement | null), string][]} */
  const parts = [
    [false, () => named("Score", "score", meta.scores), meta.kernels.length ? "how the weight falls with the distance" : "how query and key are compared"],
    [true, () => bandwidth && bandwidth.element, "rows within about this distance count"],
    [true, createNeighbours, "rows that may get weight; empty: all that match"],
    [false, () => named("Normalizer", "normalizer", meta.normalizers), "how scores become weights"],
    [false, () => choice("Answer", "aggregate", aggregates), ""],
    [false, () => field("Filter", "where", "SQL", "text"), `SQL predicate, such as ${exampleOf(meta)}`],
    [false, () => field(limit, name, "automatic", "number"), "of a match"],
    [false, () => field("Rows shown", "top", "10", "number"), ""],
  ];
  const groups = parts.filter(([saved]) => saved || !meta.saved).map(([, create, hint]) => [create(), hint && createElement("p", { class: "hint", text: hint })]);
  const shown = groups.filter(([control]) => control).map((children) => createElement("div", { class: "setting" }, /** @type {any} */ (children)));
  return createElement("form", { class: "dials", "aria-label": "settings", onsubmit: (/** @type {Event} */ event) => event.preventDefault() }, shown);
}

/** Return a predicate over the columns of the table. @param {any} meta */
function exampleOf(meta) {
  const quoted = (/** @type {string} */ name) => (/^[a-z_]\w*$/i.test(name) ? name : `"${name}"`);
  const { name, kind, labels, low, span } = meta.value;
  if (labels) return `${quoted(name)} = '${labels[0].replace(/'/g, "''")}'`;
  return kind === "number" ? `${quoted(name)} > ${Number((low + span / 2).toPrecision(2))}` : `${quoted(meta.key_names[0])} is not null`;
}

/** Create a slider of the bandwidth on a logarithmic scale around the chosen one.
 *  @param {any} meta @param {Record<string, string>} settings @param {(text: string) => void} set */
function createBandwidth(meta, settings, set) {
  const automatic = meta.bandwidth[meta.bandwidth.length - 1];
  const middle = Math.exp(meta.bandwidth.reduce((/** @type {number} */ sum, /** @type {number} */ each) => sum + Math.log(each), 0) / meta.bandwidth.length);
  const steps = meta.saved ? meta.saved.bandwidths : null;
  const index = () => Math.max(0, steps.indexOf(settings.bandwidth));
  const place = () => (steps ? index() : settings.bandwidth ? 50 * Math.log2(Number(settings.bandwidth) / middle) : 0);
  const textAt = (/** @type {number} */ at) => (steps ? steps[at] : String(Number((middle * 2 ** (at / 50)).toPrecision(3))));
  const output = createElement("output", {});
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let later;
  const slider = createElement("input", {
    type: "range", min: steps ? 0 : -250, max: steps ? steps.length - 1 : 250, step: steps ? 1 : 5, "aria-label": "Bandwidth",
    oninput: () => {
      const text = textAt(Number(slider.value));
      output.textContent = text || "automatic";
      clearTimeout(later);
      later = setTimeout(() => set(text), 120);
    },
  });
  const reset = createElement("button", { type: "button", text: "Automatic", onclick: () => set("") });
  const unit = meta.keys.length === 1 && meta.keys[0].kind !== "number" ? " days" : "";
  const refresh = () => {
    slider.value = String(place());
    const chosen = meta.bandwidth.length > 1 ? "" : ` (${automatic}${unit})`;
    output.textContent = settings.bandwidth ? settings.bandwidth + unit : `automatic${chosen}`;
    slider.setAttribute("aria-valuetext", output.textContent);
    reset.hidden = !settings.bandwidth;
  };
  const element = createElement("div", { class: "control tall" }, [
    createElement("div", { class: "line" }, [createElement("span", { text: "Bandwidth" }), output, reset]), slider,
  ]);
  return { element, refresh };
}
