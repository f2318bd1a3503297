"""A map in the terminal: half blocks in 24-bit colour, two queries to a line; or digits, without colour."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from qkv.look.heatmaps import shrink

__all__ = ["text_map"]

_HALF = "▀"
_STOPS = np.array([[24, 24, 28], [74, 20, 40], [190, 30, 45], [250, 140, 80], [255, 245, 220]], float)


def text_map(
    weights: np.ndarray,
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    width: int = 80,
    colour: bool | None = None,
) -> str:
    """A map `(queries, keys)` as text; each spot is the largest weight that it covers.

    Args:
        weights: of one head.
        queries, keys: their words. Keys are named below, where there is room for each.
        width: columns of the terminal.
        colour: 24-bit colour, or digits 0 to 9 (tenths of the largest weight); None: colour, unless the
            variable NO_COLOR is set.

    Example:
        >>> print(text_map(np.array([[1.0, 0.0], [0.5, 0.5]]), ["he", "saw"], ["he", "saw"], colour=False))
        query ↓ key →   largest 1.00
         he  90
        saw  55
             hs
             ea
              w
    """
    if colour is None:
        colour = not os.environ.get("NO_COLOR")
    most = float(weights.max(initial=0.0))
    share = weights / most if most > 0 else np.zeros_like(weights)
    names = _pairs(queries) if colour else list(queries)
    margin = min(19 if colour else 14, max(map(len, names), default=0))
    across = max(1, width - margin - 2)
    each = max(1, min(3, across // max(1, len(keys)))) if colour else 1
    small = shrink(share, len(share), across // each)
    wide = small.shape[1]
    lines = [f"query ↓ key →   largest {most:.2f}"]
    named = len(keys) == wide
    if colour:
        for top in range(0, len(small), 2):
            pair = small[top : top + 2]
            name = _name(names[top // 2], margin)
            cells = "".join(_cell(pair[0, j], pair[1, j] if len(pair) > 1 else None) * each for j in range(wide))
            lines.append(f"{name}  {cells}\x1b[0m")
    else:
        for row, name in zip(small, names, strict=True):
            digits = "".join(str(min(9, int(10 * value))) for value in row)
            lines.append(f"{_name(name, margin)}  {digits}")
    if named:
        deep = min(12, max((len(key) for key in keys), default=0))
        for at in range(deep):
            letters = "".join((key[at] if at < len(key) else " ").ljust(each) for key in keys)
            lines.append(" " * (margin + 2) + letters.rstrip())
    return "\n".join(lines)


def _pairs(words: Sequence[str]) -> list[str]:
    """The words of two queries that share a line, the upper one first."""
    short = [_name(word, min(9, len(word))) for word in words]
    return ["/".join(short[top : top + 2]) for top in range(0, len(short), 2)]


def _name(word: str, margin: int) -> str:
    return (word if len(word) <= margin else word[: margin - 1] + "…").rjust(margin)


def _cell(upper: float, lower: float | None) -> str:
    r, g, b = _rgb(upper)
    if lower is None:
        return f"\x1b[0m\x1b[38;2;{r};{g};{b}m{_HALF}"
    r2, g2, b2 = _rgb(lower)
    return f"\x1b[38;2;{r};{g};{b};48;2;{r2};{g2};{b2}m{_HALF}"


def _rgb(share: float) -> tuple[int, int, int]:
    at = float(np.sqrt(share)) * (len(_STOPS) - 1)
    low = min(int(at), len(_STOPS) - 2)
    mixed = _STOPS[low] + (at - low) * (_STOPS[low + 1] - _STOPS[low])
    red, green, blue = (round(float(part)) for part in mixed)
    return red, green, blue
