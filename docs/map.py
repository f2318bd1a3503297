"""Write the list of modules in ARCHITECTURE.md from the first lines of their docstrings: `python docs/map.py`."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "qkv"
PAGE = ROOT / "ARCHITECTURE.md"
BEGIN, END = "<!-- modules: written by docs/map.py -->", "<!-- end of modules -->"


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.split("\n\n")[0].replace("\n", " ").strip()


def modules() -> str:
    """Return one section for each folder and one line for each module in it."""
    lines: list[str] = []
    folders = [SOURCE, *sorted(path.parent for path in SOURCE.rglob("__init__.py") if path.parent != SOURCE)]
    for folder in folders:
        paths = [path for path in sorted(folder.glob("*.py")) if path.name not in ("__init__.py", "__main__.py")]
        name = str(folder.relative_to(SOURCE.parent))
        lines += ["", f"### `{name}/`", "", first_line(folder / "__init__.py"), ""]
        lines += [f"- `{path.name}`: {first_line(path)}" for path in paths]
    return "\n".join(lines).replace("\n\n\n", "\n\n")


def page() -> str:
    """Return the whole page with its list of modules brought up to date."""
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{modules()}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page())
