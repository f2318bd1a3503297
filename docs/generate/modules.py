"""Page of the site that lists every module with the first line of its docstring."""

from __future__ import annotations

import ast
from pathlib import Path


def modules(source: Path) -> str:
    """Return one section for each folder of `src/qkv`, and one line for each module in it."""
    lines = ["# Modules", "", "Every module, with the first line of its docstring."]
    for folder in [source, *sorted(path.parent for path in source.glob("*/**/__init__.py"))]:
        paths = [path for path in sorted(folder.glob("*.py")) if path.name not in ("__init__.py", "__main__.py")]
        lines += ["", f"## `{folder.relative_to(source.parent)}/`", "", _first_line(folder / "__init__.py"), ""]
        lines += [f"- `{path.name}`: {_first_line(path)}" for path in paths]
    return "\n".join(lines) + "\n"


def _first_line(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.split("\n\n")[0].replace("\n", " ").strip()
