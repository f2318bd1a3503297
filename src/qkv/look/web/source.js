// Where maps come from: a server, the exported file itself, or the kernel of a notebook. All three give bytes.

/** @typedef {Object} Source
 *  @property {(view: number) => Promise<Uint8Array>} thumbs small maps of all heads of a view
 *  @property {(view: number, layer: number, head: number) => Promise<Uint8Array>} map all codes of a head
 *  @property {(view: number, layer: number, head: number, level: number, y: number, x: number)
 *    => Promise<Uint8Array>} [tile] codes of a part of a long map: largest, then mean
 *  @property {(view: number, layer: number, head: number, query: number) => Promise<any>} [row] */

/** @param {string} base the address of the page's folder @returns {Source} */
export function fromServer(base) {
  const bytes = async (/** @type {string} */ path) => {
    const answer = await fetch(`${base}${path}`);
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
    return new Uint8Array(await answer.arrayBuffer());
  };
  return {
    thumbs: (view) => bytes(`thumbs/${view}`),
    map: (view, layer, head) => bytes(`map/${view}/${layer}/${head}`),
    tile: (view, layer, head, level, y, x) => bytes(`tile/${view}/${layer}/${head}/${level}/${y}/${x}`),
    row: async (view, layer, head, query) => {
      const answer = await fetch(`${base}row/${view}/${layer}/${head}/${query}`);
      return answer.json();
    },
  };
}

/** Parts of a file: gzip in base64, opened when they are asked for.
 *  @param {Record<string, string>} parts by name: `thumbs/0`, `layer/0/3` @param {(view: number) => number} area
 *  @returns {Source} */
export function fromParts(parts, area) {
  /** @type {Map<string, Promise<Uint8Array>>} */
  const opened = new Map();
  const open = (/** @type {string} */ name) => {
    let found = opened.get(name);
    if (!found) {
      found = unpack(parts[name]);
      opened.set(name, found);
    }
    return found;
  };
  return {
    thumbs: (view) => open(`thumbs/${view}`),
    map: async (view, layer, head) => {
      const heads = await open(`layer/${view}/${layer}`);
      return heads.subarray(head * area(view), (head + 1) * area(view));
    },
  };
}

/** @param {string} text gzip in base64 */
async function unpack(text) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Questions to the kernel of a notebook, answered in any order.
 *  @param {any} model of anywidget @returns {Source} */
export function fromKernel(model) {
  let asked = 0;
  /** @type {Map<number, {resolve: (bytes: any) => void, reject: (error: Error) => void}>} */
  const waiting = new Map();
  model.on("msg:custom", (/** @type {any} */ message, /** @type {DataView[]} */ buffers) => {
    const question = waiting.get(message.id);
    if (!question) return;
    waiting.delete(message.id);
    if (message.error) question.reject(new Error(message.error));
    else if (message.row) question.resolve(message.row);
    else question.resolve(new Uint8Array(buffers[0].buffer, buffers[0].byteOffset, buffers[0].byteLength));
  });
  const ask = (/** @type {string} */ what, /** @type {number[]} */ ...place) =>
    new Promise((resolve, reject) => {
      waiting.set(++asked, { resolve, reject });
      model.send({ id: asked, what, place });
    });
  return {
    thumbs: (view) => /** @type {any} */ (ask("thumbs", view)),
    map: (view, layer, head) => /** @type {any} */ (ask("map", view, layer, head)),
    tile: (...place) => /** @type {any} */ (ask("tile", ...place)),
    row: (...place) => ask("row", ...place),
  };
}
