"""The page's modules as one: a notebook and an exported file cannot import files beside them."""

import re
from functools import cache
from importlib.resources import files

__all__ = ["WEB_FILES", "bundle", "read_web_file"]

WEB_FILES = (
    "colour.js",
    "detail.js",
    "dom.js",
    "exported.js",
    "heads.js",
    "map.js",
    "matrix.js",
    "overview.js",
    "page.css",
    "page.html",
    "save.js",
    "served.js",
    "source.js",
    "steps.js",
    "style.css",
    "tiles.js",
    "tokens.js",
)
"""Every file of the page; no other is served."""

_IMPORT = re.compile(r'^import (?:(\w+)|\{([^}]*)\}) from "\./([\w.]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?!default)", re.MULTILINE)
_DEFAULT = re.compile(r"^export default ", re.MULTILINE)


def read_web_file(name: str) -> str:
    """The text of one file of the page.

    Raises:
        KeyError: it is none of `WEB`.
    """
    if name not in WEB_FILES:
        raise KeyError(name)
    return (files("qkv.look") / "web" / name).read_text(encoding="utf-8")


@cache
def bundle(entry: str) -> str:
    """A module and all that it imports as one text, each module once and before those that use it.

    The modules are written so that this is enough: imports stand on lines of their own, names are exported
    where they are declared, and no two modules declare the same name.

    Example:
        >>> [line for line in bundle("heads.js").splitlines() if line.startswith("import")]
        []
    """
    done: list[str] = []
    texts: list[str] = []

    def add(name: str) -> None:
        if name in done:
            return
        done.append(name)
        text = read_web_file(name)
        defaults = {}
        for alias, _, target in _IMPORT.findall(text):
            add(target)
            if alias:
                defaults[alias] = target
        text = _EXPORT.sub("", _IMPORT.sub("", text))
        if name != entry:
            text = _DEFAULT.sub(f"const {_default_of(name)} = ", text)
        for alias, target in defaults.items():
            text = re.sub(rf"\b{alias}\.", f"{_default_of(target)}.", text)
        texts.append(f"// {name}\n{text}")

    add(entry)
    return "\n".join(texts)


def _default_of(name: str) -> str:
    return f"{name.removesuffix('.js')}_default"
