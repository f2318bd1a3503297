// The served page: what there is comes from the server, and is asked for again while a model still runs.

import heads from "./heads.js";
import { fromServer } from "./source.js";

const el = /** @type {HTMLElement} */ (document.getElementById("look"));

/** What the widget gets from a notebook, said by the server. @param {any} meta */
function stand(meta) {
  /** @type {Record<string, any>} */
  const fields = { meta, source: fromServer("./"), linked: true };
  return { get: (/** @type {string} */ name) => fields[name] };
}

async function start() {
  for (;;) {
    const answer = await fetch("meta.json");
    const meta = await answer.json();
    if (!answer.ok || meta.error) {
      el.textContent = meta.error || `${answer.status}`;
      return;
    }
    if (meta.views) {
      document.title = meta.title;
      heads.render({ model: stand(meta), el });
      return;
    }
    const bar = document.createElement("progress");
    bar.max = meta.total;
    bar.value = meta.done;
    bar.setAttribute("aria-label", meta.doing);
    el.replaceChildren(`${meta.doing} … `, bar);
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}

start().catch((error) => (el.textContent = `The page could not start: ${error.message}`));
