// Entry point of the exported file, which holds all data and makes no network requests.

import heads from "./heads.js";
import { fromParts } from "./source.js";

const part = (/** @type {string} */ name) => document.getElementById(name)?.textContent || "";
const meta = JSON.parse(part("data"));
/** @type {Record<string, any>} */
const fields = { meta, source: fromParts(meta, part), linked: true };
heads.render({
  model: { get: (/** @type {string} */ name) => fields[name] },
  // The page that saved this file named its state.
  hash: location.hash.length > 1 ? location.hash : `#${meta.link || ""}`,
  el: /** @type {HTMLElement} */ (document.getElementById("look")),
});
