"""Automatic color range of attention maps and their colors, by the rules of the page (`web/range.js`, `web/colour.js`).

Weights are faint below the weight of uniform attention and strongest from the weight that 99 % of the other cells do
not exceed; in between, the color follows the logarithm of the weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.checks import check_choice
from qkv.core.typing import ArrayLike, Bool, Float, Num

if TYPE_CHECKING:
    from matplotlib.colorbar import Colorbar
    from matplotlib.colors import Colormap, Normalize


FAINT_SHARE = 0.1
"""Share of the color table that faint weights use. The color at this share differs from that of 0 by ΔE00 = 5."""
_ROW_SUM = 1.001
"""Maximum row sum of weights of a softmax, whose rows sum to 1 up to rounding in half precision."""
_TOP_SHARE = 0.99
_LOW_SHARE = 0.2
_LEAST_SPAN = 4.0
"""The automatic range spans at least this factor."""
_TINY = 1e-44


@dataclass(frozen=True)
class ColorRange:
    """Range of weights that a color table covers.

    Attributes:
        low: weights up to this one have the color of 0.
        start: the smallest weight that is not faint; 0: the color follows the weight itself, not its logarithm.
        top: the smallest weight of the strongest color.
        largest: the largest magnitude.
        signed: whether there are negative weights.
    """

    low: float
    start: float
    top: float
    largest: float
    signed: bool

    def shares(self, weights: ArrayLike) -> Float[np.ndarray, "*shape"]:
        """Return the share of the color table of each weight, from −1 to 1; NaN for NaN.

        Example:
            >>> ColorRange(0.01, 0.1, 1.0, 1.0, False).shares([0.0, 0.1, 1.0]).tolist()
            [0.0, 0.1, 1.0]
        """
        weights = np.asarray(weights, np.float64)
        if not self.start:
            return np.asarray(np.clip(weights / self.top, -1.0, 1.0))
        magnitude = np.abs(weights)
        with np.errstate(divide="ignore", invalid="ignore"):
            above = FAINT_SHARE + (1 - FAINT_SHARE) * np.log(magnitude / self.start) / np.log(self.top / self.start)
            below = FAINT_SHARE * np.log(magnitude / self._low) / np.log(self.start / self._low)
        share = np.where(magnitude >= self.start, np.minimum(above, 1.0), np.where(magnitude <= self._low, 0.0, below))
        return np.copysign(np.where(np.isnan(weights), np.nan, share), weights)

    def weights(self, shares: ArrayLike) -> Float[np.ndarray, "*shape"]:
        """Return the weight at each share of the color table, the inverse of `shares`."""
        shares = np.asarray(shares, np.float64)
        if not self.start:
            return np.asarray(shares * self.top)
        part = np.minimum(np.abs(shares), 1.0)
        above = self.start * (self.top / self.start) ** ((part - FAINT_SHARE) / (1 - FAINT_SHARE))
        below = self._low * (self.start / self._low) ** (part / FAINT_SHARE)
        return np.copysign(np.where(part == 0, 0.0, np.where(part < FAINT_SHARE, below, above)), shares)

    @property
    def _low(self) -> float:
        return max(self.low, self.start * 1e-30, _TINY)


def automatic_range(
    cells: Num[np.ndarray, "*shape"],
    counts: Num[np.ndarray, " queries"] | None,
    pooled: bool = False,
    top: float = 0.0,
    subtracted: bool = False,
) -> ColorRange:
    """Return the automatic color range of the cells of one or more maps.

    Args:
        cells: the weights; NaN and infinite cells have no influence.
        counts: number of keys that each query may attend to; None: the weights are not shares of 1.
        pooled: whether a cell covers several pairs.
        top: the smallest weight of the strongest color; 0: the automatic one.
        subtracted: whether the cells are differences, whose colors are linear around 0.

    Example:
        >>> automatic_range(np.eye(4), np.full(4, 4)).start  # the weight of uniform attention to 4 keys
        0.25
    """
    finite = cells[np.isfinite(cells)].astype(np.float64)
    magnitudes = np.abs(finite)
    largest, signed = float(magnitudes.max(initial=0.0)), bool((finite < 0).any())
    median = _quantile(magnitudes, 0.5)
    counts = np.zeros(0) if counts is None else counts[counts > 0]
    # The mean of the weights of uniform attention, but at most 1.96 times the smallest of them.
    uniform = min(float((1 / counts).mean()), 1.96 / int(counts.max())) if len(counts) else 0.0
    shares = not signed and uniform > 0
    start = uniform if shares and not (pooled and median > uniform) else median
    start = min(start, (1.0 if shares else largest) / _LEAST_SPAN)
    if not shares:
        start = max(start, largest / 1000)
    if top:
        start = min(start, top / _LEAST_SPAN)
    start = max(start, largest * 1e-9) or 1 / _LEAST_SPAN
    top = top or max(_LEAST_SPAN * start, min(largest, _quantile(magnitudes[magnitudes >= start], _TOP_SHARE)))
    low = min(_quantile(magnitudes[magnitudes > 0], _LOW_SHARE), start / 10)
    return ColorRange(low, 0.0 if subtracted else start, top, largest, signed or subtracted)


def share_one(weights: Num[np.ndarray, "*maps q k"], allowed: Bool[np.ndarray, "*maps q k"]) -> bool:
    """Return whether weights are shares of 1: none is negative, and no row of allowed pairs sums to more than 1."""
    finite = np.where(allowed & np.isfinite(weights), weights, 0.0)
    return bool((finite >= 0).all() and (finite.sum(axis=-1, dtype=np.float64) <= _ROW_SUM).all())


def format_weight(weight: float) -> str:
    """Return a weight with three significant digits, as the page prints it, for text that people read.

    Negative weights have a minus sign (U+2212), not a hyphen, which machine-readable output must have.

    Example:
        >>> [format_weight(weight) for weight in (0.5, 0.000712, 0.0000123, 1234.5, -2.0, 0.0)]
        ['0.500', '0.000712', '1.23e-5', '1230', '−2.00', '0']
    """
    if weight < 0:
        return f"−{format_weight(-weight)}"
    rounded = float(f"{weight:.3g}")
    if 0 < rounded < 1e-4:
        return f"{weight:.2e}".replace("e-0", "e-")
    if weight == 0 or rounded >= 1000:
        return f"{abs(rounded):.0f}"
    return f"{weight:#.3g}".removesuffix(".")


def _quantile(magnitudes: Float[np.ndarray, " n"], share: float) -> float:
    return float(np.quantile(magnitudes, share, method="inverted_cdf")) if magnitudes.size else 0.0


SCALES = ("linear", "sqrt", "log", "auto", "difference")
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

    The logarithmic scale starts at `limit` / 10,000. If weights are negative, the scale applies to magnitudes.
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


@cache
def color_table(signed: bool, dark: bool) -> Num[np.ndarray, "2049 3"]:
    """Return the colors of the page, from those of 0, or of −1 if `signed`, to those of 1, as red, green and blue."""
    places = np.array([0.0, *np.linspace(FAINT_SHARE, 1.0, 5)])
    stops = list(zip(places, _POSITIVE[dark], strict=True))
    if signed:  # the ends must differ from each other and from the background
        below = zip(0.5 - places[:0:-1] / 2, _NEGATIVE[dark][:0:-1], strict=True)
        stops = [*below, *zip(0.5 + places / 2, _SIGNED[dark], strict=True)]
    channels = np.array([list(_rgb(color)) for _, color in stops]).T
    at = np.linspace(0, 1, 2049)  # odd, so that one color is that of 0
    return np.stack([np.rint(np.interp(at, [place for place, _ in stops], one)) for one in channels], 1).astype(
        np.uint8
    )


def table_colormap(signed: bool, dark: bool) -> Colormap:
    """Return the matplotlib color map of a color table."""
    from matplotlib.colors import ListedColormap

    return ListedColormap(color_table(signed, dark) / 255, "qkv")


def label_range(bar: Colorbar, colors: ColorRange) -> None:
    """Set the tick labels of the color bar of an automatic range: 0, where colors start and end, and one in between."""
    shares = np.array([0.0, FAINT_SHARE, (1 + FAINT_SHARE) / 2, 1.0])
    if colors.signed:  # the ends of the faint weights would be too near to each other
        shares = np.array([-1.0, -shares[2], 0.0, shares[2], 1.0])
    weights = colors.weights(shares)
    bar.set_ticks(list(weights), labels=[format_weight(weight) for weight in weights.tolist()])
    bar.minorticks_off()


def color_cells(
    weights: Float[np.ndarray, "q k"], masked: Bool[np.ndarray, "q k"], colors: ColorRange, dark: bool
) -> Num[np.ndarray, "q k 3"]:
    """Return a map as red, green and blue from 0 to 255."""
    share, table = np.nan_to_num(colors.shares(weights)), color_table(colors.signed, dark)
    picture: Num[np.ndarray, "q k 3"] = table[
        np.rint((len(table) - 1) * ((share + 1) / 2 if colors.signed else share)).astype(int)
    ]
    picture[np.isnan(weights)] = list(_rgb(INVALID_COLORS[dark]))
    picture[masked] = list(_rgb(MASKED_COLORS[dark]))
    return picture


def _rgb(color: str) -> bytes:
    return bytes.fromhex(color[1:])
