"""Pages of attention and of answers that `qkv look --gallery` writes, beside the pages of the site."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from html import unescape
from pathlib import Path

FOLDER = "look-gallery"
"""Folder of the site with the pages."""

_ITEM = re.compile(
    r'<li><a href="(?P<address>[^"]+)"><img src="(?P<picture>[^"]+)"[^>]*>'
    r"<strong>(?P<title>.*?)</strong></a><p>(?P<see>.*?)</p></li>"
)


@dataclass(frozen=True)
class LookPage:
    """A page with its address relative to the folder, its thumbnail, its title, and what to see on it."""

    address: str
    picture: str
    title: str
    see: str


def write_look_gallery(source: Path) -> list[LookPage]:
    """Write the pages into the source folder of the site and return them in order."""
    from qkv.look.gallery import write_gallery

    return look_pages(write_gallery(source / FOLDER).read_text())


def look_pages(index: str) -> list[LookPage]:
    """Return the pages that the text of an index page lists."""
    return [LookPage(*map(unescape, found.groups())) for found in _ITEM.finditer(index)]


def publish_look_gallery(source: Path, site: Path) -> None:
    """Copy the pages from the source folder to the site, where Sphinx does not change them."""
    shutil.copytree(source / FOLDER, site / FOLDER)


def look_cards(pages: list[LookPage]) -> list[str]:
    """Return a section of the index of the gallery: one card for each page, with a link to it."""
    lines = [
        "## Pages to explore",
        "",
        "These pages run in the browser, without a server: layers and heads of models, and tables that answer a query",
        "that moves. Each opens on what its sentence says. `qkv look --gallery FOLDER` writes them;",
        f'<a href="../{FOLDER}/index.html">their index</a> has them on one page.',
        "",
        "::::{grid} 1 2 3 3",
        ":gutter: 3",
        "",
    ]
    for page in pages:
        lines += [
            f":::{{grid-item-card}} {page.title}",
            f":link: ../{FOLDER}/{page.address}",
            ":link-type: url",
            f":link-alt: {page.title}",
            ":class-card: gallery-card",
            "",
            f"```{{image}} ../{FOLDER}/{page.picture}",
            f":alt: Weights of a head: {page.title}",
            ":class: dark-light thumbnail",
            "```",
            "",
            page.see,
            ":::",
            "",
        ]
    return [*lines, "::::", ""]
