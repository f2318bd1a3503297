// The parts of an exported file: gzip in text with seven bits in each letter, as `qkv/look/html_export.py` writes it.

/** The letters that stand for 128 and above, which HTML does not preserve. */
const REPLACED = [0, 13, 60];

/** Return the bytes of a part. @param {string} text */
export async function unpack(text) {
  const packed = new Uint8Array((text.length * 7) >> 3);
  for (let i = 0, at = 0, bits = 0, count = 0; i < text.length; i++) {
    const letter = text.charCodeAt(i);
    bits = ((bits & 127) << 7) | (letter < 128 ? letter : REPLACED[letter - 128]);
    count += 7;
    if (count >= 8) packed[at++] = bits >> (count -= 8);
  }
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Return the text of a part of this file; empty: there is none. @param {string} name */
export const partOf = (name) => document.getElementById(name)?.textContent || "";

const opened = /** @type {Map<string, Promise<any>>} */ (new Map());

/** Unpack and read a part of this file on first use.
 *  @template T @param {string} name @param {(bytes: Uint8Array) => T} read @returns {Promise<T>} */
export function openPart(name, read) {
  if (!opened.has(name)) opened.set(name, unpack(partOf(name)).then(read));
  return /** @type {Promise<any>} */ (opened.get(name));
}

/** Parse the bytes of a JSON text. @param {Uint8Array} bytes */
export function fromJson(bytes) {
  return JSON.parse(new TextDecoder().decode(bytes));
}

/** Return words of some bytes each, from the lowest bytes of all words followed by the higher ones.
 *  @param {Uint8Array} planes @param {number} size bytes of a word */
export function interleave(planes, size) {
  const count = planes.length / size;
  const words = new Uint8Array(planes.length);
  for (let byte = 0; byte < size; byte++) for (let i = 0; i < count; i++) words[size * i + byte] = planes[byte * count + i];
  return words;
}

/** @param {string} text numbers of two bytes, in base64 @returns {Uint16Array} */
export function unpackPositions(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Uint16Array(bytes.buffer, 0, bytes.length >> 1);
}
