"""Plot the maps of a view as a figure for papers: one head with its tokens, or the grid of all layers and heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qkv.core.typing import Bool, Float
from qkv.errors import OptionError
from qkv.look.color_norms import INVALID_COLORS, MASKED_COLORS, label_range, range_norm, table_colormap
from qkv.look.color_range import ColorRange, automatic_range
from qkv.look.figure import DARK, INK, PAPER, column_inches, new_figure, trim_height
from qkv.look.heatmaps import attention
from qkv.look.quantize import MASKED, THUMBNAIL_SIZE, dequantize
from qkv.look.tiled_map import TiledView
from qkv.look.views import View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_view"]

_GAP = 2
"""Pixels between two maps of the grid, each of 32 × 32 pixels."""
_CHARACTERS_PER_INCH = 14
"""Characters of a title of 8.5 points that fit in one inch."""


def plot_view(
    view: View | TiledView,
    layer: int | None = None,
    head: int | None = None,
    *,
    width: float | str = "double",
    title: str | None = None,
    vmax: float | None = None,
    dark: bool = False,
) -> Figure:
    """Plot one head of a view with its tokens, or the grid of all its layers and heads, with a color bar.

    The colors are those of the attention page: faint below the weight of uniform attention, strongest from the weight
    that 99 % of the other cells do not exceed, grey for masked pairs, magenta for weights that are not finite. The maps
    of a grid share one range, except those whose weights are not shares of 1, such as flow: each has its own.

    Args:
        view: the view; of a view in tiles, only the grid can be plotted.
        layer: index of the layer; None: plot the grid.
        head: index of the head in its layer.
        width: `"single"` or `"double"` (one column, 3.5 inches, or two, 7.2 inches), or a number of inches.
        title: title of the figure; None: the name of the view, with those of layer and head; "": no title.
        vmax: the weight from which on the color is strongest; None: as above.
        dark: draw on a dark background.

    Returns:
        A matplotlib figure. `savefig` writes PNG with 300 pixels per inch, SVG or PDF; the text remains text, in PDF as
        TrueType.

    Raises:
        OptionError: the head does not exist, `layer` is given without `head`, or the view is in tiles.

    Example:
        >>> view = View.from_weights(np.eye(3)[None, None], ["a", "b", "c"], name="three words")
        >>> figure = plot_view(view, 0, 0, width="single")
        >>> figure.axes[0].get_title(), float(figure.get_size_inches()[0])
        ('three words: layer 0, head 0', 3.5)
    """
    inches = column_inches(width)
    if vmax is not None and not vmax > 0:
        raise OptionError(f"vmax must be positive, got {vmax!r}. Pass the weight from which on the color is strongest.")
    if (layer is None) != (head is None):
        raise OptionError(f"layer and head must be given together, got layer={layer!r} and head={head!r}.")
    if layer is None or head is None:
        return _grid(view, inches, _title(title, view.name, "", inches), vmax, dark)
    if isinstance(view, TiledView):
        raise OptionError(
            f"view must not be in tiles to plot one head, got {view.name!r} with {len(view.queries.tokens):,} tokens. "
            "Omit layer and head to plot the grid, or save a part of the map in the browser."
        )
    _check_index("layer", layer, len(view.layers))
    maps = view.layers[layer]
    _check_index("head", head, len(maps.heads))
    weights, allowed = view.weights(layer, head), view.allowed(layer, head)
    keys = (view.keys or view.queries).tokens
    figure = attention(
        keys,
        np.ma.masked_array(weights, ~allowed),
        queries=view.queries.tokens,
        title=_title(title, view.name, f": {maps.name}, {maps.heads[head]}", inches) or None,
        scale="auto",
        width=width,
        vmax=vmax,
        dark=dark,
        xlabel="key (attended)",
        ylabel="query (attends)",
    )
    invalid = np.ma.masked_array(np.ones(weights.shape), ~(np.isnan(weights) & allowed))
    if invalid.count():
        from matplotlib.colors import ListedColormap

        figure.axes[0].imshow(invalid, cmap=ListedColormap([INVALID_COLORS[dark]]), aspect=figure.axes[0].get_aspect())
    return figure


def _check_index(name: str, index: int, count: int) -> None:
    if not 0 <= index < count:
        raise OptionError(f"{name} must be between 0 and {count - 1}, got {index}. This view has {count}.")


def _title(title: str | None, name: str, head: str, inches: float) -> str:
    """Return the title, of which the name of the view is shortened to one line."""
    if title is not None:
        return title
    length = max(8, int(inches * _CHARACTERS_PER_INCH) - len(head))
    return (name if len(name) <= length else f"{name[: length - 1]}…") + head


def _grid(view: View | TiledView, inches: float, title: str, vmax: float | None, dark: bool) -> Figure:
    """Plot the thumbnails of all heads as one image, because hundreds of matplotlib axes would take half a minute."""
    if isinstance(view, TiledView):
        names = [(name, list(heads)) for name, heads in view.layers]
        ranges = [[one.range for one in heads.values()] for _, heads in view.layers]
    else:
        names = [(layer.name, list(layer.heads)) for layer in view.layers]
        ranges = [list(layer.ranges) for layer in view.layers]
    codes = np.frombuffer(view.thumbnails(), "<u2").reshape(-1, THUMBNAIL_SIZE, THUMBNAIL_SIZE)
    flat = [one for row in ranges for one in row]
    weights = dequantize(codes, [one.exponent for one in flat])
    masked = codes == MASKED
    shares = np.array([one.normalized for one in flat])
    q, k = len(view.queries.tokens), len((view.keys or view.queries).tokens)
    counts = np.full(1, k)
    common = automatic_range(weights[shares][~masked[shares]], counts, max(q, k) > THUMBNAIL_SIZE, vmax or 0.0)
    own = [common if one.normalized else automatic_range(panel, None) for panel, one in zip(weights, flat, strict=True)]
    pictures = [
        _colored(panel, hidden, colors, dark) for panel, hidden, colors in zip(weights, masked, own, strict=True)
    ]
    ink, paper = (DARK["ink"], DARK["paper"]) if dark else (INK, PAPER)
    pitch, across = THUMBNAIL_SIZE + _GAP, max(map(len, ranges))
    sheet = np.zeros((len(ranges) * pitch - _GAP, across * pitch - _GAP, 4))
    place = iter(pictures)
    for i, row in enumerate(ranges):
        for j in range(len(row)):
            sheet[i * pitch :, j * pitch :][:THUMBNAIL_SIZE, :THUMBNAIL_SIZE] = next(place)
    figure = new_figure((inches, min(9.0, inches * len(ranges) / across + 1.2)), 300, paper)
    figure.set_layout_engine("compressed")
    axes = figure.subplots()
    axes.imshow(sheet, interpolation="nearest")
    axes.set(xlim=(-1.5, sheet.shape[1] + 0.5), ylim=(sheet.shape[0] + 0.5, -1.5))
    _draw_frames(axes, names, [[one.normalized for one in row] for row in ranges], across, ink)
    middle = THUMBNAIL_SIZE / 2 - 0.5
    step = max(1, round(0.16 * across / inches + 0.49))
    axes.set_xticks([j * pitch + middle for j in range(0, across, step)], [str(j) for j in range(0, across, step)])
    axes.set_yticks([i * pitch + middle for i in range(len(names))], [_short(name) for name, _ in names])
    axes.set_xlabel("head", color=ink, fontsize=7.5)
    axes.xaxis.set_label_position("top")
    axes.tick_params(colors=ink, labelsize=6.5, length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_facecolor(paper)
    if title:
        figure.suptitle(title.replace("$", r"\$"), color=ink, fontsize=8.5)
    if shares.any():
        from matplotlib.cm import ScalarMappable

        extend = "max" if common.largest > common.top * 1.0005 else "neither"
        mappable = ScalarMappable(range_norm(common), table_colormap(common.signed, dark))
        bar = figure.colorbar(mappable, ax=axes, extend=extend, shrink=0.8, aspect=25)
        label_range(bar, common)
        bar.ax.set_xlabel("weight", color=ink, fontsize=6.5, loc="left")
        bar.ax.tick_params(colors=ink, labelsize=6.5)
        bar.outline.set_visible(False)
    trim_height(figure)
    return figure


def _draw_frames(
    axes: Axes, names: list[tuple[str, list[str]]], shares: list[list[bool]], across: int, ink: str
) -> None:
    """Draw a frame around each map of the grid, and name maps that are not heads beside their row."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    pitch = THUMBNAIL_SIZE + _GAP
    frames = [
        Rectangle((j * pitch - 0.5, i * pitch - 0.5), THUMBNAIL_SIZE, THUMBNAIL_SIZE)
        for i, (_, heads) in enumerate(names)
        for j in range(len(heads))
    ]
    axes.add_collection(PatchCollection(frames, facecolor="none", edgecolor=ink, linewidth=0.25))
    for i, (_, heads) in enumerate(names):
        if len(heads) < across and heads != [f"head {j}" for j in range(len(heads))]:
            text = ", ".join(
                f"{head}{'' if share else ' (own scale)'}" for head, share in zip(heads, shares[i], strict=True)
            )
            place = len(heads) * pitch + 2, i * pitch + THUMBNAIL_SIZE / 2
            axes.text(*place, text, color=ink, fontsize=6.5, va="center")


def _colored(
    weights: Float[np.ndarray, "q k"], masked: Bool[np.ndarray, "q k"], colors: ColorRange, dark: bool
) -> Float[np.ndarray, "q k 4"]:
    """Return a map as red, green, blue and opacity."""
    from matplotlib.colors import to_rgba

    share = colors.shares(weights)
    picture = table_colormap(colors.signed, dark)(np.nan_to_num((share + 1) / 2 if colors.signed else share))
    picture[np.isnan(weights)] = to_rgba(INVALID_COLORS[dark])
    picture[masked] = to_rgba(MASKED_COLORS[dark])
    return picture


def _short(name: str) -> str:
    return name if len(name) <= 16 else f"{name[:15]}…"
