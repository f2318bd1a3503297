// Sources of maps: a server, an exported file, or the kernel of a notebook. Each source returns bytes.

/** @typedef {Object} Source
 *  @property {(view: number) => Promise<Uint8Array>} thumbnails thumbnails of all heads of a view
 *  @property {(view: number, layer: number, head: number) => Promise<Uint8Array>} map all codes of a head
 *  @property {(view: number, layer: number, head: number, level: number, y: number, x: number)
 *    => Promise<Uint8Array>} [tile] codes of one tile: maximum, then mean
 *  @property {(view: number, layer: number, head: number, query: number) => Promise<any>} [row]
 *  @property {(view: number, layer: number, head: number) => Promise<Uint8Array>} [counts] number of keys of each query,
 *    four bytes each
 *  @property {() => Promise<import("./pdf.js").Font>} font the font of PDF files
 *  @property {(view: number) => Promise<Uint8Array>} [pixels] red, green and blue of the image of a view
 *  @property {(view: number, query: number, key: number) => Promise<number>} [flow] attention flow of a pair of tokens
 *  @property {(view: number, start: number, stop: number) => Promise<Uint8Array>} rows codes of some queries in all heads
 *  @property {(view: number, layer: number) => Promise<number[][]>} valueNorms norms of the values, heads × keys
 *  @property {(view: number) => Promise<any>} predictions predicted tokens of all queries
 *  @property {(view: number, other: number) => Promise<[number, number, number][]>} [differences] layer, head and distance
 *    of the heads that differ most between two views
 *  @property {(view: number, other: number) => Promise<number[][]>} [pairDifferences] layer, head, query, key and both
 *    weights of the pairs that differ most between two views
 *  @property {(view: number, query: number, heads: [number, number, number][]) => Promise<any>} [effect] of scaled heads,
 *    given by layer, head and percent
 *  @property {(view: number, layer: number, head: number, query: number, key: number) => Promise<any>} [pair] query and key
 *    vector of a pair
 *  @property {(view: number, layer: number, head: number, query: number, key: number) => Promise<string>} [weight] of a
 *    pair with all digits */

/** @param {string} base base address of the page @returns {Source} */
export function fromServer(base) {
  const bytes = async (/** @type {string} */ path) => {
    const answer = await fetch(`${base}${path}`);
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
    return new Uint8Array(await answer.arrayBuffer());
  };
  return {
    thumbnails: (view) => bytes(`thumbnails/${view}`),
    map: (view, layer, head) => bytes(`map/${view}/${layer}/${head}`),
    pixels: (view) => bytes(`pixels/${view}`),
    tile: (view, layer, head, level, y, x) => bytes(`tile/${view}/${layer}/${head}/${level}/${y}/${x}`),
    row: async (view, layer, head, query) => fromJson(await bytes(`row/${view}/${layer}/${head}/${query}`)),
    flow: async (view, query, key) => fromJson(await bytes(`flow/${view}/${query}/${key}`)),
    counts: (view, layer, head) => bytes(`key_counts/${view}/${layer}/${head}`),
    ...questions((what, ...place) => bytes(`${what}/${place.join("/")}`)),
  };
}

/** The requests of JSON and of questions, which a server and a notebook answer alike.
 *  @param {(what: string, ...place: number[]) => Promise<any>} send */
function questions(send) {
  const json = async (/** @type {string} */ what, /** @type {number[]} */ ...place) => fromJson(await send(what, ...place));
  return {
    rows: (/** @type {number} */ view, /** @type {number} */ start, /** @type {number} */ stop) => send("rows", view, start, stop),
    valueNorms: (/** @type {number} */ view, /** @type {number} */ layer) => json("value_norms", view, layer),
    predictions: (/** @type {number} */ view) => json("predictions", view),
    differences: (/** @type {number} */ view, /** @type {number} */ other) => json("differences", view, other),
    pairDifferences: (/** @type {number} */ view, /** @type {number} */ other) => json("pair_differences", view, other),
    effect: (/** @type {number} */ view, /** @type {number} */ query, /** @type {[number, number, number][]} */ heads) =>
      json("effect", view, query, ...heads.flat()),
    pair: (/** @type {number[]} */ ...place) => json("pair", ...place),
    weight: (/** @type {number[]} */ ...place) => json("weight", ...place),
    font: () => json("font", 0),
  };
}

