// Write a drawing as a PDF file with embedded TrueType text.
//
// Characters that the font does not have are drawn as images by a font of the browser.

import { channels } from "./colour.js";
import { drawText, newPen, textWidth } from "./drawing.js";
import { isRightToLeft } from "./text_names.js";

/** The font, from `qkv/look/page.py`: TrueType data in base64, metrics in font units, and the index and the advance of the
 *  glyph of each code point.
 *  @typedef {{data: string, units: number, ascent: number, descent: number, capHeight: number, box: number[],
 *    glyphs: Record<string, [number, number]>}} Font */

/** Pixels per point of characters that are drawn as images. */
const SHARPNESS = 10;

/** @param {import("./drawing.js").Drawing} drawing @param {Font} font */
export async function drawingToPdf(drawing, font) {
  const objects = /** @type {Blob[]} */ ([]);
  const add = async (/** @type {string} */ fields, /** @type {BlobPart | null} */ stream = null) => {
    objects.push(stream === null ? new Blob([`<<${fields}>>`]) : await streamObject(fields, stream));
    return objects.length;
  };
  const file = await add(`/Length1 ${atob(font.data).length}`, Uint8Array.from(atob(font.data), (letter) => letter.charCodeAt(0)));
  const perMille = (/** @type {number} */ units) => Math.round((1000 * units) / font.units);
  const name = "/QKVDEJ+DejaVuSans";
  const descriptor = await add(`/Type/FontDescriptor/FontName${name}/Flags 4/FontBBox[${font.box.map(perMille).join(" ")}]/ItalicAngle 0/Ascent ${perMille(font.ascent)}/Descent ${perMille(font.descent)}/CapHeight ${perMille(font.capHeight)}/StemV 80/FontFile2 ${file} 0 R`);
  const glyphs = Object.entries(font.glyphs).map(([code, [glyph, advance]]) => ({ code: Number(code), glyph, advance })).sort((a, b) => a.glyph - b.glyph);
  const widths = glyphs.map(({ glyph, advance }) => `${glyph}[${perMille(advance)}]`).join("");
  const single = await add(`/Type/Font/Subtype/CIDFontType2/BaseFont${name}/CIDSystemInfo<</Registry(Adobe)/Ordering(Identity)/Supplement 0>>/FontDescriptor ${descriptor} 0 R/W[${widths}]/CIDToGIDMap/Identity`);
  const unicode = await add("", unicodeMap(glyphs));
  const type0 = await add(`/Type/Font/Subtype/Type0/BaseFont${name}/Encoding/Identity-H/DescendantFonts[${single} 0 R]/ToUnicode ${unicode} 0 R`);
  const images = /** @type {number[]} */ ([]);
  const addImage = async (/** @type {HTMLCanvasElement} */ canvas) => {
    const { data } = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d")).getImageData(0, 0, canvas.width, canvas.height);
    images.push(await add(`/Type/XObject/Subtype/Image/Width ${canvas.width}/Height ${canvas.height}/ColorSpace/DeviceRGB/BitsPerComponent 8`, new Uint8Array(data.filter((_, i) => i % 4 < 3))));
    return `/I${images.length - 1} Do`;
  };
  const content = [`${pdfColour(drawing.paper)} rg 0 0 ${pdfNumber(drawing.width)} ${pdfNumber(drawing.height)} re f ${pdfColour(drawing.ink)} rg 0.4 w`];
  for (const item of drawing.items) content.push(await operators(item, drawing, font, addImage));
  const page = await add("", content.join("\n"));
  const xobjects = images.map((image, i) => `/I${i} ${image} 0 R`).join("");
  const leaf = objects.length + 1;
  await add(`/Type/Page/Parent ${leaf + 1} 0 R/MediaBox[0 0 ${pdfNumber(drawing.width)} ${pdfNumber(drawing.height)}]/Contents ${page} 0 R/Resources<</Font<</F0 ${type0} 0 R>>/XObject<<${xobjects}>>>>`);
  await add(`/Type/Pages/Kids[${leaf} 0 R]/Count 1`);
  const catalog = await add(`/Type/Catalog/Pages ${leaf + 1} 0 R`);
  const info = await add(`/Title<FEFF${hexOf(drawing.title)}>/Producer(qkv look)`);
  return new Blob(fileParts(objects, catalog, info), { type: "application/pdf" });
}

/** Return the parts of a PDF file with a table of the positions of its objects.
 *  @param {Blob[]} objects @param {number} catalog @param {number} info */
function fileParts(objects, catalog, info) {
  const parts = [new Blob(["%PDF-1.5\n%\xe2\xe3\xcf\xd3\n"])]; // letters above 127, as of a binary file
  let position = parts[0].size;
  const table = objects.map((object, i) => {
    const start = position;
    parts.push(new Blob([`${i + 1} 0 obj\n`, object, "\nendobj\n"]));
    position += parts[i + 1].size;
    return `${String(start).padStart(10, "0")} 00000 n \n`;
  });
  const size = objects.length + 1;
  parts.push(new Blob([`xref\n0 ${size}\n0000000000 65535 f \n${table.join("")}trailer\n<</Size ${size}/Root ${catalog} 0 R/Info ${info} 0 R>>\nstartxref\n${position}\n%%EOF\n`]));
  return parts;
}

