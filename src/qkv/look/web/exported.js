// Entry point of the exported file, which holds all data and makes no network requests.

import heads from "./heads.js";
import { fromParts } from "./source.js";

const part = (/** @type {string} */ name) => document.getElementById(name)?.textContent || "";
const meta = JSON.parse(part("data"));
const area = (/** @type {number} */ view) => {
  const { queries, keys } = meta.views[view];
  return queries.tokens.length * (keys || queries).tokens.length;
};
/** @type {Record<string, any>} */
const fields = { meta, source: fromParts(part, area), linked: true };
heads.render({
  model: { get: (/** @type {string} */ name) => fields[name] },
  el: /** @type {HTMLElement} */ (document.getElementById("look")),
});
