// Two fingers on a map zoom and pan it. One finger pans a map that is zoomed in, and otherwise scrolls the page.

/** Smallest change of the distance between the fingers, as a logarithm, that zooms. Maps show whole tokens. */
const ZOOM_STEP = 0.15;

export class Pinch {
  /** @param {HTMLElement} element
   *  @param {(factor: number, x: number, y: number) => void} zoom gets how many times farther apart the fingers are, and
   *    the point of the window between them
   *  @param {(x: number, y: number) => boolean} pan gets how many pixels the fingers moved, and returns false if these
   *    are too few to move the map */
  constructor(element, zoom, pan) {
    /** whether two fingers are on the element */
    this.active = false;
    let [factor, x, y] = [1, 0, 0];
    let last = { distance: 1, x: 0, y: 0 };
    const read = (/** @type {TouchEvent} */ event) => {
      const [a, b] = [event.touches[0], event.touches[1]];
      const distance = Math.max(1, Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY));
      return { distance, x: (a.clientX + b.clientX) / 2, y: (a.clientY + b.clientY) / 2 };
    };
    const start = (/** @type {TouchEvent} */ event) => {
      this.active = event.touches.length === 2;
      if (!this.active) return;
      if (event.cancelable) event.preventDefault();
      [factor, x, y] = [1, 0, 0];
      last = read(event);
    };
    element.addEventListener("touchstart", start, { passive: false });
    element.addEventListener("touchmove", (event) => {
      if (!this.active || event.touches.length !== 2) return;
      event.preventDefault();
      const now = read(event);
      [factor, x, y] = [(factor * now.distance) / last.distance, x + now.x - last.x, y + now.y - last.y];
      last = now;
      if (Math.abs(Math.log(factor)) > ZOOM_STEP) {
        zoom(factor, now.x, now.y);
        factor = 1;
      }
      if (pan(x, y)) [x, y] = [0, 0];
    }, { passive: false });
    for (const end of ["touchend", "touchcancel"]) element.addEventListener(end, (event) => start(/** @type {TouchEvent} */ (event)));
  }
}
