"""Subset of a TrueType font with the characters of a page, which the page embeds in the PDF files that it writes."""

from __future__ import annotations

import base64
import io
import json
import string
from collections.abc import Iterable
from functools import lru_cache

from qkv.core.extras import require_packages

__all__ = ["font_subset"]

_ALWAYS = string.printable + "…·×−–—→←↓↑≈“”‘’§°±µ"
"""Characters that every subset has: those of numbers, labels and legends."""


def font_subset(texts: Iterable[str]) -> bytes:
    """Return a subset of DejaVu Sans, the font of matplotlib, with the characters of texts, as JSON.

    Args:
        texts: the texts; the font has no glyph for some characters, such as those of Chinese.

    Returns:
        JSON with the TrueType file in base64 (`data`), `units` per em, `ascent`, `descent`, `capHeight` and `box` in
        units, and `glyphs`: for each character that the font has, its code point, the index of its glyph and the
        advance in units.

    Raises:
        MissingPackageError: matplotlib, which contains the font, is not installed.

    Example:
        >>> glyphs = json.loads(font_subset(["ß"]))["glyphs"]
        >>> str(ord("ß")) in glyphs, str(ord("字")) in glyphs
        (True, False)
    """
    return _subset("".join(sorted(set(_ALWAYS).union(*texts))))


@lru_cache(maxsize=4)
def _subset(characters: str) -> bytes:
    require_packages("figures as PDF need", "look", "matplotlib")
    # fontTools is a dependency of matplotlib.
    from fontTools import subset, ttLib
    from matplotlib import get_data_path

    font = ttLib.TTFont(f"{get_data_path()}/fonts/ttf/DejaVuSans.ttf")
    options = subset.Options(
        notdef_outline=True,
        layout_features=[],
        drop_tables=["FFTM", "GSUB", "GPOS", "GDEF", "kern"],
        name_IDs=[1, 2, 6],
        hinting=False,
    )
    subsetter = subset.Subsetter(options)
    subsetter.populate(text=characters)
    subsetter.subset(font)
    stream = io.BytesIO()
    font.save(stream)
    names, advances, head = font.getBestCmap(), font["hmtx"].metrics, font["head"]
    return json.dumps(
        {
            "data": base64.b64encode(stream.getvalue()).decode(),
            "units": head.unitsPerEm,
            "ascent": font["hhea"].ascent,
            "descent": font["hhea"].descent,
            "capHeight": font["glyf"]["H"].yMax,
            "box": [head.xMin, head.yMin, head.xMax, head.yMax],
            "glyphs": {code: [font.getGlyphID(name), advances[name][0]] for code, name in names.items()},
        },
        separators=(",", ":"),
    ).encode()
