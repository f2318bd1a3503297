// Entry point of the exported file, which holds all data and makes no network requests.

import { render } from "./heads.js";
import { fromParts } from "./source.js";
import { partOf } from "./unpack.js";

const meta = JSON.parse(partOf("data"));
render({
  model: new Map(Object.entries({ meta, source: fromParts(meta), linked: true })),
  el: /** @type {HTMLElement} */ (document.getElementById("look")),
});
