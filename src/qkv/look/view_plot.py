"""Plot the maps of a view as a figure for papers: one head with its tokens, or the grid of all layers and heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.core.typing import ArrayLike, Float
from qkv.errors import OptionError, ShapeError
from qkv.look.allowed_pairs import infer_causal
from qkv.look.color_range import (
    INVALID_COLORS,
    MASKED_COLORS,
    automatic_range,
    color_cells,
    color_norm,
    color_table,
    label_range,
    range_norm,
    share_one,
    table_colormap,
)
from qkv.look.difference import Difference
from qkv.look.figure import (
    CURVE_COLOR,
    INKS,
    PRINT_DPI,
    add_color_bar,
    color_figure,
    column_inches,
    extension,
    new_figure,
    trim_height,
)
from qkv.look.quantize import MASKED, THUMBNAIL_SIZE, dequantize, pool_largest, to_numpy
from qkv.look.tiled_map import TiledView
from qkv.look.token_text import shortened
from qkv.look.views import BaseView, View

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.cm import ScalarMappable
    from matplotlib.colorbar import Colorbar
    from matplotlib.figure import Figure


_MIN_PANEL_INCHES = 1.35
_MIN_CELL_PIXELS = 3
"""Minimum width of a cell, so that a single large weight is visible."""
_DPI = 150
_MAX_PRINT_HEIGHT = 9.0
"""Height in inches that a figure of a given width does not exceed, so that it fits on a page."""
_TEXT_POINTS = {False: (8.0, 10.0, 10.0), True: (6.5, 7.5, 8.5)}
"""Points of tick labels, axis labels and titles, on the screen and in print."""
_LABEL_INCHES = 0.13 / 8
"""Inches between tick labels, per point of their size."""


def heatmaps(
    weights: ArrayLike,
    xlabel: str = "Keys",
    ylabel: str = "Queries",
    titles: Sequence[str] | None = None,
    figsize: tuple[float, float] = (2.5, 2.5),
    cmap: str = "Reds",
    *,
    keys: Sequence[str] | None = None,
    queries: Sequence[str] | None = None,
    rows: Sequence[str] | None = None,
    vmax: float | None = None,
    scale: str = "linear",
    dark: bool = False,
    width: float | str | None = None,
    title: str | None = None,
) -> Figure:
    """Plot weights `(rows, columns, q, k)` as a grid of heatmaps with one color bar.

    Args:
        weights: array of any supported library; two axes give one panel, and three axes give one row of panels.
        xlabel: label of the horizontal axis.
        ylabel: label of the vertical axis.
        titles: one title per column of panels.
        figsize: size of the figure in inches; it is increased if the panels would be too small to read.
        cmap: a matplotlib color map. `Reds` runs from light to dark in one hue, so it can be read without
            distinguishing red from green. If weights are negative, it is replaced by `RdBu_r`, which is white at 0.
        keys: tick labels of the horizontal axis; if not all labels fit, only every n-th is drawn.
        queries: tick labels of the vertical axis; long labels of both are shortened.
        rows: one name per row of panels.
        vmax: the upper end of the color scale; None: the largest magnitude, but at least 1. Pass the largest weight
            if all weights are small. The scale starts at 0, or at −`vmax` if weights are negative. An arrow at the end
            of the color bar marks larger magnitudes.
        scale: `"linear"`, `"sqrt"`, `"log"`, `"auto"` or `"difference"`; the logarithmic scale starts at
            `vmax` / 10,000. With negative weights, the scale applies to magnitudes. `"auto"` is the automatic range of
            the attention page, which suits causal maps: weights below that of uniform attention are faint, and the
            color is strongest from the weight that 99 % of the others do not exceed, or from `vmax`. `"difference"` has
            the same end, and is linear around 0.
        dark: draw light labels on a dark background; `Reds` is replaced by a color map with a dark lower end.
        width: width of the figure in print: `"single"` or `"double"` (one column, 3.5 inches, or two, 7.2 inches), or
            a number of inches. The height follows from the maps, and `figsize` is ignored. None: as in `figsize`.
        title: title of the figure.

    Cells of NaN, and masked cells of a NumPy masked array, are grey.

    Returns:
        A matplotlib figure; `savefig` writes PNG, SVG or PDF, whose text is text (TrueType in PDF), and notebooks
        display it.

    Raises:
        ShapeError: the array does not have two to four axes, or the number of names is wrong.
        OptionError: the scale or the width is unknown, or `vmax` is not positive.
        MissingPackageError: matplotlib is not installed.

    Example:
        >>> figure = heatmaps(np.eye(10)[None, None])
        >>> [axes.get_xlabel() for axes in figure.axes]
        ['Keys', 'weight']
    """
    panels = _panels(weights)
    down, across, q, k = panels.shape
    counts_of = {"column of panels": across, "row of panels": down, "query": q, "key": k}
    given = {"titles": titles, "rows": rows, "queries": queries, "keys": keys}
    for (argument, names), (item, count) in zip(given.items(), counts_of.items(), strict=True):
        if names is not None and len(names) != count:
            raise ShapeError(f"{argument} must have {count} elements, got {len(names)}. Pass one for each {item}.")
    inches = None if width is None else column_inches(width)
    _check_limit(vmax)
    limit = float(vmax or np.abs(panels).max(initial=1.0, where=np.isfinite(panels)))
    signed = bool((panels < 0).any())
    norm = color_norm(scale, limit, signed)
    automatic = scale in ("auto", "difference")
    size = _figure_size(figsize, inches, panels.shape)
    cells = max(1, int(min(size[0] / across, size[1] / down) * _DPI / _MIN_CELL_PIXELS))
    if scale == "auto":
        # Masked pairs are NaN, if the weights show a causal mask.
        causal = None if np.isnan(panels).any() else infer_causal(list(panels))
        panels = panels if causal is None else np.where(causal, panels, np.nan)
    pooled = pool_largest(panels, cells, cells)
    if automatic:
        allowed = ~np.isnan(panels)
        counts = allowed.sum(axis=-1).ravel() if share_one(panels, allowed) else None
        colors = automatic_range(pooled, counts, pooled.size < panels.size, vmax or 0.0, scale == "difference")
        norm, limit = range_norm(colors), colors.top
    ticks, labels, headings = _TEXT_POINTS[inches is not None]
    figure = new_figure(size, _DPI if inches is None else PRINT_DPI, dark)
    if inches is not None:
        figure.set_layout_engine("compressed")
    from matplotlib import colormaps

    if cmap == "Reds" and automatic:
        colormap = table_colormap(colors.signed, dark)
    elif cmap == "Reds" and (signed or dark):
        colormap = colormaps["inferno" if not signed else "berlin" if dark else "RdBu_r"]
    else:
        colormap = colormaps[cmap]
    colormap = colormap.with_extremes(bad=MASKED_COLORS[dark])
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    aspect, extent = "auto" if min(q, k) * 4 < max(q, k) else "equal", (-0.5, k - 0.5, q - 0.5, -0.5)
    style = {"cmap": colormap, "norm": norm, "interpolation": "nearest", "aspect": aspect, "extent": extent}
    for (i, j), axes in np.ndenumerate(grid):
        image = axes.imshow(pooled[i, j], **style)
        if i == down - 1:
            axes.set_xlabel(xlabel, fontsize=labels)
        if j == 0:
            axes.set_ylabel(ylabel if rows is None else f"{rows[i]}\n{ylabel}", fontsize=labels)
        if i == 0 and titles is not None:
            axes.set_title(titles[j], fontsize=headings if size[0] > 0.7 * across else ticks, parse_math=False)
        axes.tick_params(labelsize=ticks)
        axes.spines[:].set_linewidth(0.5)
        _label_axis(axes.xaxis, keys, size[0] / across, 90, ticks)
        _label_axis(axes.yaxis, queries, size[1] / down, 0, ticks)
    extend = extension(bool((panels < -limit).any()), bool((panels > limit).any()))
    bar = _add_bar(figure, image, grid, scale == "difference", ticks, shrink=0.8 if down == 1 else 0.6, extend=extend)
    if automatic:
        label_range(bar, colors)
    if title is not None:
        figure.suptitle(title, fontsize=headings + 1, fontweight="bold", parse_math=False)
    color_figure(figure, dark)
    if inches is not None:
        trim_height(figure)
        panel = grid[0, 0].get_window_extent()
        _label_axis(grid[0, 0].xaxis, keys, panel.width / figure.dpi, 90, ticks)
        _label_axis(grid[0, 0].yaxis, queries, panel.height / figure.dpi, 0, ticks)
        if across == 1:  # centre the title in the figure, whose width it has
            grid[0, 0].title.set_x((figure.bbox.width / 2 - panel.x0) / panel.width)
    return figure


def _add_bar(
    figure: Figure, image: ScalarMappable, axes: Any, subtracted: bool, points: float, **options: Any
) -> Colorbar:
    bar = add_color_bar(figure, image, axes, **options)
    # Left-aligned: centered on such narrow axes, the label would overlap the map.
    label, pad = "difference" if subtracted else "weight", 10 if options["extend"] in ("min", "both") else None
    bar.ax.set_xlabel(label, fontsize=points, loc="left", labelpad=pad)
    bar.ax.tick_params(labelsize=points)
    return bar


def attention(
    tokens: Sequence[str],
    weights: ArrayLike,
    *,
    queries: Sequence[str] | None = None,
    title: str | None = None,
    **options: Any,
) -> Figure:
    """Plot one attention map `(q, k)`, with the tokens of its queries and keys on the axes.

    Args:
        tokens: the tokens of the keys.
        weights: `(q, k)`, the weights of one head or their average over heads.
        queries: the tokens of the queries; None: the same as `tokens`.
        title: title above the map.
        options: keyword arguments of `heatmaps`: `cmap`, `vmax`, `scale`, `dark`, `figsize`, `width`, `xlabel`,
            `ylabel`.

    Raises:
        ShapeError: the shape of the weights does not match the tokens.

    Example:
        >>> figure = attention(["i", "like", "apples"], np.eye(3))
        >>> [label.get_text() for label in figure.axes[0].get_xticklabels()]
        ['i', 'like', 'apples']
    """
    queries = tokens if queries is None else queries
    panel = _panels(weights)
    if panel.shape != (1, 1, len(queries), len(tokens)):
        raise ShapeError(
            f"weights must have shape ({len(queries)}, {len(tokens)}) for {len(queries)} queries and {len(tokens)} "
            f"keys, got {tuple(np.shape(weights))}. Select one head, or average over heads."
        )
    side = [min(9.0, max(2.6, 1.3 + 0.19 * len(labels))) for labels in (tokens, queries)]
    titles = None if title is None else [title]
    options = {"figsize": (side[0] + 0.6, side[1])} | options
    return heatmaps(panel, titles=titles, keys=tokens, queries=queries, **options)


def alignment(source: Sequence[str], target: Sequence[str], weights: ArrayLike, **options: Any) -> Figure:
    """Plot how much each word of a translation attends to each word of its source.

    Args:
        source: the words of the source (keys).
        target: the words of the translation (queries).
        weights: `(target, source)`, the attention weights.
        options: keyword arguments of `attention`.

    Source:
        Bahdanau, Cho and Bengio 2015, Neural machine translation by jointly learning to align and
        translate, figure 3.

    Example:
        >>> alignment(["the", "cat"], ["le", "chat"], np.eye(2)).axes[0].get_ylabel()
        'translation (queries)'
    """
    labels = {"xlabel": "source (keys)", "ylabel": "translation (queries)"}
    return attention(source, weights, queries=target, **labels | options)


def heads(weights: ArrayLike, *, layers: Sequence[str] | None = None, **options: Any) -> Figure:
    """Plot the attention maps of all layers and heads of a model as a grid.

    Args:
        weights: `(layers, heads, q, k)`, the weights of one input.
        layers: one name per layer; None: `layer 0`, `layer 1` …
        options: keyword arguments of `heatmaps`.

    Raises:
        ShapeError: the weights do not have four axes.

    Example:
        >>> figure = heads(np.ones((2, 3, 4, 4)) / 4, vmax=0.25)
        >>> [axes.get_title() for axes in figure.axes[:3]]
        ['head 0', 'head 1', 'head 2']
    """
    if np.ndim(weights) != 4:
        raise ShapeError(
            f"weights must have shape (layers, heads, queries, keys), got shape {np.shape(weights)}. "
            "Pass the weights of one input in all layers."
        )
    down, across = np.shape(weights)[:2]
    rows = [f"layer {i}" for i in range(down)] if layers is None else layers
    return heatmaps(weights, titles=[f"head {j}" for j in range(across)], rows=rows, **{"scale": "sqrt"} | options)


def _panels(weights: ArrayLike) -> Float[np.ndarray, "rows columns q k"]:
    if isinstance(weights, np.ma.MaskedArray):
        weights = np.where(np.ma.getmaskarray(weights), np.nan, weights.data)
    array = to_numpy(weights, np.float64)
    if not 2 <= array.ndim <= 4 or not array.size:
        raise ShapeError(
            f"weights must be a non-empty array of two to four axes, (rows, columns, queries, keys), got shape "
            f"{array.shape}. Select one element of the batch."
        )
    return array.reshape((1,) * (4 - array.ndim) + array.shape)


def _check_limit(vmax: float | None) -> None:
    if vmax is not None and not vmax > 0:
        raise OptionError(
            f"vmax must be positive, got {vmax!r}. Pass the upper end of the color scale, or None to use the weights."
        )


def _figure_size(figsize: tuple[float, float], inches: float | None, shape: tuple[int, ...]) -> tuple[float, float]:
    """Return width and height in inches: `figsize`, increased for many panels, or those of a figure of given width."""
    down, across, q, k = shape
    if inches is None:
        return max(figsize[0], _MIN_PANEL_INCHES * across + 0.8), max(figsize[1], _MIN_PANEL_INCHES * down + 0.6)
    ratio = q / k if 4 * min(q, k) >= max(q, k) else 1.0 if q > k else 0.5
    return inches, min(_MAX_PRINT_HEIGHT, inches / across * ratio * down + 1.2)


def _label_axis(axis: Axis, labels: Sequence[str] | None, inches: float, rotation: float, points: float) -> None:
    """Set every n-th tick label of an axis, with the smallest n for which they fit. Without labels, show indices."""
    if labels is None:
        from matplotlib.ticker import MaxNLocator

        axis.set_major_locator(MaxNLocator(nbins=max(2, int(inches * 2)), integer=True, min_n_ticks=1))
        return
    step = max(1, -(-len(labels) * points * _LABEL_INCHES // inches))
    places = range(0, len(labels), int(step))
    length = max(16, int(axis.axes.figure.bbox.width / axis.axes.figure.dpi * _CHARACTERS_PER_INCH / 3))
    axis.set_ticks(places, [shortened(labels[place], length) for place in places], rotation=rotation, parse_math=False)


_GAP = 2
"""Pixels between two maps of the grid, each of 32 × 32 pixels."""
_CHARACTERS_PER_INCH = 14
"""Characters of a title of 8.5 points that fit in one inch."""
_MODEL_CHARACTERS = 20


def plot_view(
    view: View | TiledView | Difference,
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
    of a grid share one range, except those whose weights are not shares of 1, such as flow: each has its own. The
    colors of a difference are linear, from orange (smaller) to blue (larger); where it fits, a dash marks orange cells.

    Args:
        view: the view, or a result of `difference`; of a view in tiles, only the grid can be plotted.
        layer: index of the layer; None: plot the grid.
        head: index of the head in its layer.
        width: `"single"` or `"double"` (one column, 3.5 inches, or two, 7.2 inches), or a number of inches.
        title: title of the figure; None: the names of the view, the model, the layer and the head; "": no title.
        vmax: the weight from which on the color is strongest; None: as above.
        dark: draw on a dark background.

    Returns:
        A matplotlib figure. `savefig` writes PNG with 300 pixels per inch, SVG or PDF; the text remains text, in PDF as
        TrueType.

    Raises:
        OptionError: the head does not exist, `layer` is given without `head`, or the view is in tiles.
        ShapeError: the texts of a difference share no token.

    Example:
        >>> view = View.from_weights(np.eye(3)[None, None], ["a", "b", "c"], name="three words")
        >>> figure = plot_view(view, 0, 0, width="single")
        >>> figure.axes[0].get_title(), float(figure.get_size_inches()[0])
        ('three words: layer 0, head 0', 3.5)
    """
    inches = column_inches(width)
    _check_limit(vmax)
    if (layer is None) != (head is None):
        raise OptionError(f"layer and head must be given together, got layer={layer!r} and head={head!r}. Pass both.")
    names, scale = ([view.name], "auto") if isinstance(view, BaseView) else (view.names, "difference")
    view = view if isinstance(view, BaseView) else view.view()
    if layer is None or head is None:
        return _grid(view, inches, _title(title, names, view, "", inches), vmax, dark, scale == "difference")
    if isinstance(view, TiledView):
        raise OptionError(
            f"view must not be in tiles to plot one head, got {view.name!r} with {len(view.queries.tokens):,} tokens. "
            "Omit layer and head to plot the grid, or save a part of the map in the browser."
        )
    view.check_head(layer, head)
    maps = view.layers[layer]
    weights, allowed = view.weights(layer, head), view.allowed(layer, head)
    title = _title(title, names, view, f"{maps.name}, {maps.heads[head]}", inches) or None
    options = {"scale": scale, "width": width, "vmax": vmax, "dark": dark}
    options |= {"xlabel": "key (attended)", "ylabel": "query (attends)"}
    masked = np.ma.masked_array(weights, ~allowed)
    figure = attention(view.columns.tokens, masked, queries=view.queries.tokens, title=title, **options)
    if scale == "difference" and 72 / figure.dpi * min(np.divide(figure.axes[0].bbox.size, weights.shape[::-1])) >= 3:
        # In grey, signs look alike: negative cells from a tenth of the range on have a dash, where it fits.
        y, x = np.nonzero(weights < -0.1 * (top := figure.axes[0].images[0].get_clim()[1]))
        inks = [INKS[dark ^ bool(one < -0.7 * top)] for one in weights[y, x]]
        figure.axes[0].hlines(y + 0.25, x - 0.25, x + 0.25, colors=inks, linewidths=0.5)
        figure.axes[1].set_xlabel("difference\ndash: < 0", loc="left")
    if (curve := view.columns.curve) is not None:
        axes = figure.axes[0]
        strip = axes.inset_axes((0.0, 1.02, 1.0, 0.14), sharex=axes)
        strip.fill_between(range(len(curve.low)), curve.low, curve.high, color=CURVE_COLOR, lw=0.8)
        strip.text(0.0, 1.0, curve.name, transform=strip.transAxes, color=CURVE_COLOR, fontsize=_TEXT_POINTS[True][0])
        strip.set_axis_off()
        axes.set_title(axes.get_title(), y=1.22, color=INKS[dark], fontsize=_TEXT_POINTS[True][2], parse_math=False)
        figure.set_size_inches(inches, figure.get_size_inches()[1] + 1.0)
        trim_height(figure)
    invalid = np.ma.masked_array(np.ones(weights.shape), ~(np.isnan(weights) & allowed))
    if invalid.count():
        from matplotlib.colors import ListedColormap

        figure.axes[0].imshow(invalid, cmap=ListedColormap([INVALID_COLORS[dark]]), aspect=figure.axes[0].get_aspect())
    return figure


