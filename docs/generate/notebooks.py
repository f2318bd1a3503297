"""Notebooks of the tutorials, made from their pages: text as Markdown cells, examples as code cells."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

_FENCE = re.compile(r"^```(?:python|\{picture\} [^\n]*)\n(?P<body>.*?)^```$\n?", re.MULTILINE | re.DOTALL)
_DIRECTIVE = re.compile(r"^:::(?:\{dropdown\} (\w+))?$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)[^)]*\)")
_WHERE = "Run this notebook in the folder of a clone of qkv, which has `examples/`."


def write_notebooks(docs: Path, source: Path) -> None:
    """Write a notebook beside each tutorial, and link to it below the title of the page."""
    import nbformat

    for page in sorted((docs / "tutorials").glob("*.md")):
        if page.stem != "index":
            target = source / "tutorials" / page.name
            nbformat.write(notebook(page.read_text()), target.with_suffix(".ipynb"))
            title, _, rest = target.read_text().partition("\n")
            target.write_text(f"{title}\n\n{{download}}`This page as a notebook <{page.stem}.ipynb>`\n{rest}")


def notebook(text: str) -> Any:
    """Return a page as a notebook, in which a code cell ends after each example with an output."""
    from nbformat import v4

    title, _, rest = text.partition("\n")
    cells, end = [v4.new_markdown_cell(f"{title}\n\n{_WHERE}")], 0
    for block in _FENCE.finditer(rest):
        cells += _words(rest[end : block.start()])
        cells += [v4.new_code_cell(code) for code in _code(block["body"])]
        end = block.end()
    cells += _words(rest[end:])
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    return v4.new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})


def _words(text: str) -> list[Any]:
    from nbformat import v4

    text = _DIRECTIVE.sub(lambda found: f"**{found[1]}**" if found[1] else "", text)
    text = _LINK.sub(r"\1", text).strip()
    return [v4.new_markdown_cell(text)] if text else []


def _code(body: str) -> list[str]:
    """Return the sources of the cells of a block."""
    cells, lines = [], []
    for example in doctest.DocTestParser().get_examples(body):
        lines.append(example.source.rstrip("\n"))
        if example.want:
            cells.append("\n".join(lines))
            lines = []
    if any(line.startswith("figure = look.") for line in lines):
        lines.append("figure")  # notebooks show only figures of pyplot by themselves
    return [*cells, "\n".join(lines)] if lines else cells
