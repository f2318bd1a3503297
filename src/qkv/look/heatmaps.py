"""Weights as heatmaps: queries down, keys across, one scale that is true for every panel.

    heatmaps(weights)                 any (rows, columns, queries, keys) array, a panel for each (row, column)
    attention(tokens, weights)        one map with its words on both axes
    alignment(source, target, weights)    which words of the source a translation looked at
    heads(weights)                    every layer and head of a model, small

Where a panel has more keys or queries than there is room for, each spot shows the largest weight it stands
for: a mean would hide a lone weight of 1 among 4,096 (matplotlib's own way of shrinking does).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from qkv.errors import OptionError, ShapeError
from qkv.look.figure import DARK, INK, PAPER, new_figure

__all__ = ["alignment", "attention", "heads", "heatmaps", "shrink"]

_LEAST_PANEL = 1.35
_LEAST_SPOT = 3
"""How many pixels wide a spot is at least, so that a lone weight can be seen."""
_DPI = 150
_LABEL_INCHES = 0.13
_SCALES = ("linear", "sqrt", "log")
_LOG_FLOOR = 1e-4


def heatmaps(
    weights: Any,
    xlabel: str = "Keys",
    ylabel: str = "Queries",
    titles: Sequence[str] | None = None,
    figsize: tuple[float, float] = (2.5, 2.5),
    cmap: str = "Reds",
    *,
    keys: Sequence[str] | None = None,
    queries: Sequence[str] | None = None,
    rows: Sequence[str] | None = None,
    most: float | None = None,
    scale: str = "linear",
    dark: bool = False,
) -> Any:
    """Heatmaps of weights, `(rows, columns, queries, keys)`, with one colour bar that is true for all.

    Args:
        weights: of any array library; fewer axes than four are panels of one row, or one panel.
        xlabel, ylabel: what is across and what is down.
        titles: one for each column of panels.
        figsize: of the whole figure, in inches; it grows where panels would be too small to read.
        cmap: a matplotlib colour map. `Reds` runs from light to dark in one hue, so it is read without
            telling red from green.
        keys, queries: the words of the axes; those for which there is room are shown.
        rows: a name for each row of panels.
        most: the weight at the end of the scale; None: 1 where no weight is larger, else the largest. Small
            weights on a scale up to 1 are pale: give their largest.
        scale: `"linear"`, `"sqrt"` or `"log"` (down to 1/10,000 of `most`).
        dark: light ink on dark paper; `Reds` gives way to a map that begins dark.

    Returns:
        A matplotlib figure; `savefig` writes PNG, SVG or PDF, and a notebook shows it.

    Raises:
        ShapeError: the array has more than four axes or none, or names do not fit it.
        OptionError: an unknown scale, or `most` is not positive.
        MissingPackageError: matplotlib is not installed.

    Example:
        >>> figure = heatmaps(np.eye(10)[None, None])
        >>> [axes.get_xlabel() for axes in figure.axes]
        ['Keys', 'weight']
    """
    panels = _panels(weights)
    down, across, q, k = panels.shape
    _check_names(("titles", titles, across), ("rows", rows, down), ("queries", queries, q), ("keys", keys, k))
    limit = _limit(panels, most)
    norm = _norm(scale, limit)
    ink, paper = (DARK["ink"], DARK["paper"]) if dark else (INK, PAPER)
    if dark and cmap == "Reds":
        cmap = "inferno"
    width = max(figsize[0], _LEAST_PANEL * across + 0.8)
    height = max(figsize[1], _LEAST_PANEL * down + 0.6)
    figure = new_figure((width, height), _DPI, paper)
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    room = max(1, int(min(width / across, height / down) * _DPI / _LEAST_SPOT))
    for i in range(down):
        for j in range(across):
            axes = grid[i, j]
            image = axes.imshow(
                shrink(panels[i, j], room, room),
                cmap=cmap,
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
            _name(axes.xaxis, keys, width / across, turned=True)
            _name(axes.yaxis, queries, height / down, turned=False)
    bar = figure.colorbar(image, ax=grid, shrink=0.8 if down == 1 else 0.6)
    # A bar's axes have no name of their own; readers of the figure look for one. In the middle of so narrow
    # axes it would reach into the map.
    bar.ax.set_xlabel("weight", color=ink, fontsize=8, loc="left")
    bar.ax.tick_params(colors=ink, labelsize=8)
    bar.outline.set_visible(False)
    return figure


def attention(
    tokens: Sequence[str],
    weights: Any,
    *,
    queries: Sequence[str] | None = None,
    title: str | None = None,
    **options: Any,
) -> Any:
    """One map of weights `(queries, keys)` with its words on both axes.

    Args:
        tokens: the keys' words.
        weights: of one head, or the mean of several.
        queries: the queries' words, where they are others.
        title: above the map.
        options: of `heatmaps`: `cmap`, `most`, `scale`, `dark`, `figsize`, `xlabel`, `ylabel`.

    Raises:
        ShapeError: the weights are not `(queries, keys)` of these words.

    Example:
        >>> figure = attention(["i", "like", "apples"], np.eye(3))
        >>> [label.get_text() for label in figure.axes[0].get_xticklabels()]
        ['i', 'like', 'apples']
    """
    queries = tokens if queries is None else queries
    panel = _panels(weights)
    if panel.shape != (1, 1, len(queries), len(tokens)):
        raise ShapeError(
            f"weights of shape {tuple(np.shape(weights))} do not fit {len(queries)} queries and "
            f"{len(tokens)} keys. Give one map: choose a head, or take the mean over heads."
        )
    side = [min(9.0, max(2.6, 1.3 + 0.19 * len(words))) for words in (tokens, queries)]
    options.setdefault("figsize", (side[0] + 0.6, side[1]))
    names = None if title is None else [title]
    return heatmaps(panel, titles=names, keys=tokens, queries=queries, **options)


def alignment(source: Sequence[str], target: Sequence[str], weights: Any, **options: Any) -> Any:
    """Which words of a source each word of its translation looked at: target words down, source words across.

    Args:
        source: words that were read (the keys).
        target: words that were written (the queries).
        weights: `(target, source)`.
        options: see `attention`.

    Source:
        Bahdanau, Cho and Bengio 2015, Neural machine translation by jointly learning to align and
        translate, figure 3.

    Example:
        >>> alignment(["the", "cat"], ["le", "chat"], np.eye(2)).axes[0].get_ylabel()
        'translation (queries)'
    """
    options.setdefault("xlabel", "source (keys)")
    options.setdefault("ylabel", "translation (queries)")
    return attention(source, weights, queries=target, **options)


def heads(weights: Any, *, layers: Sequence[str] | None = None, **options: Any) -> Any:
    """Every layer and head of a model, `(layers, heads, queries, keys)`, as a grid of small maps.

    Args:
        weights: of one input.
        layers: a name for each layer; None: `layer 0`, `layer 1` …
        options: of `heatmaps`.

    Raises:
        ShapeError: the weights have not four axes.

    Example:
        >>> figure = heads(np.ones((2, 3, 4, 4)) / 4, most=0.25)
        >>> [axes.get_title() for axes in figure.axes[:3]]
        ['head 0', 'head 1', 'head 2']
    """
    if np.ndim(weights) != 4:
        raise ShapeError(
            f"weights have {np.ndim(weights)} axes, and (layers, heads, queries, keys) are wanted. "
            "Give one input of the batch."
        )
    down, across = np.shape(weights)[:2]
    options.setdefault("scale", "sqrt")
    return heatmaps(
        weights,
        titles=[f"head {j}" for j in range(across)],
        rows=[f"layer {i}" for i in range(down)] if layers is None else layers,
        **options,
    )


def shrink(panel: np.ndarray, high: int, wide: int) -> np.ndarray:
    """A map of at most `high` × `wide` spots, each the largest of those it stands for.

    Example:
        >>> shrink(np.diag([0.0, 0.0, 0.0, 1.0]), 2, 2).tolist()
        [[0.0, 0.0], [0.0, 1.0]]
    """
    for axis, room in enumerate((high, wide)):
        length = panel.shape[axis]
        if length > room:
            starts = np.arange(room) * length // room
            panel = np.maximum.reduceat(panel, starts, axis=axis)
    return panel


def _panels(weights: Any) -> np.ndarray:
    if hasattr(weights, "detach"):
        weights = weights.detach().cpu()
    array = np.asarray(weights, np.float64)
    if not 2 <= array.ndim <= 4 or not array.size:
        raise ShapeError(
            f"weights have the shape {array.shape}, and (rows, columns, queries, keys) with something in it "
            "is wanted. Leave out the leading axes, or index the batch."
        )
    return array.reshape((1,) * (4 - array.ndim) + array.shape)


def _check_names(*given: tuple[str, Sequence[str] | None, int]) -> None:
    for what, names, wanted in given:
        if names is not None and len(names) != wanted:
            raise ShapeError(f"there are {len(names)} {what} for {wanted} of them in the weights. Give one for each.")


def _limit(panels: np.ndarray, most: float | None) -> float:
    if most is None:
        largest = float(np.nanmax(panels)) if np.isfinite(panels).any() else 1.0
        return max(1.0, largest)
    if not most > 0:
        raise OptionError(f"most is {most!r}, and the weight at the end of the scale is positive.")
    return float(most)


def _norm(scale: str, limit: float) -> Any:
    if scale not in _SCALES:
        raise OptionError(f"the scale is {scale!r}, and one of {', '.join(_SCALES)} is wanted.")
    from matplotlib.colors import LogNorm, Normalize, PowerNorm

    if scale == "log":
        return LogNorm(vmin=_LOG_FLOOR * limit, vmax=limit, clip=True)
    return Normalize(0.0, limit) if scale == "linear" else PowerNorm(0.5, 0.0, limit)


def _name(axis: Any, words: Sequence[str] | None, inches: float, turned: bool) -> None:
    """Words at the ticks, every n-th where there is no room for all; without words, whole numbers."""
    if words is None:
        from matplotlib.ticker import MaxNLocator

        axis.set_major_locator(MaxNLocator(nbins=max(2, int(inches * 2)), integer=True, min_n_ticks=1))
        return
    each = max(1, -(-len(words) * _LABEL_INCHES // inches))
    places = range(0, len(words), int(each))
    # A dollar sign would begin a formula.
    shown = [words[place].replace("$", r"\$") for place in places]
    axis.set_ticks(places, shown, rotation=90 if turned else 0)
