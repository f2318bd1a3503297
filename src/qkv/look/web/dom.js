// Small helpers for elements. Text is always set as text: a token can hold anything.

/** Make an element.
 *  @param {string} tag @param {Record<string, any>} [attributes] `text`, `on…` handlers, and attributes
 *  @param {(Node | null)[]} [children] */
export function make(tag, attributes = {}, children = []) {
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

/** A choice with its label.
 *  @param {string} label @param {[string, string][]} options value and name of each
 *  @param {string} chosen @param {(value: string) => void} change */
export function choice(label, options, chosen, change) {
  // Two texts may begin alike: the whole of the chosen one is the tip.
  const tip = () => (select.title = select.selectedOptions[0]?.textContent || "");
  const select = /** @type {HTMLSelectElement} */ (
    make("select", { onchange: () => { tip(); change(select.value); } },
      options.map(([value, text]) => make("option", { value, text, selected: value === chosen })))
  );
  tip();
  return make("label", { class: "control" }, [make("span", { text: label }), select]);
}

/** A check box with its label.
 *  @param {string} label @param {boolean} checked @param {(checked: boolean) => void} change */
export function check(label, checked, change) {
  const box = /** @type {HTMLInputElement} */ (
    make("input", { type: "checkbox", checked, onchange: () => change(box.checked) })
  );
  return make("label", { class: "control" }, [box, make("span", { text: label })]);
}

/** Hand a file to the reader.
 *  @param {string} name @param {BlobPart} content @param {string} type */
export function download(name, content, type) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = make("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** A weight as it is written everywhere.
 *  @param {number} weight */
export function written(weight) {
  return weight >= 0.0005 || weight === 0 ? weight.toFixed(3) : weight.toExponential(1);
}
