// Entry point of the exported file, which holds all data and makes no network requests.

import heads from "./heads.js";
import { fromParts } from "./source.js";

const data = JSON.parse(/** @type {HTMLElement} */ (document.getElementById("data")).textContent || "{}");
const area = (/** @type {number} */ view) => {
  const { queries, keys } = data.meta.views[view];
  return queries.tokens.length * (keys || queries).tokens.length;
};
/** @type {Record<string, any>} */
const fields = { meta: data.meta, source: fromParts(data.parts, area), linked: true };
heads.render({
  model: { get: (/** @type {string} */ name) => fields[name] },
  el: /** @type {HTMLElement} */ (document.getElementById("look")),
});
