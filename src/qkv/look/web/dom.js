// Helpers for DOM elements. Text is always set as text, never as HTML, because a token may hold markup.

/** Create an element.
 *  @param {string} tag @param {Record<string, any>} [attributes] `text`, `on…` handlers, and attributes
 *  @param {(Node | null)[]} [children] */
export function createElement(tag, attributes = {}, children = []) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) if (child) element.append(child);
  return element;
}

/** Create a drop-down list with its label.
 *  @param {string} label @param {[string, string, string?][]} options value and text of each, and its whole text if it is shortened
 *  @param {string} selected @param {(value: string) => void} change @param {string} [style] class of the list */
export function createSelect(label, options, selected, change, style) {
  // The options may be truncated, so the tooltip shows the whole selected text.
  const updateTooltip = () => (select.title = select.selectedOptions[0]?.title || select.selectedOptions[0]?.textContent || "");
  const select = /** @type {HTMLSelectElement} */ (
    createElement("select", { class: style, onchange: () => { updateTooltip(); change(select.value); } },
      options.map(([value, text, title]) => createElement("option", { value, text, title, selected: value === selected })))
  );
  updateTooltip();
  return createElement("label", { class: "control" }, [createElement("span", { text: label }), select]);
}

/** Create a check box with its label.
 *  @param {string} label @param {boolean} checked @param {(checked: boolean) => void} change */
export function createCheckBox(label, checked, change) {
  const box = /** @type {HTMLInputElement} */ (
    createElement("input", { type: "checkbox", checked, onchange: () => change(box.checked) })
  );
  return createElement("label", { class: "control" }, [box, createElement("span", { text: label })]);
}

/** Scroll to an element if less than half of a part of it is visible.
 *  @param {HTMLElement} part @param {HTMLElement} element */
export function scrollIfHidden(part, element) {
  const { top, bottom, height } = part.getBoundingClientRect();
  if (Math.min(bottom, innerHeight) - Math.max(top, 0) >= Math.min(height, innerHeight) / 2) return;
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  element.scrollIntoView({ block: "start", behavior: still ? "auto" : "smooth" });
}

/** Let the browser save a file.
 *  @param {string} name @param {BlobPart} content @param {string} type */
export function download(name, content, type) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = createElement("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