/** Return the operators that draw an item. PDF counts `y` upwards.
 *  @param {import("./drawing.js").Text | import("./drawing.js").Picture | import("./drawing.js").Shape} item
 *  @param {import("./drawing.js").Drawing} drawing @param {Font} font @param {(canvas: HTMLCanvasElement) => Promise<string>} addImage */
async function operators(item, { height, paper, ink }, font, addImage) {
  if (item.kind === "image") {
    return `q ${pdfNumber(item.width)} 0 0 ${pdfNumber(item.height)} ${pdfNumber(item.x)} ${pdfNumber(height - item.y - item.height)} cm ${await addImage(item.canvas)} Q`;
  }
  if (item.kind === "shape") {
    const path = item.points.map(([x, y], i) => `${pdfNumber(x)} ${pdfNumber(height - y)} ${i ? "l" : "m"}`).join(" ");
    const fill = item.fill ? `${pdfColour(item.fill)} rg ` : "";
    const stroke = item.stroke ? `${pdfColour(item.stroke)} RG ` : "";
    return `q ${fill}${stroke}${path} h ${fill && stroke ? "B" : fill ? "f" : "S"} Q`;
  }
  const codes = Array.from(item.text, (letter) => font.glyphs[/** @type {number} */ (letter.codePointAt(0))]);
  const known = codes.every(Boolean) && !isRightToLeft(item.text); // The browser orders and joins the letters.
  const width = known ? codes.reduce((sum, [, advance]) => sum + (advance * item.size) / font.units, 0) : textWidth(item.text, item.size);
  const back = { start: 0, middle: width / 2, end: width }[item.anchor];
  if (known) {
    const hex = codes.map(([glyph]) => glyph.toString(16).padStart(4, "0")).join("");
    const drop = 0.35 * item.size;
    // Letters are drawn from the baseline; rotated texts run upwards.
    const matrix = item.rotated ? `0 1 -1 0 ${pdfNumber(item.x + drop)} ${pdfNumber(height - item.y - back)}` : `1 0 0 1 ${pdfNumber(item.x - back)} ${pdfNumber(height - item.y - drop)}`;
    const text = `BT /F0 ${item.size} Tf ${matrix} Tm <${hex}> Tj ET`;
    return item.fill ? `q ${pdfColour(item.fill)} rg ${text} Q` : text;
  }
  const tall = 1.4 * item.size;
  const pen = newPen(Math.ceil(width * SHARPNESS) + 2, Math.ceil(tall * SHARPNESS));
  const { canvas } = pen;
  pen.fillStyle = paper;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.scale(SHARPNESS, SHARPNESS);
  drawText(pen, { ...item, x: 0, y: tall / 2, anchor: "start", rotated: false }, ink);
  const [wide, high] = [canvas.width / SHARPNESS, canvas.height / SHARPNESS];
  const matrix = item.rotated
    ? `0 ${pdfNumber(wide)} ${pdfNumber(-high)} 0 ${pdfNumber(item.x + high / 2)} ${pdfNumber(height - item.y - back)}`
    : `${pdfNumber(wide)} 0 0 ${pdfNumber(high)} ${pdfNumber(item.x - back)} ${pdfNumber(height - item.y - high / 2)}`;
  return `q ${matrix} cm ${await addImage(canvas)} Q`;
}

/** Return the table from which readers copy and search text. @param {{code: number, glyph: number}[]} glyphs */
function unicodeMap(glyphs) {
  const lines = glyphs.map(({ code, glyph }) => `<${glyph.toString(16).padStart(4, "0")}> <${hexOf(String.fromCodePoint(code))}>`);
  const blocks = [];
  for (let i = 0; i < lines.length; i += 100) {
    const block = lines.slice(i, i + 100);
    blocks.push(`${block.length} beginbfchar\n${block.join("\n")}\nendbfchar`);
  }
  return `/CIDInit /ProcSet findresource begin
12 dict begin
begincmap
/CIDSystemInfo <</Registry (Adobe) /Ordering (UCS) /Supplement 0>> def
/CMapName /Adobe-Identity-UCS def
/CMapType 2 def
1 begincodespacerange
<0000> <FFFF>
endcodespacerange
${blocks.join("\n")}
endcmap
CMapName currentdict /CMap defineresource pop
end
end`;
}

/** @param {string} fields @param {BlobPart} stream */
async function streamObject(fields, stream) {
  const packed = await new Response(new Blob([stream]).stream().pipeThrough(new CompressionStream("deflate"))).blob();
  return new Blob([`<<${fields}/Filter/FlateDecode/Length ${packed.size}>>\nstream\n`, packed, "\nendstream"]);
}

/** @param {string} text @returns {string} its UTF-16 code units */
function hexOf(text) {
  return text.split("").map((letter) => letter.charCodeAt(0).toString(16).padStart(4, "0")).join("");
}

/** @param {number} value */
function pdfNumber(value) {
  return Number(value.toFixed(3));
}

/** Return a CSS colour as three shares of 1. @param {string} css */
function pdfColour(css) {
  return channels(css).map((part) => (part / 255).toFixed(3)).join(" ");
}
