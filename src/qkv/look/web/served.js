// Entry point of the served page, which polls the server until the page is ready.

import heads from "./heads.js";
import { fromServer } from "./source.js";

const el = /** @type {HTMLElement} */ (document.getElementById("look"));

/** Return the anywidget model of the served page. @param {any} meta */
function servedModel(meta) {
  /** @type {Record<string, any>} */
  const fields = { meta, source: fromServer(meta, "./"), linked: true, served: true };
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
      heads.render({ model: servedModel(meta), el });
      return;
    }
    const bar = document.createElement("progress");
    bar.max = meta.total;
    bar.value = meta.done;
    bar.setAttribute("aria-label", meta.task);
    el.replaceChildren(`${meta.task} … `, bar);
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}

start().catch((error) => {
  const stopped = error instanceof TypeError ? " The server may have stopped; the terminal shows why." : "";
  el.textContent = `The page could not start: ${error.message}.${stopped}`;
});
