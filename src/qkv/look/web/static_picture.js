// The static picture beside the widget of a notebook. It is shown until the kernel answers, and so in saved notebooks.

/** Hide the widget until `show` is called, which hides the picture instead.
 *  @param {HTMLElement} el of the widget @param {string} tail the last characters of the picture in base64; empty: there is none
 *  @returns {() => void} show */
export function besidePicture(el, tail) {
  if (!tail) return () => {};
  // Its width remains, so that the page is laid out as if it were visible.
  Object.assign(el.style, { height: "0", overflow: "hidden", padding: "0" });
  let shown = false;
  const hide = () => {
    for (const image of Array.from(document.images)) {
      if (!image.src.startsWith("data:image/png") || !image.src.trimEnd().endsWith(tail)) continue;
      /** @type {HTMLElement} */ (image.closest(".jp-OutputArea-child, .output_area") || image).style.display = "none";
    }
  };
  return () => {
    if (shown) return;
    shown = true;
    Object.assign(el.style, { height: "", overflow: "", padding: "" });
    // The host may add the picture after the widget.
    for (const wait of [0, 500, 3000]) setTimeout(hide, wait);
  };
}