def _title(title: str | None, names: Sequence[str], view: BaseView, head: str, inches: float) -> str:
    """Return the title: the names of the views, shortened to one line each, and those of the model and the head."""
    if title is not None:
        return title
    model = "" if view.model == view.name else shortened(view.model, _MODEL_CHARACTERS)
    parts = ", ".join(filter(None, [model, head]))
    length = max(8, int(inches * _CHARACTERS_PER_INCH) - len(parts) - len("minus ") * (len(names) - 1))
    lines = [shortened(one, length) for one in names]
    if len(set(lines)) < len(names):  # texts that begin alike
        lines = [f"…{one[1 - length :]}" for one in names]
    name = "\nminus ".join(lines)
    return f"{name}: {parts}" if parts else name


def _grid(view: BaseView, inches: float, title: str, vmax: float | None, dark: bool, subtracted: bool) -> Figure:
    """Plot the thumbnails of all heads as one image, because hundreds of matplotlib axes would take half a minute."""
    ranges = [layer.ranges for layer in view.layers]
    codes = view.thumbnails()
    flat = [one for row in ranges for one in row]
    weights = dequantize(codes, [one.exponent for one in flat])
    masked = codes == MASKED
    shares = np.array([one.normalized or subtracted for one in flat])
    q, k = len(view.queries.tokens), len(view.columns.tokens)
    counts = None if subtracted else np.full(1, k)
    cells, pooled = weights[shares][~masked[shares]], max(q, k) > THUMBNAIL_SIZE
    common = automatic_range(cells, counts, pooled, vmax or 0.0, subtracted)
    own = [common if share else automatic_range(panel, None) for panel, share in zip(weights, shares, strict=True)]
    pitch, across = THUMBNAIL_SIZE + _GAP, max(map(len, ranges))
    sheet = np.full((len(ranges) * pitch - _GAP, across * pitch - _GAP, 3), color_table(False, dark)[0])
    corners = [(i * pitch, j * pitch) for i, row in enumerate(ranges) for j in range(len(row))]
    for (top, left), panel, hidden, colors in zip(corners, weights, masked, own, strict=True):
        sheet[top:, left:][:THUMBNAIL_SIZE, :THUMBNAIL_SIZE] = color_cells(panel, hidden, colors, dark)
    figure = new_figure((inches, min(9.0, inches * len(ranges) / across + 1.2)), PRINT_DPI, dark)
    figure.set_layout_engine("compressed")
    axes = figure.subplots()
    axes.imshow(sheet, interpolation="nearest")
    axes.set(xlim=(-1.5, sheet.shape[1] + 0.5), ylim=(sheet.shape[0] + 0.5, -1.5))
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    frames = [Rectangle((left - 0.5, top - 0.5), THUMBNAIL_SIZE, THUMBNAIL_SIZE) for top, left in corners]
    axes.add_collection(PatchCollection(frames, facecolor="none", edgecolor=INKS[dark], linewidth=0.25))
    for i, layer in enumerate(view.layers):
        if len(layer.heads) < across and layer.heads != tuple(f"head {j}" for j in range(len(layer.heads))):
            # Maps that are not heads are named beside their row.
            named = zip(layer.heads, layer.ranges, strict=True)
            text = ", ".join(f"{head}{'' if one.normalized else ' (own scale)'}" for head, one in named)
            axes.text(len(layer.heads) * pitch + 2, i * pitch + THUMBNAIL_SIZE / 2, text, fontsize=6.5, va="center")
    middle = THUMBNAIL_SIZE / 2 - 0.5
    step = max(1, round(0.16 * across / inches + 0.49))
    axes.set_xticks([j * pitch + middle for j in range(0, across, step)], [str(j) for j in range(0, across, step)])
    axes.set_yticks([i * pitch + middle for i in range(len(ranges))], [shortened(one.name, 16) for one in view.layers])
    axes.set_xlabel("head", fontsize=7.5)
    axes.xaxis.set_label_position("top")
    axes.tick_params(labelsize=6.5, length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    if title:
        figure.suptitle(title, fontsize=8.5, parse_math=False)
    if shares.any():
        from matplotlib.cm import ScalarMappable

        extend = extension(subtracted and common.largest > common.top * 1.0005, common.largest > common.top * 1.0005)
        mappable = ScalarMappable(range_norm(common), table_colormap(common.signed, dark))
        label_range(_add_bar(figure, mappable, axes, subtracted, 6.5, extend=extend, shrink=0.8, aspect=25), common)
    color_figure(figure, dark)
    trim_height(figure)
    return figure
