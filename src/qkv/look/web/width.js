// The layout depends on the width of the page's element, which may be a narrow column of a notebook in a wide window.

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
