// Runs the code of a page in Pyodide, one cell after the other. Messages: {id, code, packages} in, {id, …} out.
import { loadPyodide } from "./pyodide.mjs";

const RUNNER = `
import ast, base64, contextlib, io, sys, traceback
sys.path.insert(0, "/home/pyodide/packages")
_names = {"__name__": "__main__"}

def _run(code):
    printed, picture = io.StringIO(), ""
    before = _names.pop("figure", None)
    with contextlib.redirect_stdout(printed):
        try:
            for statement in ast.parse(code).body:
                exec(compile(ast.Interactive([statement]), "cell", "single"), _names)
        except BaseException as error:
            failed = error.__traceback__.tb_next
            traceback.print_exception(type(error), error, failed, file=printed)
            return printed.getvalue(), "", True
    if "figure" in _names:
        stream = io.BytesIO()
        _names["figure"].savefig(stream, format="png", dpi=150)
        picture = base64.b64encode(stream.getvalue()).decode()
    elif before is not None:
        _names["figure"] = before
    return printed.getvalue(), picture, False
`;

async function start() {
  const python = await loadPyodide({ indexURL: new URL("./", import.meta.url).href, env: { MPLBACKEND: "agg" } });
  const archive = await fetch(new URL("./qkv.zip", import.meta.url));
  python.unpackArchive(await archive.arrayBuffer(), "zip", { extractDir: "/home/pyodide" });
  python.runPython(RUNNER);
  return python;
}

const started = start();
let last = started;

async function run({ id, code, packages }) {
  try {
    const python = await started;
    await python.loadPackage(packages, { messageCallback: () => {} });
    const [printed, picture, failed] = python.globals.get("_run")(code).toJs();
    self.postMessage({ id, printed, picture, failed });
  } catch (error) {
    self.postMessage({ id, printed: String(error), picture: "", failed: true });
  }
}

self.addEventListener("message", ({ data }) => {
  last = last.then(
    () => run(data),
    () => run(data),
  );
});
