"""Docstrings in Google style, parsed and written as Markdown for Sphinx."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, replace
from typing import Any

SECTIONS = ("Args", "Attributes", "Example", "Examples", "Raises", "Returns", "Shapes", "Source", "Warns", "Yields")
_HEADER = re.compile(rf"^({'|'.join(SECTIONS)}):$")
_ITEM = re.compile(r"^(\*{0,2}[\w.]+(?:, \*{0,2}[\w.]+)*)(?: \([^)]*\))?: (.*)$")
_FIELDS = {"Args": "param", "Raises": "raises"}


@dataclass(frozen=True)
class Docstring:
    """A docstring as text before its sections, and its sections in order."""

    text: tuple[str, ...]
    sections: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @classmethod
    def of(cls, thing: Any) -> Docstring:
        """Parse the docstring of an object; one that a class inherits from outside qkv counts as none."""
        text = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
        if not text and inspect.isclass(thing):
            text = next((base.__doc__ for base in thing.__mro__[1:] if base.__module__.startswith("qkv")), None)
        return cls.parse(inspect.cleandoc(text or ""))

    @classmethod
    def parse(cls, text: str) -> Docstring:
        """Split the text of a docstring into its sections."""
        parts: list[tuple[str, list[str]]] = [("", [])]
        for line in text.splitlines():
            header = _HEADER.match(line)
            if header:
                parts.append((header[1], []))
            elif parts[-1][0] and line and not line.startswith(" "):
                parts.append(("", [line]))
            else:
                parts[-1][1].append(line)
        before = tuple(line for name, lines in parts if not name for line in [*lines, ""])
        return cls(before, tuple((name, tuple(_dedent(lines))) for name, lines in parts if name))

    @property
    def summary(self) -> str:
        """The first paragraph in one line."""
        paragraph: list[str] = []
        for line in self.text:
            if not line.strip():
                break
            paragraph.append(line.strip())
        return " ".join(paragraph)

    def only_summary(self) -> Docstring:
        """Return the first paragraph alone."""
        return replace(self, text=(self.summary,), sections=())


def docstring_markdown(docstring: Docstring, links: dict[str, str]) -> list[str]:
    """Return the lines of a docstring as Markdown, with names of the mapping as links to their pages."""
    lines = _text(docstring.text, links)
    for name, content in docstring.sections:
        if name in _FIELDS:
            lines += ["", *_items(_FIELDS[name], content, links)]
        elif name == "Attributes":
            lines += ["", f"**{name}**", "", *_items("", content, links)]
        elif name == "Returns":
            lines += ["", f":returns: {link_names(_joined(content), links)}"]
        else:
            lines += ["", f"**{name}**", "", *_text(content, links)]
    return lines


def link_names(text: str, links: dict[str, str]) -> str:
    """Return the text with public names in backticks as links."""

    def link(found: re.Match[str]) -> str:
        name = found[1]
        target = links.get(name.removesuffix("()"))
        return f"{{py:obj}}`{name} <{target}>`" if target else found[0]

    return re.sub(r"(?<!`)`([A-Za-z_][\w.]*(?:\(\))?)`(?!`)", link, text)


def fenced(language: str, lines: list[str]) -> list[str]:
    """Return the lines as a code block."""
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    return [f"```{language}", *_dedent(lines), "```"]


def _text(content: tuple[str, ...], links: dict[str, str]) -> list[str]:
    """Return paragraphs as they are, indented blocks and examples as code blocks."""
    lines: list[str] = []
    block: list[str] = []

    def close() -> None:
        if block:
            code = any(line.lstrip().startswith(">>>") for line in block)
            lines.extend(["", *fenced("pycon" if code else "text", list(block)), ""])
            block.clear()

    listed = example = False
    for line in content:
        if line.startswith(">>>"):
            example = True
        elif not line.strip():
            example = False
        listed = line.startswith(("- ", "* ")) or (listed and (line.startswith(" ") or not line))
        if example or (line.startswith("    ") and not listed) or (block and not line.strip()):
            block.append(line)
        else:
            close()
            lines.append(link_names(_plain(line), links))
    close()
    return lines


def _plain(line: str) -> str:
    """Escape what Markdown reads as markup outside of code: asterisks of axes, and indices in brackets."""
    if line.startswith("* "):
        return line
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(part if part.startswith("`") else re.sub(r"([*_\[\]<|])", r"\\\1", part) for part in parts)


def _items(field: str, content: tuple[str, ...], links: dict[str, str]) -> list[str]:
    items: list[tuple[str, list[str]]] = []
    for line in content:
        found = _ITEM.match(line)
        if found:
            items.append((found[1], [found[2]]))
        elif items:
            items[-1][1].append(line.strip())
        elif line.strip():
            items.append(("", [line.strip()]))
    if not field:
        return [f"- `{name}`: {link_names(_plain(' '.join(text).strip()), links)}" for name, text in items]
    return [
        f":{field} {name.replace('*', chr(92) + '*')}: {link_names(_plain(' '.join(text).strip()), links)}"
        for name, text in items
    ]


def _joined(content: tuple[str, ...]) -> str:
    return _plain(" ".join(line.strip() for line in content).strip())


def _dedent(lines: list[str]) -> list[str]:
    return inspect.cleandoc("\n".join(["", *lines])).splitlines()
