"""Join the JavaScript modules of the attention page: notebooks and exported files cannot import files."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

WEB_FILES = tuple(sorted(file.name for file in (files("qkv.look") / "web").iterdir()))
"""Names of all files of the page; the server delivers no other files."""

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w.]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?!default)", re.MULTILINE)
_DEFAULT = re.compile(r"^export default .*\n", re.MULTILINE)
_BLOCK = re.compile(r"^ */\*\*(?:(?!\*/).)*\*/\n|/\*\*(?:(?!\*/).)*\*/ ?", re.MULTILINE | re.DOTALL)
_LINE = re.compile(r"^ *//.*\n", re.MULTILINE)
_INDENT = re.compile(r"^[ \n]+", re.MULTILINE)


@cache
def read_web_file(name: str) -> str:
    """Return the text of a file of the attention page, one of `WEB_FILES`; scripts without comments and indentation."""
    if name not in WEB_FILES:
        raise KeyError(f"name must be the name of a file of the page, got {name!r}. Choose from WEB_FILES.")
    text = (files("qkv.look") / "web" / name).read_text(encoding="utf-8")
    # Types, comments and indentation are almost half of the scripts.
    return _INDENT.sub("", _BLOCK.sub("", _LINE.sub("", text))) if name.endswith(".js") else text


@cache
def bundle(entry: str) -> str:
    """Return the text of a JavaScript module of the page, joined with the texts of all modules that it imports.

    Each module is included once, before the modules that import it. The bundler relies on three rules: each import is
    on a separate line, names are exported where they are declared, and no two modules declare the same name.

    Example:
        >>> [line for line in bundle("heads.js").splitlines() if line.startswith("import")]
        []
    """
    texts: dict[str, str] = {}

    def add(name: str) -> None:
        if name in texts:
            return
        source = read_web_file(name)
        for target in _IMPORT.findall(source):
            add(target)
        text = _EXPORT.sub("", _IMPORT.sub("", source))
        # Notebooks get the default export of a page.
        texts[name] = f"// {name}\n{text if name == entry else _DEFAULT.sub('', text)}"

    add(entry)
    return "\n".join(texts.values())
