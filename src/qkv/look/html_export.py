"""One file with everything in it: module, words and maps. It asks nothing of any network."""

import base64
import gzip
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from qkv.core.files import write_atomic
from qkv.errors import DataError
from qkv.look.bundle import bundle, read_web_file
from qkv.look.page import Page
from qkv.look.tiled_map import TiledView

__all__ = ["export", "page_html"]

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
<noscript>This page draws with JavaScript. Switch it on.</noscript>
<script type="application/json" id="data">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def export(page: Page, path: str | os.PathLike[str]) -> Path:
    """Write a page as one HTML file; it is there whole or not at all.

    Raises:
        DataError: the name does not end in .html, or the file cannot be written.
    """
    target = Path(path)
    if target.suffix.lower() not in (".html", ".htm"):
        raise DataError(f"{target.name!r} does not end in .html. Rename it, so that a browser opens it.")
    write_atomic(target, page_html(page).encode())
    return target


def page_html(page: Page) -> str:
    """The text of that file.

    Each layer is packed by itself (gzip, base64), so that a head is shown before all are unpacked.
    """
    parts = {}
    for i, view in enumerate(page.views):
        if isinstance(view, TiledView):
            raise DataError(
                f"{view.name!r} has {len(view.queries.tokens):,} tokens: its map is made where it is looked "
                "at, and does not fit a file. Serve it, or save a part of it from the page."
            )
        parts[f"thumbs/{i}"] = _packed(page.thumbs(i))
        for j, layer in enumerate(view.layers):
            parts[f"layer/{i}/{j}"] = _packed(layer.codes.tobytes())
    script, style = bundle("exported.js"), read_web_file("style.css") + read_web_file("page.css")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return _HEAD.format(
        policy=policy,
        title=_text(page.title),
        style=style,
        data=_json({"meta": page.meta(), "parts": parts}),
        script=script,
    )


def _packed(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(value: Any) -> str:
    # A token may hold "</script>": within a script element only "<" begins anything.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _text(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
