// Helpers for DOM elements. Text is always set as text, never as HTML, because a token may hold markup.

/** Create an element. @template {keyof HTMLElementTagNameMap} T
 *  @param {T} tag @param {Record<string, any>} [attributes] `text`, `style` with the names of properties, `on…` handlers, and attributes
 *  @param {(Node | null)[]} [children] @returns {HTMLElementTagNameMap[T]} */
export function createElement(tag, attributes = {}, children = []) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name === "style") Object.assign(element.style, value);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) if (child) element.append(child);
  return element;
}

/** Create an element of a drawing. @param {string} tag @param {Record<string, any>} attributes @param {string} [text] */
export function createShape(tag, attributes, text) {
  const shape = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) shape.setAttribute(name, String(value));
  if (text !== undefined) shape.textContent = text;
  return shape;
}

/** Create a button. @param {string} text @param {() => void} onclick @param {Record<string, any>} [more] attributes */
export const createButton = (text, onclick, more = {}) => createElement("button", { class: "ask", text, onclick, ...more });

/** Return the place to which a key moves in a list; undefined: none. @param {KeyboardEvent} event @param {number} at @param {number} last
 *  @returns {number | undefined} */
export function placeOfKey({ key }, at, last) {
  return { ArrowLeft: at - 1, ArrowUp: at - 1, ArrowRight: at + 1, ArrowDown: at + 1, Home: 0, End: last }[key];
}

/** Create a drop-down list with its label.
 *  @param {string} label @param {[string, string, string?][]} options value and text of each, and its whole text if it is shortened
 *  @param {string} selected @param {(value: string) => void} change @param {string} [style] class of the list */
export function createSelect(label, options, selected, change, style) {
  const select = createElement("select", { class: style, onchange: () => { updateTooltip(select); change(select.value); } });
  const control = createElement("label", { class: "control" }, [createElement("span", { text: label }), select]);
  fillSelect(control, options, selected);
  return control;
}

/** Replace the options of a drop-down list, which keeps the focus.
 *  @param {HTMLElement} control from `createSelect` @param {[string, string, string?][]} options @param {string} selected */
export function fillSelect(control, options, selected) {
  const select = /** @type {HTMLSelectElement} */ (control.querySelector("select"));
  // Styles are computed again for new options.
  const same = select.length === options.length && options.every(([value, text], i) => select.options[i].value === value && select.options[i].text === text);
  if (!same) select.replaceChildren(...options.map(([value, text, title]) => createElement("option", { value, text, title })));
  select.selectedIndex = Math.max(0, options.findIndex(([value]) => value === selected));
  updateTooltip(select);
}

/** Show the whole selected text as a tooltip, because options may be truncated. @param {HTMLSelectElement} select */
function updateTooltip(select) {
  select.title = select.selectedOptions[0]?.title || select.selectedOptions[0]?.textContent || "";
}

/** Create a check box with its label. @param {string} label @param {boolean} checked @param {(checked: boolean) => void} change */
export function createCheckBox(label, checked, change) {
  const box = createElement("input", { type: "checkbox", checked, onchange: () => change(box.checked) });
  return createElement("label", { class: "control" }, [box, createElement("span", { text: label })]);
}

/** Create a section that is opened and closed, and that this browser remembers where it stores anything.
 *  @param {string} name of the section @param {string} title @param {(Node | null)[]} children */
export function createSection(name, title, children) {
  const stored = (/** @type {(store: Storage) => string | null | void} */ use) => {
    try {
      return use(localStorage);
    } catch {
      return null; // such as in a frame of another site
    }
  };
  const open = stored((store) => store.getItem(`qkv-look-${name}`)) === "open";
  const section = createElement("details", {
    class: name, open, ontoggle: () => stored((store) => store.setItem(`qkv-look-${name}`, section.open ? "open" : "closed")),
  }, [createElement("summary", { text: title }), createElement("div", {}, children)]);
  return section;
}

/** Create a table with a caption and a heading.
 *  @param {string} caption @param {string[]} titles of the columns @param {HTMLElement[]} rows @param {(string | undefined)[]} [styles] classes of the titles */
export function createTable(caption, titles, rows, styles = []) {
  return createElement("table", {}, [
    createElement("caption", { text: caption }),
    createElement("thead", {}, [createElement("tr", {}, titles.map((text, i) => createElement("th", { scope: "col", text, class: styles[i] })))]),
    createElement("tbody", {}, rows),
  ]);
}

/** Select an element of a list in place of another one, whose focus moves along.
 *  @param {HTMLElement | undefined} before @param {HTMLElement | undefined} selected */
export function moveSelection(before, selected) {
  const focused = before === document.activeElement;
  before?.setAttribute("tabindex", "-1");
  before?.removeAttribute("aria-selected");
  selected?.setAttribute("tabindex", "0");
  selected?.setAttribute("aria-selected", "true");
  if (focused) selected?.focus();
}

/** Scroll to an element if less than half of a part of it is visible. @param {HTMLElement} part @param {HTMLElement} element */
export function scrollIfHidden(part, element) {
  const { top, bottom, height } = part.getBoundingClientRect();
  if (Math.min(bottom, innerHeight) - Math.max(top, 0) >= Math.min(height, innerHeight) / 2) return;
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  element.scrollIntoView({ block: "start", behavior: still ? "auto" : "smooth" });
}

/** Let the browser save a file. @param {string} name @param {BlobPart} content @param {string} type */
export function download(name, content, type) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = createElement("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** Note the width of an element, in pixels and as "narrow", "medium" or "wide", for the style sheet, whenever it changes.
 *  @param {HTMLElement} element */
export function followWidth(element) {
  if (element.dataset.width) return; // it is followed already
  const note = () => {
    // A widget is rendered before it is placed in the document.
    const width = element.clientWidth || innerWidth;
    element.style.setProperty("--width", `${width}px`);
    element.dataset.width = width >= 900 ? "wide" : width <= 480 ? "narrow" : "medium";
  };
  note();
  new ResizeObserver(note).observe(element);
}
