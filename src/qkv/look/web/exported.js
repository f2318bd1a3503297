// Entry point of the exported file, which holds all data and makes no network requests.

import heads from "./heads.js";
import { fromParts } from "./source.js";

const part = (/** @type {string} */ name) => document.getElementById(name)?.textContent || "";
const meta = JSON.parse(part("data"));
const count = (/** @type {any} */ side) => side.count ?? side.tokens.length;
const shape = (/** @type {number} */ view) => {
  const { queries, keys } = meta.views[view];
  return /** @type {[number, number]} */ ([count(queries), count(keys || queries)]);
};
const headCounts = (/** @type {number} */ view) => meta.views[view].layers.map((/** @type {any} */ { heads: own }) => own.length);
/** @type {Record<string, any>} */
const fields = { meta, source: fromParts(part, shape, headCounts), linked: true };
heads.render({
  model: { get: (/** @type {string} */ name) => fields[name] },
  // The page that saved this file named its state.
  hash: location.hash.length > 1 ? location.hash : `#${meta.link || ""}`,
  el: /** @type {HTMLElement} */ (document.getElementById("look")),
});
