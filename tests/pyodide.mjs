// node tests/pyodide.mjs FOLDER PACKAGES MOUNTS CODE: run Python code in the Pyodide of a folder, and print its last value.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, packages, mounts, file] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(join(folder, "pyodide.mjs")).href);
const python = await loadPyodide({ packageCacheDir: folder, stdout: () => {} });
const wanted = packages.split(",").filter(Boolean);
if (wanted.length) await python.loadPackage(wanted, { messageCallback: () => {} });
for (const pair of mounts.split(",").filter(Boolean)) {
  const [inside, outside] = pair.split("=");
  python.FS.mkdirTree(inside);
  python.mountNodeFS(inside, outside);
}
console.log(String(await python.runPythonAsync(readFileSync(file, "utf-8"))));
