// The layout depends on the width of the page's element, which may be a narrow column of a notebook in a wide window.

const OBSERVERS = /** @type {WeakMap<HTMLElement, ResizeObserver>} */ (new WeakMap());

/** Note the width of an element, in pixels and as "narrow", "medium" or "wide", for the style sheet, whenever it changes.
 *  @param {HTMLElement} element */
export function followWidth(element) {
  const note = () => {
    // A widget is rendered before it is placed in the document.
    const width = element.clientWidth || innerWidth;
    element.style.setProperty("--width", `${width}px`);
    element.dataset.width = width >= 900 ? "wide" : width <= 480 ? "narrow" : "medium";
  };
  note();
  if (OBSERVERS.has(element)) return;
  const observer = new ResizeObserver(note);
  observer.observe(element);
  OBSERVERS.set(element, observer);
}
