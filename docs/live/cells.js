// Gives the Python cells of the live sections of a page a Run and an Edit button. The first Run starts Pyodide.
const script = document.querySelector("script[data-sections]");
const folder = new URL("./", script.src);
const cells = [];
const waiting = new Map();
let worker;

function element(name, className, text = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

/** Return the statements of a doctest without prompts and output. */
function statements(text) {
  const lines = text.split("\n").filter((line) => /^(>>>|\.\.\.)( |$)/.test(line));
  return lines.map((line) => line.slice(4)).join("\n");
}

function send(code, packages) {
  if (!worker) {
    worker = new Worker(new URL("worker.js", folder), { type: "module" });
    worker.addEventListener("message", ({ data }) => waiting.get(data.id)(data));
    worker.addEventListener("error", () =>
      waiting.forEach((done) => done({ printed: "Pyodide could not start in this browser.", picture: "", failed: true })),
    );
  }
  return new Promise((resolve) => {
    const id = waiting.size;
    waiting.set(id, resolve);
    worker.postMessage({ id, code, packages });
  });
}

function packagesOf(code) {
  const needed = ["numpy"];
  if (/Database/.test(code)) needed.push("pyarrow");
  if (/\blook\b|\bplt\b/.test(code)) needed.push("matplotlib");
  return needed;
}

/** Run the cells before a cell that have not run, and the cell. */
async function runTo(last) {
  for (const cell of cells.slice(0, cells.indexOf(last) + 1)) {
    if (cell !== last && cell.ran) continue;
    cell.output.hidden = false;
    cell.output.replaceChildren(
      element("p", "live-wait", worker ? "Running …" : "Starting Python in this page; the first run takes some seconds …"),
    );
    cell.run.disabled = true;
    const code = cell.editor.hidden ? cell.code : cell.editor.value;
    const { printed, picture, failed } = await send(code, packagesOf(code));
    cell.run.disabled = false;
    cell.ran = !failed;
    const shown = [];
    if (printed || !picture) shown.push(element("pre", failed ? "live-error" : "live-printed", printed || "(nothing printed)"));
    if (picture) {
      const image = element("img", "live-picture");
      image.src = `data:image/png;base64,${picture}`;
      image.alt = "The figure that this cell draws";
      shown.push(image);
    }
    cell.output.replaceChildren(...shown);
    if (failed) return;
  }
}

function edit(cell) {
  cell.editor.hidden = !cell.editor.hidden;
  cell.shown.hidden = !cell.editor.hidden;
  cell.edit.textContent = cell.editor.hidden ? "Edit" : "Show as on the page";
  if (cell.editor.hidden) return;
  cell.editor.rows = cell.editor.value.split("\n").length + 1;
  cell.editor.focus();
}

function add(block) {
  const code = statements(block.querySelector("pre").textContent);
  if (!code) return;
  const [bar, output, editor] = [element("div", "live-bar"), element("div", "live-output"), element("textarea", "live-editor")];
  const [run, change] = [element("button", "live-button", "Run"), element("button", "live-button", "Edit")];
  const cell = { code, shown: block, run, edit: change, editor, output, ran: false };
  cells.push(cell);
  run.setAttribute("aria-label", `Run cell ${cells.length}`);
  change.setAttribute("aria-label", `Edit cell ${cells.length}`);
  editor.setAttribute("aria-label", `Code of cell ${cells.length}`);
  output.setAttribute("role", "status");
  [run.type, change.type, editor.spellcheck, editor.hidden, output.hidden] = ["button", "button", false, true, true];
  editor.value = code;
  editor.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.shiftKey)) return;
    event.preventDefault();
    runTo(cell);
  });
  run.addEventListener("click", () => runTo(cell));
  change.addEventListener("click", () => edit(cell));
  bar.append(run, change);
  block.after(editor, bar, output);
}

function note(text) {
  const made = element("p", "live-note", text);
  document.querySelector(".bd-article h1").after(made);
}

if (location.protocol === "file:") {
  note("Cells of this page run in the browser if the site is served: python -m http.server -d site");
} else {
  for (const id of script.dataset.sections.split(" ")) {
    const section = document.getElementById(id);
    section?.querySelectorAll(":is(.highlight-python, .highlight-pycon)").forEach(add);
  }
  if (cells.length) note("Cells with a Run button run in this page; nothing needs to be installed, and nothing leaves your computer.");
}
