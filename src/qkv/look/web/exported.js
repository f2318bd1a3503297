// Entry point of the exported file, which holds all data and makes no network requests.

import { render } from "./heads.js";
import { fromParts } from "./source.js";
import { partOf } from "./unpack.js";

const meta = JSON.parse(partOf("data"));
render({
  model: new Map(Object.entries({ meta, source: fromParts(meta, partOf), linked: true })),
  // The page that saved this file named its state.
  hash: location.hash.length > 1 ? location.hash : `#${meta.link || ""}`,
  el: /** @type {HTMLElement} */ (document.getElementById("look")),
});
