"""Plot attention weights as heatmaps, with queries as rows and keys as columns.

    heatmaps(weights)                     plot an array (rows, columns, q, k) with one panel per (row, column)
    attention(tokens, weights)            plot one map with its tokens on both axes
    alignment(source, target, weights)    plot a translation (queries) against its source (keys)
    heads(weights)                        plot all layers and heads of a model as a grid of small maps

All panels of a figure share one color scale. If a panel has more queries or keys than can be drawn, each cell shows
the maximum of the weights that it covers. Averaging, as matplotlib does, would hide a single weight of 1 among 4,096.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.core.checks import check_choice
from qkv.core.typing import ArrayLike, Float
from qkv.errors import OptionError, ShapeError
from qkv.look.figure import DARK, INK, PAPER, new_figure
from qkv.look.quantize import max_pool, to_numpy

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

__all__ = ["alignment", "attention", "heads", "heatmaps", "max_pool"]

_MIN_PANEL_INCHES = 1.35
_MIN_CELL_PIXELS = 3
"""Minimum width of a cell, so that a single large weight is visible."""
_DPI = 150
_LABEL_INCHES = 0.13
_SCALES = ("linear", "sqrt", "log")
_LOG_FLOOR = 1e-4
_MASKED_COLORS = {False: "#dedede", True: "#34373c"}
"""Color of cells without a weight on a light and on a dark background."""


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
        queries: tick labels of the vertical axis.
        rows: one name per row of panels.
        vmax: the upper end of the color scale; None: the largest magnitude, but at least 1. Pass the largest weight
            if all weights are small. The scale starts at 0, or at −`vmax` if weights are negative. An arrow at the end
            of the color bar marks larger magnitudes.
        scale: `"linear"`, `"sqrt"` or `"log"`; the logarithmic scale starts at `vmax` / 10,000. With negative weights,
            the scale applies to magnitudes.
        dark: draw light labels on a dark background; `Reds` is replaced by a color map with a dark lower end.

    Cells of NaN, and masked cells of a NumPy masked array, are grey.

    Returns:
        A matplotlib figure; `savefig` writes PNG, SVG or PDF, and notebooks display it.

    Raises:
        ShapeError: the array does not have two to four axes, or the number of names is wrong.
        OptionError: the scale is unknown, or `vmax` is not positive.
        MissingPackageError: matplotlib is not installed.

    Example:
        >>> figure = heatmaps(np.eye(10)[None, None])
        >>> [axes.get_xlabel() for axes in figure.axes]
        ['Keys', 'weight']
    """
    panels = _panels(weights)
    down, across, q, k = panels.shape
    _check_names(
        ("titles", titles, across, "column of panels"),
        ("rows", rows, down, "row of panels"),
        ("queries", queries, q, "query"),
        ("keys", keys, k, "key"),
    )
    limit = _color_limit(panels, vmax)
    signed = bool((panels < 0).any())
    norm = _signed_norm(scale, limit) if signed else _color_norm(scale, limit)
    ink, paper = (DARK["ink"], DARK["paper"]) if dark else (INK, PAPER)
    if cmap == "Reds" and (signed or dark):
        cmap = "inferno" if not signed else "berlin" if dark else "RdBu_r"
    width = max(figsize[0], _MIN_PANEL_INCHES * across + 0.8)
    height = max(figsize[1], _MIN_PANEL_INCHES * down + 0.6)
    figure = new_figure((width, height), _DPI, paper)
    from matplotlib import colormaps

    colors = colormaps[cmap].with_extremes(bad=_MASKED_COLORS[dark])
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    cells = max(1, int(min(width / across, height / down) * _DPI / _MIN_CELL_PIXELS))
    for (i, j), axes in np.ndenumerate(grid):
        image = axes.imshow(
            _pool(panels[i, j], cells),
            cmap=colors,
            norm=norm,
            interpolation="nearest",
            aspect="auto" if min(q, k) * 4 < max(q, k) else "equal",
            extent=(-0.5, k - 0.5, q - 0.5, -0.5),
        )
        if i == down - 1:
            axes.set_xlabel(xlabel, color=ink)
        if j == 0:
            axes.set_ylabel(ylabel if rows is None else f"{rows[i]}\n{ylabel}", color=ink)
        if i == 0 and titles is not None:
            axes.set_title(titles[j], color=ink, fontsize=10)
        axes.tick_params(colors=ink, labelsize=8)
        for side in axes.spines.values():
            side.set_color(ink)
            side.set_linewidth(0.5)
        axes.set_facecolor(paper)
        _label_axis(axes.xaxis, keys, width / across, rotation=90)
        _label_axis(axes.yaxis, queries, height / down, rotation=0)
    outside = [bool((panels > limit).any()), bool((panels < -limit).any())]
    extend = {(True, True): "both", (True, False): "max", (False, True): "min"}.get((outside[0], outside[1]), "neither")
    bar = figure.colorbar(image, ax=grid, shrink=0.8 if down == 1 else 0.6, extend=extend)
    # Left-aligned: centered on such narrow axes, the label would overlap the map.
    bar.ax.set_xlabel("weight", color=ink, fontsize=8, loc="left")
    bar.ax.tick_params(colors=ink, labelsize=8)
    bar.outline.set_visible(False)
    return figure


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
        options: keyword arguments of `heatmaps`: `cmap`, `vmax`, `scale`, `dark`, `figsize`, `xlabel`, `ylabel`.

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


