// Drawings of text, images and lines in points (1/72 inch), saved as SVG, PNG or PDF with the same layout.

/** A text; rotated texts run upwards. `y` is the middle of the line.
 *  @typedef {{kind: "text", x: number, y: number, text: string, size: number, anchor: "start" | "middle" | "end", rotated?: boolean, bold?: boolean, fill?: string}} Text */
/** An image, whose pixels stay sharp. @typedef {{kind: "image", x: number, y: number, width: number, height: number, canvas: HTMLCanvasElement}} Picture */
/** A closed outline, filled or drawn. @typedef {{kind: "shape", points: [number, number][], fill?: string, stroke?: string}} Shape */
/** @typedef {{width: number, height: number, title: string, paper: string, ink: string, items: (Text | Picture | Shape)[]}} Drawing */

const PNG_DPI = 300;
/** The chunk of a PNG file that states this resolution, 11,811 pixels per metre, with its checksum. */
const RESOLUTION = Uint8Array.of(0, 0, 0, 9, 0x70, 0x48, 0x59, 0x73, 0, 0, 0x2e, 0x23, 0, 0, 0x2e, 0x23, 1, 0x78, 0xa5, 0x3f, 0x76);
/** Least resolution of the images of SVG files, so that their cells have sharp edges in viewers that blend pixels. */
const SVG_DPI = 600;
const LINE = 0.4;
const FAMILY = '"DejaVu Sans", "Segoe UI", Arial, sans-serif';

const ruler = newPen(1, 1);

/** Return the pen of a new canvas. @param {number} width @param {number} height in pixels */
export function newPen(width, height) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, height];
  return /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
}

/** Give a canvas its size on the screen, or another one in CSS pixels, and return its pen, which draws in CSS pixels.
 *  @param {HTMLCanvasElement} canvas @param {number} [width] @param {number} [height] */
export function screenPen(canvas, width = canvas.clientWidth, height = canvas.clientHeight) {
  const ratio = window.devicePixelRatio || 1;
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  pen.scale(ratio, ratio);
  return pen;
}

/** Return a function that draws on a canvas in the next frame, unless nothing is shown or the canvas is hidden; it draws again when the
 *  canvas has changed its size. The canvas counts in its data how often it was drawn.
 *  @template T @param {HTMLCanvasElement} canvas @param {() => T | null} shown @param {(shown: T) => void} draw */
export function drawInFrames(canvas, shown, draw) {
  let frame = 0;
  const later = () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      const own = shown();
      if (own === null || !canvas.clientWidth) return;
      draw(own);
      canvas.dataset.drawn = String(Number(canvas.dataset.drawn || 0) + 1);
    });
  };
  new ResizeObserver(later).observe(canvas);
  return later;
}

/** Return a canvas with an image, or with some of its rows. @param {ImageData} image @param {number} [top] @param {number} [height] */
export function imageCanvas(image, top = 0, height = image.height) {
  const pen = newPen(image.width, height);
  pen.putImageData(image, 0, -top);
  return pen.canvas;
}

/** Return the width of a text in points. @param {string} text @param {number} size in points */
export function textWidth(text, size) {
  ruler.font = `100px ${FAMILY}`;
  return (ruler.measureText(text).width * size) / 100;
}

/** Return the text, or its beginning with an ellipsis, with at most `width` points. @param {string} text @param {number} size @param {number} width */
export function fitText(text, size, width) {
  if (textWidth(text, size) <= width) return text;
  const letters = Array.from(text);
  let [low, high] = [0, letters.length];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (textWidth(`${letters.slice(0, middle).join("")}…`, size) <= width) low = middle;
    else high = middle - 1;
  }
  return `${letters.slice(0, low).join("")}…`;
}

