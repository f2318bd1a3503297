"""Color scales of heatmaps as matplotlib norms, and the color tables of the page as matplotlib color maps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qkv.core.checks import check_choice
from qkv.look.color_range import FAINT_SHARE, ColorRange, format_weight

if TYPE_CHECKING:
    from matplotlib.colorbar import Colorbar
    from matplotlib.colors import Colormap, Normalize

__all__ = ["INVALID_COLORS", "MASKED_COLORS", "SCALES", "color_norm", "label_range", "range_norm", "table_colormap"]

SCALES = ("linear", "sqrt", "log", "auto")
MASKED_COLORS = {False: "#dedede", True: "#34373c"}
"""Color of cells without a weight on a light and on a dark background."""
INVALID_COLORS = {False: "#c80082", True: "#ff50be"}
"""Color of weights that are not finite."""
_LOG_FLOOR = 1e-4
_POSITIVE = {
    False: ["#ffffff", "#eaf2fa", "#9ecae1", "#4292c6", "#08519c", "#031c52"],
    True: ["#15181d", "#19212e", "#1e548c", "#3e8ccd", "#96cdf0", "#f0f9ff"],
}
"""Colors of the page (`web/colour.js`): of 0, of the end of the faint weights, and four others at equal distances."""
_NEGATIVE = {
    False: ["#ffffff", "#fef4ec", "#fdbe85", "#f16913", "#a63603", "#5c1a02"],
    True: ["#15181d", "#241d1b", "#783a0e", "#cd6c18", "#f59432", "#ffbe6e"],
}
_SIGNED = {False: _POSITIVE[False], True: ["#15181d", "#19212e", "#1c4880", "#2d78c8", "#5caaf5", "#96d0ff"]}
"""Colors of the positive weights of maps that also have negative ones."""


def color_norm(scale: str, limit: float, signed: bool) -> Normalize:
    """Return the matplotlib norm of a scale from 0, or from −`limit` if weights are negative, to `limit`.

    Args:
        scale: `"linear"`, `"sqrt"` or `"log"`, which starts at `limit` / 10,000. If weights are negative, the scale
            applies to magnitudes.
        limit: the largest weight of the scale.
        signed: whether weights are negative.
    """
    check_choice("scale", scale, SCALES)
    from matplotlib.colors import FuncNorm, LogNorm, Normalize, PowerNorm, SymLogNorm

    if scale == "linear":
        return Normalize(-limit if signed else 0.0, limit)
    if not signed:
        return LogNorm(_LOG_FLOOR * limit, limit, clip=True) if scale == "log" else PowerNorm(0.5, 0.0, limit)
    if scale == "log":
        return SymLogNorm(_LOG_FLOOR * limit, vmin=-limit, vmax=limit, clip=True)
    functions = (lambda x: np.sign(x) * np.sqrt(np.abs(x)), lambda x: np.sign(x) * np.square(x))
    return FuncNorm(functions, vmin=-limit, vmax=limit)


def range_norm(colors: ColorRange) -> Normalize:
    """Return the matplotlib norm of an automatic range."""
    from matplotlib.colors import FuncNorm

    low = -colors.top if colors.signed else 0.0
    return FuncNorm((colors.shares, colors.weights), vmin=low, vmax=colors.top, clip=True)


def table_colormap(signed: bool, dark: bool) -> Colormap:
    """Return the color table of the page, whose first tenth holds the colors of faint weights."""
    from matplotlib.colors import LinearSegmentedColormap

    places = np.array([0.0, *np.linspace(FAINT_SHARE, 1.0, 5)])
    stops = list(zip(places, _POSITIVE[dark], strict=True))
    if signed:  # the ends must differ from each other and from the background
        below = zip(0.5 - places[:0:-1] / 2, _NEGATIVE[dark][:0:-1], strict=True)
        stops = [*below, *zip(0.5 + places / 2, _SIGNED[dark], strict=True)]
    return LinearSegmentedColormap.from_list("qkv", stops, N=2049)  # odd, so that one color is that of 0


def label_range(bar: Colorbar, colors: ColorRange) -> None:
    """Set the tick labels of the color bar of an automatic range: 0, where colors start and end, and one in between."""
    shares = np.array([0.0, FAINT_SHARE, (1 + FAINT_SHARE) / 2, 1.0])
    if colors.signed:  # the ends of the faint weights would be too near to each other
        shares = np.array([-1.0, -shares[2], 0.0, shares[2], 1.0])
    weights = colors.weights(shares)
    bar.set_ticks(list(weights), labels=[format_weight(weight) for weight in weights.tolist()])
    bar.minorticks_off()
