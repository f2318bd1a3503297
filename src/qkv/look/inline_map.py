"""Draw one head as SVG of attributes alone, for notebooks and for pages whose policy forbids scripts and styles."""

from __future__ import annotations

import base64
from html import escape
from itertools import groupby

import numpy as np

from qkv.core.printable import printable
from qkv.core.typing import Num
from qkv.look.color_range import automatic_range, color_cells, format_weight
from qkv.look.quantize import MASKED, dequantize, thumbnails
from qkv.look.token_text import shortened
from qkv.look.views import BaseView, Opening, View

_WIDTH, _HEIGHT, _TOP, _TEXT, _LINE = 600, 400, 44, 13, 17
"""Sizes in pixels: of the picture, of its title, of its text and of a line of text."""
_CHARACTER = 7.4
"""Mean width of a character in pixels."""
_MOST_CELLS = 48
"""Number of tokens up to which each pair has a cell; more are drawn as a thumbnail."""


def map_svg(view: BaseView, layer: int | None = None, head: int | None = None) -> str:
    """Return one head as SVG of 600 × 400 pixels, with the largest weights of the query that the page shows first.

    The SVG is a part of HTML, too: it has no styles, scripts or addresses, and an alternative text.

    Args:
        view: the view; long texts have a map without names.
        layer, head: the head; None: the one that the page shows first.

    Raises:
        OptionError: the head does not exist.

    Example:
        >>> svg = map_svg(View.from_weights(np.eye(2)[None, None], ["<b>", "c"], name="two tokens"))
        >>> svg.startswith("<svg "), "&lt;b&gt;" in svg, "style" in svg
        (True, True, False)
    """
    opening = view.opening or Opening()
    layer, head = (opening.layer if layer is None else layer), (opening.head if head is None else head)
    view.check_head(layer, head)
    maps = view.layers[layer]
    codes, extent = maps.preview(head), maps.ranges[head]
    rows, columns = view.queries.tokens, view.columns.tokens
    named = isinstance(view, View) and max(codes.shape) <= _MOST_CELLS
    shown = codes if named else thumbnails(codes[None])[0]
    weights, masked = dequantize(shown, extent.exponent), shown == MASKED
    counts = np.full(1, len(columns)) if extent.normalized else None
    colors = automatic_range(weights[~masked], counts, not named)
    left, below = (_TEXT + _CHARACTER * min(12, max(map(len, names))) if named else 8.0 for names in (rows, columns))
    side = min(_HEIGHT - _TOP - below - 2 * _LINE, _WIDTH - left - 200)
    name = f" · {maps.name}, {maps.heads[head]}"
    roles = ", ".join(role.role for role in view.roles.get((layer, head), ()))
    title = shortened(view.name, max(8, 76 - len(name))) + name
    parts = [_text(8, 18, title, weight="bold"), _text(8, 36, roles and f"role: {roles}")]
    parts += _cells(color_cells(weights, masked, colors, False), left, _TOP, side, side)
    for axis, names in enumerate((rows, columns) if named else ()):
        step = max(1, -(-len(names) * _LINE // int(side)))
        for i in range(0, len(names), step):
            at = (i + 0.5) * side / len(names)
            x, y = (left + at, _TOP + side + 5) if axis else (left - 5, _TOP + at)
            turned = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if axis else ""
            more = f' dominant-baseline="middle"{turned}'
            parts.append(_text(x, y, shortened(names[i], 12), anchor="end", more=more))
    parts.append(_text(left, _HEIGHT - 10, "rows attend to columns"))
    bar, steps = left + side + 20, colors.weights(np.linspace(-float(colors.signed), 1.0, 61))
    parts += _cells(color_cells(steps[None], np.zeros((1, 61), bool), colors, False), bar, _HEIGHT - 42, 150, 12)
    for i, anchor in ((0, "start"), (30, "middle"), (60, "end")):
        parts.append(_text(bar + 2.5 * i, _HEIGHT - 12, format_weight(float(steps[i])), anchor=anchor))
    said = f"Attention map of {view.name}{name}."
    if isinstance(view, View):
        row = np.where(view.allowed(layer, head)[opening.query], view.weights(layer, head)[opening.query], np.nan)
        best = np.argsort(-np.abs(row), kind="stable")[: min(8, int(np.isfinite(row).sum()))]
        lines = [f"“{shortened(rows[opening.query], 14)}” attends to"]
        lines += [f"{format_weight(row[key])} {shortened(columns[key], 14)}" for key in best]
        parts += [_text(bar, _TOP + 14 + i * _LINE, line) for i, line in enumerate(lines)]
        said += f" {lines[0]} {', '.join(lines[1:4])}."
    alternative = escape(printable(said))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'role="img" aria-label="{alternative}" font-family="system-ui, sans-serif" font-size="{_TEXT}" fill="#1c2129">'
        f'<title>{alternative}</title><rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>'
    )


def map_image(view: BaseView) -> str:
    """Return `map_svg` as an image with an alternative text, which notebooks that are not trusted show, too."""
    data = base64.b64encode(map_svg(view).encode()).decode()
    return f'<img alt="{escape(printable(repr(view)))}" width="{_WIDTH}" src="data:image/svg+xml;base64,{data}">'


BaseView._repr_html_ = map_image  # the picture imports the views


def _cells(colors: Num[np.ndarray, "q k 3"], left: float, top: float, width: float, height: float) -> list[str]:
    """Return rectangles, of which one covers neighbours of the same color."""
    down, across = height / len(colors), width / colors.shape[1]
    rectangles = []
    for y, row in enumerate(colors.tolist()):
        x = 0
        for (red, green, blue), same in groupby(row):
            count = len(list(same))
            size = f'width="{count * across + 0.2:.1f}" height="{down + 0.2:.1f}"'
            place = f'x="{left + x * across:.1f}" y="{top + y * down:.1f}"'
            rectangles.append(f'<rect {place} {size} fill="#{red:02x}{green:02x}{blue:02x}"/>')
            x += count
    frame = f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{height:.1f}" fill="none" stroke="#808080"/>'
    return [*rectangles, frame]


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal", more: str = "") -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}"{more}'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(printable(text))}</text>' if text else ""
