"""Corrections of the HTML that Sphinx and its theme write, for readers who use a screen reader."""

from __future__ import annotations

import re
from pathlib import Path

_PARAMETERS = re.compile(r"<dl>\n((?:<dd>.*?</dd>\n?)+)</dl>", re.DOTALL)
_SUMMARY = re.compile(r"<summary>(?=<span class=\"toctree-toggle\")")
_EMPTY_HEADER = '<th class="head"><p></p></th>'
_SCROLLED = '<div class="wide-figure docutils container">'
_FOCUSABLE = '<div class="wide-figure docutils container" tabindex="0" role="group" aria-label="Figure">'
_NAMED = '<summary aria-label="Show or hide the pages of this section">'


def correct_pages(site: Path) -> None:
    """Correct signatures, folds of the sidebar, empty headers, and figures that scroll."""
    for path in site.rglob("*.html"):
        if "_static" not in path.parts:
            text = path.read_text()
            new = _SUMMARY.sub(_NAMED, _PARAMETERS.sub(_lines, text)).replace(_EMPTY_HEADER, '<td class="head"></td>')
            new = new.replace(_SCROLLED, _FOCUSABLE)
            if new != text:
                path.write_text(new)


def _lines(found: re.Match[str]) -> str:
    lines = found[1].replace("<dd>", '<span class="sig-line">').replace("</dd>", "</span>")
    return f'<span class="sig-lines">{lines}</span>'
