"""Format attention maps as text for the terminal.

With color, half-block characters show two queries per line in 24-bit color; without color, digits show one query
per line.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import zip_longest

import numpy as np

from qkv.core.printable import printable
from qkv.core.typing import Float
from qkv.look.quantize import max_pool

__all__ = ["text_map"]

_HALF = "▀"
_STOPS = np.array([[24, 24, 28], [74, 20, 40], [190, 30, 45], [250, 140, 80], [255, 245, 220]], float)


def text_map(
    weights: Float[np.ndarray, "q k"],
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    width: int = 80,
    color: bool | None = None,
) -> str:
    """Return an attention map as text for the terminal. A cell shows the maximum of the weights that it covers.

    Args:
        weights: the weights of one head.
        queries: token of each query, shown at the left.
        keys: token of each key, shown below the map if each key has a separate column.
        width: width of the terminal in characters.
        color: True: use 24-bit color; False: use digits from 0 to 9, tenths of the maximum; None: use color,
            unless the environment variable NO_COLOR is set.

    Example:
        >>> print(text_map(np.array([[1.0, 0.0], [0.5, 0.5]]), ["he", "saw"], ["he", "saw"], color=False))
        query ↓ key →   maximum 1.00
         he  90
        saw  55
             hs
             ea
              w
    """
    queries, keys = [printable(name) for name in queries], [printable(name) for name in keys]
    if color is None:
        color = not os.environ.get("NO_COLOR")
    maximum = float(weights.max(initial=0.0))
    share = weights / maximum if maximum > 0 else np.zeros_like(weights)
    names = _pair_names(queries) if color else list(queries)
    margin = min(19 if color else 14, max(map(len, names), default=0))
    available = max(1, width - margin - 2)
    cell_width = max(1, min(3, available // max(1, len(keys)))) if color else 1
    cells = max_pool(share, len(share), available // cell_width)
    columns = cells.shape[1]
    lines = [f"query ↓ key →   maximum {maximum:.2f}"]
    if color:
        pairs = zip_longest(cells[::2], cells[1::2], fillvalue=[None] * columns)
        rows = ["".join(_block(*pair) * cell_width for pair in zip(*both, strict=True)) + "\x1b[0m" for both in pairs]
    else:
        rows = ["".join(str(min(9, int(10 * value))) for value in values) for values in cells]
    lines += [f"{_aligned(name, margin)}  {row}" for name, row in zip(names, rows, strict=True)]
    if len(keys) == columns:
        for letters in zip_longest(*(key[:12] for key in keys), fillvalue=" "):
            labels = "".join(letter.ljust(cell_width) for letter in letters)
            lines.append(" " * (margin + 2) + labels.rstrip())
    return "\n".join(lines)


def _pair_names(words: Sequence[str]) -> list[str]:
    """Join the names of each two consecutive queries, which share a line, and truncate each name to 9 characters."""
    short = [_aligned(word, min(9, len(word))) for word in words]
    return ["/".join(short[top : top + 2]) for top in range(0, len(short), 2)]


def _aligned(word: str, margin: int) -> str:
    return (word if len(word) <= margin else word[: margin - 1] + "…").rjust(margin)


def _block(upper: float, lower: float | None) -> str:
    r, g, b = _rgb(upper)
    if lower is None:
        return f"\x1b[0m\x1b[38;2;{r};{g};{b}m{_HALF}"
    r2, g2, b2 = _rgb(lower)
    return f"\x1b[38;2;{r};{g};{b};48;2;{r2};{g2};{b2}m{_HALF}"


def _rgb(share: float) -> tuple[int, int, int]:
    positions = np.linspace(0, 1, len(_STOPS))
    red, green, blue = (round(float(np.interp(np.sqrt(share), positions, channel))) for channel in _STOPS.T)
    return red, green, blue
