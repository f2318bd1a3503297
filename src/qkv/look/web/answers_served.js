// Entry point of the served page of answers.

import answers from "./answers.js";

const root = /** @type {HTMLElement} */ (document.getElementById("look"));

/** Send a request to the server, and return its response. @param {any} request */
async function post(request) {
  const reply = await fetch("ask", { method: "POST", body: JSON.stringify(request) });
  if (!reply.ok) throw new Error(`${reply.status} ${await reply.text()}`);
  return reply.json();
}

async function open() {
  const reply = await fetch("meta.json");
  if (!reply.ok) throw new Error(`${reply.status} ${await reply.text()}`);
  const meta = await reply.json();
  document.title = meta.title;
  /** @type {Record<string, any>} */
  const served = { meta, respond: post, linked: true };
  answers.render({ model: { get: (/** @type {string} */ name) => served[name] }, el: root });
}

open().catch((error) => {
  const stopped = error instanceof TypeError ? " The server may have stopped; the terminal shows why." : "";
  root.textContent = `The page could not start: ${error.message}.${stopped}`;
});
