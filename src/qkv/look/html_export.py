"""Export a page as one self-contained HTML file that makes no network requests."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import html
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from qkv.core.files import check_writable, write_atomic
from qkv.core.typing import Num
from qkv.errors import DataError, MissingPackageError
from qkv.look.bundle import bundle, read_web_file
from qkv.look.page import Page
from qkv.look.tiled_map import TiledView
from qkv.look.views import View

__all__ = ["HTML_SUFFIXES", "document_pieces", "export_html", "html_pieces", "page_html"]

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

    Raises:
        DataError: the path does not end in .html, the page has tiled views, or the file cannot be written.
    """
    target = Path(path)
    check_writable(target, "the page", HTML_SUFFIXES)
    pieces = html_pieces(page)
    write_atomic(target, lambda stream: stream.writelines(piece.encode() for piece in pieces), "the page")
    return target


def page_html(page: Page) -> str:
    """Return the HTML text of a page, which contains all scripts, styles and attention maps."""
    return "".join(html_pieces(page))


def html_pieces(page: Page, link: str = "") -> Iterator[str]:
    """Return an iterator over the pieces of the HTML text of a page, of which one layer at a time is in memory.

    Each layer is compressed separately (gzip, base64), so that a head is shown before all layers are unpacked.

    Args:
        page: a page without tiled views.
        link: the state in which the file opens, as the fragment of a link to the page; empty: its usual start.

    Raises:
        DataError: the page has tiled views.
    """
    for view in page.views:
        if isinstance(view, TiledView):
            raise DataError(
                f"page must not contain tiled views, got the tiled view {view.name!r} of {len(view.queries.tokens):,} "
                "tokens. Serve the page instead of exporting it, and save a part of the map in the browser."
            )
    return _pieces(page, link)


def _pieces(page: Page, link: str) -> Iterator[str]:
    style = read_web_file("style.css") + read_web_file("page.css")
    meta = {**page.meta(), "link": link} if link else page.meta()
    return document_pieces(page.title, bundle("exported.js"), style, meta, _parts(page))


def _parts(page: Page) -> Iterator[tuple[str, bytes | memoryview]]:
    # Without the font, the exported file cannot save PDF files, and states the reason.
    with contextlib.suppress(MissingPackageError):
        yield "font", page.font()
    for i, view in enumerate(page.views):
        yield f"thumbnails/{i}", view.thumbnails()
        if isinstance(view, View) and view.picture is not None:
            yield f"pixels/{i}", view.pixels()
        for j, layer in enumerate(view.layers if isinstance(view, View) else ()):
            yield f"layer/{i}/{j}", _by_significance(layer.codes)
            if layer.value_norms is not None:
                yield f"values/{i}/{j}", page.read("value_norms", [i, j])
        if isinstance(view, View) and view.predictions is not None:
            yield f"predictions/{i}", page.read("predictions", [i])


def document_pieces(
    title: str, script: str, style: str, meta: object, parts: Iterable[tuple[str, bytes | memoryview]]
) -> Iterator[str]:
    """Return an iterator over the pieces of a self-contained HTML text.

    Args:
        title: title of the page.
        script: the JavaScript module of the page.
        style: its style sheet.
        meta: its metadata, which is valid JSON and becomes the element with the id "data".
        parts: names and bytes of other data, which are compressed (gzip, base64) and become elements with these ids.
    """
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    # A token may contain "</script>", so "<", which starts every tag, is escaped.
    data = json.dumps(meta, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    yield _HEAD.format(policy=policy, title=html.escape(title, quote=False), style=style, data=data)
    for name, content in parts:
        yield _PART.format(name=name, data=_compressed(content))
    yield _TAIL.format(script=script)


def _by_significance(codes: Num[np.ndarray, "*shape"]) -> bytes:
    """Return the low bytes of all codes, then the high bytes, which gzip makes a fifth smaller than codes in turn."""
    return codes.astype("<u2").reshape(-1, 1).view(np.uint8).T.tobytes()


def _compressed(data: bytes | memoryview) -> str:
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
