// Entry point of the served pages, of heads and of answers, which polls the server until the page is ready.

import { createElement } from "./dom.js";
import { fromServer } from "./source.js";

const el = /** @type {HTMLElement} */ (document.getElementById("look"));

/** Send a request of the page of answers to the server, and return its response. @param {any} request */
async function post(request) {
  const reply = await fetch("ask", { method: "POST", body: JSON.stringify(request) });
  if (!reply.ok) throw new Error(`${reply.status} ${await reply.text()}`);
  return reply.json();
}

async function start() {
  for (;;) {
    const answer = await fetch("meta.json");
    const meta = await answer.json();
    if (!answer.ok || meta.error) {
      el.textContent = meta.error || `${answer.status}`;
      return;
    }
    // The modules load while the server creates the page.
    const { default: page } = await (meta.settings ? import("./answers.js") : import("./heads.js"));
    if (!meta.task) {
      document.title = meta.title;
      const answered = meta.views ? { source: fromServer(meta, "./") } : { respond: post };
      page.render({ model: new Map(Object.entries({ meta, linked: true, served: true, ...answered })), el });
      return;
    }
    el.replaceChildren(`${meta.task} … `, createElement("progress", { max: meta.total, value: meta.done, "aria-label": meta.task }));
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}

start().catch((error) => {
  const stopped = error instanceof TypeError ? " The server may have stopped; the terminal shows why." : "";
  el.textContent = `The page could not start: ${error.message}.${stopped}`;
});
