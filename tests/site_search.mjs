// node tests/site_search.mjs SITE QUERY...: print, for each query, the pages that the search of a built site lists first.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { createContext, runInContext } from "node:vm";

const [site, ...queries] = process.argv.slice(2);
const page = { getElementById: () => null };
const context = createContext({ document: page, _: String, _ready: () => {}, SPHINX_HIGHLIGHT_ENABLED: false });
context.window = context;
for (const name of ["_static/language_data.js", "_static/searchtools.js"])
  runInContext(readFileSync(join(site, name), "utf-8").replace("const Search =", "var Search ="), context);
runInContext(readFileSync(join(site, "searchindex.js"), "utf-8"), context);
const { Search } = context;
const first = (query) => Search._performSearch(...Search._parseQuery(query)).reverse().map(([name]) => name);
console.log(JSON.stringify(queries.map((query) => first(query).slice(0, 3))));