/** Create a source from the parts of an exported file, in gzip and base64; each part is unpacked on first use.
 *  @param {(name: string) => string} part named `thumbnails/0`, `layer/0/3`, `values/0/3`, `predictions/0`
 *  @param {(view: number) => [number, number]} shape numbers of queries and keys of a view
 *  @param {(view: number) => number[]} heads numbers of heads of the layers of a view
 *  @returns {Source} */
export function fromParts(part, shape, heads) {
  const area = (/** @type {number} */ view) => shape(view)[0] * shape(view)[1];
  /** @type {Map<string, Promise<Uint8Array>>} */
  const opened = new Map();
  const open = (/** @type {string} */ name) => {
    let bytes = opened.get(name);
    if (!bytes) {
      bytes = unpack(part(name));
      if (name.startsWith("layer/")) bytes = bytes.then(interleave);
      opened.set(name, bytes);
    }
    return bytes;
  };
  return {
    thumbnails: (view) => open(`thumbnails/${view}`),
    pixels: (view) => open(`pixels/${view}`),
    map: async (view, layer, head) => {
      const codes = await open(`layer/${view}/${layer}`);
      return codes.subarray(2 * head * area(view), 2 * (head + 1) * area(view));
    },
    rows: async (view, start, stop) => {
      const keys = shape(view)[1];
      const pieces = [];
      for (const [layer, count] of heads(view).entries()) {
        const codes = await open(`layer/${view}/${layer}`);
        for (let head = 0; head < count; head++) {
          const first = 2 * head * area(view);
          pieces.push(codes.subarray(first + 2 * start * keys, first + 2 * stop * keys));
        }
      }
      return new Uint8Array(await new Blob(/** @type {BlobPart[]} */ (pieces)).arrayBuffer());
    },
    valueNorms: async (view, layer) => fromJson(await open(`values/${view}/${layer}`)),
    predictions: async (view) => fromJson(await open(`predictions/${view}`)),
    font: async () => {
      if (!part("font")) throw new Error("This file has no font for PDF. Save as SVG, or export the page again with matplotlib installed.");
      return fromJson(await open("font"));
    },
  };
}

/** @param {string} text gzip in base64 */
async function unpack(text) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Return codes of two bytes each, from the low bytes of all codes followed by the high bytes.
 *  @param {Uint8Array} halves */
function interleave(halves) {
  const count = halves.length / 2;
  const codes = new Uint8Array(halves.length);
  for (let i = 0; i < count; i++) {
    codes[2 * i] = halves[i];
    codes[2 * i + 1] = halves[count + i];
  }
  return codes;
}

/** Parse the bytes of a JSON text.
 *  @param {any} bytes */
function fromJson(bytes) {
  return JSON.parse(new TextDecoder().decode(bytes));
}

/** Create a source that sends requests to the kernel of a notebook, which may respond in any order.
 *  @param {any} model of anywidget @returns {Source} */
export function fromKernel(model) {
  let lastId = 0;
  /** @type {Map<number, {resolve: (bytes: any) => void, reject: (error: Error) => void}>} */
  const pending = new Map();
  model.on("msg:custom", (/** @type {any} */ message, /** @type {DataView[]} */ buffers) => {
    const request = pending.get(message.id);
    if (!request) return;
    pending.delete(message.id);
    if (message.error) request.reject(new Error(message.error));
    else request.resolve(new Uint8Array(buffers[0].buffer, buffers[0].byteOffset, buffers[0].byteLength));
  });
  const send = (/** @type {string} */ what, /** @type {number[]} */ ...place) =>
    new Promise((resolve, reject) => {
      pending.set(++lastId, { resolve, reject });
      model.send({ id: lastId, what, place });
    });
  return {
    thumbnails: (view) => /** @type {any} */ (send("thumbnails", view)),
    map: (view, layer, head) => /** @type {any} */ (send("map", view, layer, head)),
    pixels: (view) => /** @type {any} */ (send("pixels", view)),
    tile: (...place) => /** @type {any} */ (send("tile", ...place)),
    row: async (...place) => fromJson(await send("row", ...place)),
    flow: async (...place) => fromJson(await send("flow", ...place)),
    counts: (...place) => /** @type {any} */ (send("key_counts", ...place)),
    ...questions(send),
  };
}
