"""Export a page as one self-contained HTML file that makes no network requests."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import os
from collections.abc import Iterator
from pathlib import Path

from qkv.core.files import check_writable, write_atomic
from qkv.errors import DataError
from qkv.look.bundle import bundle, read_web_file
from qkv.look.page import Page
from qkv.look.tiled_map import TiledView
from qkv.look.views import View

__all__ = ["HTML_SUFFIXES", "export_html", "html_pieces", "page_html"]

HTML_SUFFIXES = (".html", ".htm")

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main id="look">loading …</main>
<noscript>This page needs JavaScript. Enable it in the browser.</noscript>
<script type="application/json" id="data">{data}</script>
"""
_PART = '<script type="text/plain" id="{name}">{data}</script>\n'
_TAIL = """<script type="module">{script}</script>
</body>
</html>
"""


def export_html(page: Page, path: str | os.PathLike[str]) -> Path:
    """Write a page to a self-contained HTML file atomically.

    Args:
        page: a page without tiled views.
        path: a file name that ends in .html.

    Returns:
        The path.

    Raises:
        DataError: the path does not end in .html, the page has tiled views, or the file cannot be written.
    """
    target = Path(path)
    check_writable(target, "the page", HTML_SUFFIXES)
    pieces = html_pieces(page)
    write_atomic(target, lambda stream: stream.writelines(piece.encode() for piece in pieces), "the page")
    return target


def page_html(page: Page) -> str:
    """Return the HTML text of a page, which contains all scripts, styles and attention maps.

    Raises:
        DataError: the page has tiled views.
    """
    return "".join(html_pieces(page))


def html_pieces(page: Page) -> Iterator[str]:
    """Return an iterator over the pieces of the HTML text of a page, of which one layer at a time is in memory.

    Each layer is compressed separately (gzip, base64), so that a head is shown before all layers are unpacked.

    Raises:
        DataError: the page has tiled views.
    """
    for view in page.views:
        if isinstance(view, TiledView):
            raise DataError(
                f"page must not contain tiled views, got the tiled view {view.name!r} of {len(view.queries.tokens):,} "
                "tokens. Serve the page instead of exporting it, and save a part of the map in the browser."
            )
    return _pieces(page)


def _pieces(page: Page) -> Iterator[str]:
    script, style = bundle("exported.js"), read_web_file("style.css") + read_web_file("page.css")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    # A token may contain "</script>", so "<", which starts every tag, is escaped.
    data = json.dumps(page.meta(), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    yield _HEAD.format(policy=policy, title=html.escape(page.title, quote=False), style=style, data=data)
    for i, view in enumerate(page.views):
        yield _PART.format(name=f"thumbnails/{i}", data=_compressed(view.thumbnails()))
        for j, layer in enumerate(view.layers if isinstance(view, View) else ()):
            yield _PART.format(name=f"layer/{i}/{j}", data=_compressed(layer.codes.astype("<u2").data))
    yield _TAIL.format(script=script)


def _compressed(data: bytes | memoryview) -> str:
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
