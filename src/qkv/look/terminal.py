"""Format attention maps as text for the terminal.

With color, half-block characters show two queries per line in 24-bit color; without color, digits show one query
per line.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from itertools import zip_longest

import numpy as np

from qkv.core.printable import printable
from qkv.core.typing import Bool, Float
from qkv.look.color_range import ColorRange, automatic_range, color_cells, format_weight, share_one
from qkv.look.quantize import pool_largest
from qkv.look.token_text import shortened

_AXES = "query ↓ key →"
_MASKED, _INVALID = "·", "?"


def text_map(
    weights: Float[np.ndarray, "q k"],
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    width: int = 80,
    color: bool | None = None,
    allowed: Bool[np.ndarray, "q k"] | None = None,
) -> str:
    """Return an attention map as text for the terminal.

    A cell shows the weight of largest magnitude among those that it covers. The first line states the range: the
    color is that of the page's automatic range; digits are tenths of its upper end, rounded down, and negative weights
    have a minus sign. Masked pairs are grey or `·`, and weights that are not finite are magenta or `?`.

    Args:
        weights: the weights of one head.
        queries: token of each query, shown at the left.
        keys: token of each key, shown below the map if each key has a separate column.
        width: width of the terminal in characters.
        color: True: use 24-bit color; False: use digits from 0 to 9; None: use color, unless the environment variable
            NO_COLOR is set.
        allowed: whether each query may attend to each key; None: all pairs.

    Example:
        >>> print(text_map(np.array([[1.0, 0.0], [0.5, -0.5]]), ["he", "saw"], ["he", "saw"], color=False))
        query ↓ key →   9: from 0.900, largest magnitude 1.00
         he   9 0
        saw   5−5
              h s
              e a
                w
    """
    queries, keys = [printable(name) for name in queries], [printable(name) for name in keys]
    if color is None:
        color = not os.environ.get("NO_COLOR")
    allowed = np.ones(weights.shape, bool) if allowed is None else np.broadcast_to(allowed, weights.shape)
    finite = np.isfinite(weights)
    signed = bool((np.where(allowed & finite, weights, 0) < 0).any())
    names = list(queries)
    if color:  # two queries share a line
        short = [_aligned(name, min(9, len(name))) for name in queries]
        names = ["/".join(short[top : top + 2]) for top in range(0, len(short), 2)]
    margin = min(19 if color else 14, max(map(len, names), default=0))
    available = max(1, width - margin - 2)
    cell_width = max(1, min(3, available // max(1, len(keys)))) if color else 2 if signed else 1
    known = np.where(allowed, np.where(finite, weights, np.inf), np.nan)
    cells = pool_largest(known, len(weights), available // cell_width)
    masked, cells, columns = np.isnan(cells), np.where(np.isinf(cells), np.nan, cells), cells.shape[1]
    counts = allowed.sum(axis=1) if share_one(weights, allowed) else None
    colors = automatic_range(cells[~masked], counts, pooled=columns < len(keys))
    lines = _header(colors, color, width)
    if color:
        shades = color_cells(cells, masked, colors, True).tolist()
        pairs = zip_longest(shades[::2], shades[1::2], fillvalue=[None] * columns)
        rows = ["".join(_block(*pair) * cell_width for pair in zip(*both, strict=True)) + "\x1b[0m" for both in pairs]
    else:
        rows = ["".join(digit.rjust(cell_width) for digit in row) for row in _digits(cells, masked, _limit(colors))]
    lines += [f"{_aligned(name, margin)}  {row}" for name, row in zip(names, rows, strict=True)]
    if len(keys) == columns:
        for letters in zip_longest(*(key[:12] for key in keys), fillvalue=" "):
            labels = "".join(letter.ljust(cell_width) if color else letter.rjust(cell_width) for letter in letters)
            lines.append(" " * (margin + 2) + labels.rstrip())
    return "\n".join(lines)


def _header(colors: ColorRange, color: bool, width: int) -> list[str]:
    """Return the lines above the map, which state the range of the weights."""
    scale = f"largest {'magnitude ' if colors.signed else ''}{format_weight(colors.largest)}"
    if colors.largest > 0 and color:
        ends = f"faint below {format_weight(colors.start)}, brightest from {format_weight(colors.top)}"
        scale = f"{ends}, {scale}{'; orange: negative' if colors.signed else ''}"
    elif colors.largest > 0:
        scale = f"9: from {format_weight(0.9 * _limit(colors))}, {scale}"
    line = f"{_AXES}   {scale}"
    return [line] if len(line) <= width else [_AXES, *textwrap.wrap(scale, max(1, width))]


def _limit(colors: ColorRange) -> float:
    """Return the weight of which digits are tenths."""
    return min(colors.top, colors.largest) or 1.0


def _digits(cells: Float[np.ndarray, "q k"], masked: Bool[np.ndarray, "q k"], limit: float) -> list[list[str]]:
    tenths = np.minimum(9, np.floor(10 * np.abs(np.nan_to_num(cells)) / limit + 1e-9)).astype(int)
    texts = np.char.add(np.where((np.nan_to_num(cells) < 0) & (tenths > 0), "−", ""), tenths.astype(str))
    shown: list[list[str]] = np.where(masked, _MASKED, np.where(np.isnan(cells), _INVALID, texts)).tolist()
    return shown


def _aligned(word: str, margin: int) -> str:
    return shortened(word, margin).rjust(margin)


def _block(upper: list[int], lower: list[int] | None) -> str:
    r, g, b = upper
    if lower is None:
        return f"\x1b[0m\x1b[38;2;{r};{g};{b}m▀"
    r2, g2, b2 = lower
    return f"\x1b[38;2;{r};{g};{b};48;2;{r2};{g2};{b2}m▀"