def _check_names(*arguments: tuple[str, Sequence[str] | None, int, str]) -> None:
    for argument, names, count, item in arguments:
        if names is not None and len(names) != count:
            raise ShapeError(f"{argument} must have {count} elements, got {len(names)}. Pass one for each {item}.")


def _color_limit(panels: Float[np.ndarray, "rows columns q k"], vmax: float | None) -> float:
    if vmax is None:
        return float(np.abs(panels).max(initial=1.0, where=np.isfinite(panels)))
    if not vmax > 0:
        raise OptionError(
            f"vmax must be positive, got {vmax!r}. Pass the upper end of the color scale, or None to use the weights."
        )
    return float(vmax)


def _color_norm(scale: str, limit: float) -> Normalize:
    check_choice("scale", scale, _SCALES)
    from matplotlib.colors import LogNorm, Normalize, PowerNorm

    if scale == "log":
        return LogNorm(vmin=_LOG_FLOOR * limit, vmax=limit, clip=True)
    return Normalize(0.0, limit) if scale == "linear" else PowerNorm(0.5, 0.0, limit)


def _signed_norm(scale: str, limit: float) -> Normalize:
    check_choice("scale", scale, _SCALES)
    from matplotlib.colors import FuncNorm, Normalize, SymLogNorm

    if scale == "log":
        return SymLogNorm(_LOG_FLOOR * limit, vmin=-limit, vmax=limit, clip=True)
    if scale == "linear":
        return Normalize(-limit, limit)
    functions = (lambda x: np.sign(x) * np.sqrt(np.abs(x)), lambda x: np.sign(x) * np.square(x))
    return FuncNorm(functions, vmin=-limit, vmax=limit)


def _pool(panel: Float[np.ndarray, "q k"], cells: int) -> Float[np.ndarray, "rows columns"]:
    """Reduce a panel to at most `cells` × `cells` cells, each the weight of largest magnitude; NaN if all are NaN."""
    empty = np.isnan(panel)
    most = max_pool(np.where(empty, -np.inf, panel), cells, cells)
    least = -max_pool(np.where(empty, -np.inf, -panel), cells, cells)
    return np.where(max_pool((~empty).astype(int), cells, cells) == 0, np.nan, np.where(-least > most, least, most))


def _label_axis(axis: Axis, labels: Sequence[str] | None, inches: float, rotation: float) -> None:
    """Set every n-th tick label of an axis, with the smallest n for which they fit. Without labels, show indices."""
    if labels is None:
        from matplotlib.ticker import MaxNLocator

        axis.set_major_locator(MaxNLocator(nbins=max(2, int(inches * 2)), integer=True, min_n_ticks=1))
        return
    step = max(1, -(-len(labels) * _LABEL_INCHES // inches))
    places = range(0, len(labels), int(step))
    # matplotlib would parse text after an unescaped dollar sign as a formula.
    axis.set_ticks(places, [labels[place].replace("$", r"\$") for place in places], rotation=rotation)
