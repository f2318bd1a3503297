"""Export a page as one self-contained HTML file that makes no network requests."""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from qkv.core.files import check_writable, write_atomic
from qkv.core.progress import Progress, track
from qkv.core.threads import one_blas_thread
from qkv.core.typing import Num
from qkv.errors import DataError
from qkv.look.bundle import bundle, read_web_file
from qkv.look.head_call import FINE, SMALL, pack_heads
from qkv.look.page import Page
from qkv.look.tiled_map import TiledLayer, TiledView
from qkv.look.views import LayerMaps, View

HTML_SUFFIXES = (".html", ".htm")

_FILES = re.compile(r'<link rel="stylesheet".*<script type="module"[^\n]*\n', re.DOTALL)
"""The files of the served page, in place of which an exported page has their contents."""
_LETTERS = bytes.maketrans(b"\0\r<", b"\x80\x81\x82")
_PART = '<script type="text/plain" id="{name}">{data}</script>\n'


def export_html(
    page: Page, path: str | os.PathLike[str], *, small: bool = False, progress: Progress | None = None
) -> Path:
    """Write a page to a self-contained HTML file atomically.

    Args:
        page: the page.
        path: the file, whose name ends in .html.
        small: store queries and keys with fewer digits, which halves the file; the median error of a weight is 1 %.
        progress: called after each layer.

    Raises:
        DataError: the path does not end in .html, the file cannot be written, or a tiled view has heads whose logits
            are not products of queries and keys.
    """
    return write_pieces(path, html_pieces(page, small=small, progress=progress))


def write_pieces(path: str | os.PathLike[str], pieces: Iterable[str]) -> Path:
    """Write the pieces of the HTML text of a page to a file atomically, after checking its path."""
    target = Path(path)
    check_writable(target, "the page", HTML_SUFFIXES)
    with one_blas_thread():
        write_atomic(target, lambda stream: stream.writelines(piece.encode() for piece in pieces), "the page")
    return target


def html_pieces(page: Page, link: str = "", *, small: bool = False, progress: Progress | None = None) -> Iterator[str]:
    """Return an iterator over the pieces of the HTML text of a page, of which one layer at a time is in memory.

    Each layer is compressed separately, so that a head is shown before all layers are unpacked.

    Args:
        page: the page.
        link: the state in which the file opens, as the fragment of a link to the page; empty: its usual start.
        small, progress: as in `export_html`.

    Raises:
        DataError: a tiled view has heads whose logits are not products of queries and keys.
    """
    page = replace(page, views=tuple(one.coarser() if isinstance(one, TiledView) else one for one in page.views))
    meta = {**page.meta(), "link": link} if link else page.meta()
    return document_pieces(page.title, "exported.js", meta, _parts(page, SMALL if small else FINE, progress))


def _parts(page: Page, error: float, progress: Progress | None) -> Iterator[tuple[str, str]]:
    for i, j in itertools.combinations(range(len(page.views)), 2):
        yield f"aligned/{i}/{j}", part_text(page.read("aligned", [i, j]))
    every: list[tuple[int, int, LayerMaps | TiledLayer]] = []
    for i, view in enumerate(page.views):
        layers: Sequence[LayerMaps | TiledLayer] = view.layers
        every += [(i, j, layer) for j, layer in enumerate(layers)]
        yield f"thumbnails/{i}", part_text(page.read("thumbnails", [i]))
        if isinstance(view, View):
            for request in ["pixels"] * (view.image is not None) + ["predictions"] * (view.predictions is not None):
                yield f"{request}/{i}", part_text(page.read(request, [i]))
    for i, j, layer in track(every, "writing the page", progress):
        view = page.views[i]
        packed = None if layer.calls is None else pack_heads(layer.calls, len(view.queries.tokens), error)
        if packed is not None:
            yield f"vectors/{i}/{j}", part_text(packed, zlib.Z_RLE)
        if isinstance(layer, LayerMaps):
            if packed is None:
                yield f"layer/{i}/{j}", part_text(_by_significance(layer.codes))
            if layer.value_norms is not None:
                yield f"value_norms/{i}/{j}", part_text(page.read("value_norms", [i, j]))
            continue
        if packed is None:
            raise DataError(
                "the logits of a long text must be products of queries and keys to be exported, got another "
                f"score in {layer.name!r} of {view.name!r}. Serve the page instead, or shorten the text."
            )
        tiles = np.stack([tile for one in layer.maps.values() for tile in one.overview_tiles()])
        yield f"tiles/{i}/{j}", part_text(_by_significance(tiles))


def document_pieces(title: str, entry: str, meta: object, parts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Return an iterator over the pieces of a self-contained HTML text.

    Args:
        title: title of the page.
        entry: the file of its JavaScript module.
        meta: its metadata, which is valid JSON and becomes the element with the id "data".
        parts: names and texts of other data, from `part_text`, which become elements with these ids.
    """
    script, style = bundle(entry), "".join(map(read_web_file, ("style.css", "page.css", "answers.css")))
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    head, body = _FILES.split(read_web_file("page.html"))
    named = head.replace("<title>qkv", f"<title>{html.escape(title, quote=False)}")
    yield f'{named}<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>\n'
    # A token may contain "</script>", so "<", which starts every tag, is escaped.
    data = json.dumps(meta, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    yield body.replace("</body>\n</html>\n", f'<script type="application/json" id="data">{data}</script>\n')
    for name, content in parts:
        yield _PART.format(name=name, data=content)
    yield f'<script type="module">{script}</script>\n</body>\n</html>\n'


def _by_significance(codes: Num[np.ndarray, "*shape"]) -> bytes:
    """Return the low bytes of all codes, then the high bytes, which gzip makes a fifth smaller than codes in turn."""
    return codes.astype("<u2").reshape(-1, 1).view(np.uint8).T.tobytes()


def part_text(data: bytes, strategy: int = zlib.Z_DEFAULT_STRATEGY) -> str:
    """Return compressed data (gzip) as text with seven bits in each letter, which base64 makes a sixth longer.

    Letters that HTML does not preserve are replaced by letters above 127.
    """
    compressor = zlib.compressobj(6, zlib.DEFLATED, 31, 9, strategy)
    packed = compressor.compress(data) + compressor.flush()
    sevens = np.frombuffer(packed + bytes(-len(packed) % 7), np.uint8).reshape(-1, 7)
    words = np.pad(sevens, ((0, 0), (1, 0))).view(">u8")
    letters = ((words >> np.arange(49, -1, -7, dtype=np.uint64)) & np.uint64(127)).astype(np.uint8)
    return letters.tobytes()[: -(-8 * len(packed) // 7)].translate(_LETTERS).decode("latin-1")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