/** Break a text into lines of at most `width` points. @param {string} text @param {number} size @param {number} width */
export function wrapText(text, size, width) {
  const lines = /** @type {string[]} */ ([]);
  for (const word of text.split(" ")) {
    const longer = lines.length ? `${lines[lines.length - 1]} ${word}` : word;
    if (lines.length && textWidth(longer, size) <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

/** @param {number} x @param {number} y @param {number} width @param {number} height @returns {[number, number][]} */
export function corners(x, y, width, height) {
  return [[x, y], [x + width, y], [x + width, y + height], [x, y + height]];
}

/** @param {string} text */
function escapeXml(text) {
  // Control characters are not allowed in XML.
  return text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd").replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
}

/** Return a drawing as SVG, whose texts are text elements. @param {Drawing} drawing */
export function drawingToSvg({ width, height, title, paper, ink, items }) {
  const short = (/** @type {number} */ number) => Number(number.toFixed(2));
  const parts = items.map((item) => {
    if (item.kind === "image") {
      return `<image x="${short(item.x)}" y="${short(item.y)}" width="${short(item.width)}" height="${short(item.height)}" preserveAspectRatio="none" image-rendering="pixelated" href="${enlarged(item).toDataURL()}"/>`;
    }
    if (item.kind === "shape") {
      const points = item.points.map((point) => point.map(short).join(",")).join(" ");
      return `<polygon points="${points}" fill="${item.fill || "none"}"${item.stroke ? ` stroke="${item.stroke}" stroke-width="${LINE}"` : ""}/>`;
    }
    const place = item.rotated ? `transform="translate(${short(item.x)} ${short(item.y)}) rotate(-90)"` : `x="${short(item.x)}" y="${short(item.y)}"`;
    return `<text ${place} font-size="${short(item.size)}" text-anchor="${item.anchor}"${item.bold ? ' font-weight="700"' : ""}${item.fill ? ` fill="${item.fill}"` : ""} dy="0.35em">${escapeXml(item.text)}</text>`;
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${short(width / 72)}in" height="${short(height / 72)}in" viewBox="0 0 ${short(width)} ${short(height)}" font-family="${escapeXml(FAMILY)}" fill="${ink}" xml:space="preserve">
<title>${escapeXml(title)}</title>
<rect width="100%" height="100%" fill="${paper}"/>
${parts.join("\n")}
</svg>
`;
}

/** Return an image of which each pixel covers the same number of pixels. @param {Picture} item */
function enlarged({ width, height, canvas }) {
  const times = (/** @type {number} */ points, /** @type {number} */ pixels) => pixels * Math.ceil(((points / 72) * SVG_DPI) / pixels);
  const pen = newPen(times(width, canvas.width), times(height, canvas.height));
  pen.imageSmoothingEnabled = false;
  pen.drawImage(canvas, 0, 0, pen.canvas.width, pen.canvas.height);
  return pen.canvas;
}

/** Draw a drawing on a new canvas. @param {Drawing} drawing @param {number} dpi pixels per inch */
export function drawingToCanvas({ width, height, paper, ink, items }, dpi) {
  const pen = newPen(Math.round((width / 72) * dpi), Math.round((height / 72) * dpi));
  pen.scale(pen.canvas.width / width, pen.canvas.height / height);
  paintItems(pen, [{ kind: "shape", points: corners(0, 0, width, height), fill: paper }, ...items], ink, LINE);
  return pen.canvas;
}

/** Draw items. @param {CanvasRenderingContext2D} pen @param {Drawing["items"]} items @param {string} ink @param {number} line its width */
export function paintItems(pen, items, ink, line) {
  pen.imageSmoothingEnabled = false;
  pen.lineWidth = line;
  for (const item of items) {
    if (item.kind === "image") pen.drawImage(item.canvas, item.x, item.y, item.width, item.height);
    else if (item.kind === "text") drawText(pen, item, ink);
    else {
      pen.beginPath();
      for (const [x, y] of item.points) pen.lineTo(x, y);
      pen.closePath();
      if (item.fill) {
        pen.fillStyle = item.fill;
        pen.fill();
      }
      if (item.stroke) {
        pen.strokeStyle = item.stroke;
        pen.stroke();
      }
    }
  }
}

/** @param {CanvasRenderingContext2D} pen @param {Text} item @param {string} ink */
function drawText(pen, { x, y, text, size, anchor, rotated, bold, fill }, ink) {
  pen.save();
  pen.translate(x, y);
  if (rotated) pen.rotate(-Math.PI / 2);
  pen.font = `${bold ? "700 " : ""}${size}px ${FAMILY}`;
  pen.fillStyle = fill || ink;
  pen.textAlign = /** @type {CanvasTextAlign} */ ({ start: "left", middle: "center", end: "right" }[anchor]);
  pen.fillText(text, 0, 0.35 * size);
  pen.restore();
}

/** Return an image of a drawing with the resolution in its metadata, so that it has its width in inches. @param {Drawing} drawing */
export async function drawingToPng(drawing) {
  const blob = /** @type {Blob} */ (await new Promise((resolve) => drawingToCanvas(drawing, PNG_DPI).toBlob(resolve)));
  // The first chunk, with the size of the image, is at bytes 8 to 33.
  return new Blob([blob.slice(0, 33), RESOLUTION, blob.slice(33)], { type: "image/png" });
}
