"""Automatic color range of attention maps, by the rule that the page uses (`web/range.js`).

Weights are faint below the weight of uniform attention and strongest from the weight that 99 % of the other cells do
not exceed; in between, the color follows the logarithm of the weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qkv.core.typing import ArrayLike, Bool, Float, Num

__all__ = ["FAINT_SHARE", "ColorRange", "automatic_range", "format_weight", "share_one"]

FAINT_SHARE = 0.1
"""Share of the color table that faint weights use. The color at this share differs from that of 0 by ΔE00 = 5."""
_ROW_SUM = 1.001
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
        start: the smallest weight that is not faint.
        top: the smallest weight of the strongest color.
        largest: the largest magnitude.
        signed: whether there are negative weights.
        rule: what `start` is.
    """

    low: float
    start: float
    top: float
    largest: float
    signed: bool
    rule: str

    def shares(self, weights: ArrayLike) -> Float[np.ndarray, "*shape"]:
        """Return the share of the color table of each weight, from −1 to 1; NaN for NaN.

        Example:
            >>> ColorRange(0.01, 0.1, 1.0, 1.0, False, "").shares([0.0, 0.1, 1.0]).tolist()
            [0.0, 0.1, 1.0]
        """
        weights = np.asarray(weights, np.float64)
        magnitude = np.abs(weights)
        with np.errstate(divide="ignore", invalid="ignore"):
            above = FAINT_SHARE + (1 - FAINT_SHARE) * np.log(magnitude / self.start) / np.log(self.top / self.start)
            below = FAINT_SHARE * np.log(magnitude / self._low) / np.log(self.start / self._low)
        share = np.where(magnitude >= self.start, np.minimum(above, 1.0), np.where(magnitude <= self._low, 0.0, below))
        return np.copysign(np.where(np.isnan(weights), np.nan, share), weights)

    def weights(self, shares: ArrayLike) -> Float[np.ndarray, "*shape"]:
        """Return the weight at each share of the color table, the inverse of `shares`."""
        shares = np.asarray(shares, np.float64)
        part = np.minimum(np.abs(shares), 1.0)
        above = self.start * (self.top / self.start) ** ((part - FAINT_SHARE) / (1 - FAINT_SHARE))
        below = self._low * (self.start / self._low) ** (part / FAINT_SHARE)
        return np.copysign(np.where(part == 0, 0.0, np.where(part < FAINT_SHARE, below, above)), shares)

    def describe(self) -> str:
        """Return one sentence that states what the colors mean, with the same words as the page."""
        size = "magnitude" if self.signed else "weight"
        return (
            f"Color: faint below {format_weight(self.start)} ({self.rule}), strongest from {format_weight(self.top)}, "
            f"between them by the logarithm of the {size}; largest {size} shown {format_weight(self.largest)}."
        )

    @property
    def _low(self) -> float:
        return max(self.low, self.start * 1e-30, _TINY)


def automatic_range(
    cells: Num[np.ndarray, "*shape"],
    counts: Num[np.ndarray, " queries"] | None,
    pooled: bool = False,
    top: float = 0.0,
) -> ColorRange:
    """Return the automatic color range of the cells of one or more maps.

    Args:
        cells: the weights; NaN and infinite cells have no influence.
        counts: number of keys that each query may attend to; None: the weights are not shares of 1.
        pooled: whether a cell covers several pairs.
        top: the smallest weight of the strongest color; 0: the automatic one.

    Example:
        >>> automatic_range(np.full((4, 4), 0.25), np.full(4, 4)).rule
        'the weight of uniform attention to 4 keys'
    """
    finite = cells[np.isfinite(cells)].astype(np.float64)
    magnitudes = np.abs(finite)
    largest, signed = float(magnitudes.max(initial=0.0)), bool((finite < 0).any())
    median = _quantile(magnitudes, 0.5)
    uniform, rule = _uniform_weight(counts) if counts is not None else (0.0, "")
    start, shares = uniform, not signed and uniform > 0
    if not shares or (pooled and median > uniform):
        start, rule = median, "half of the cells"
    most = 1.0 if shares else largest
    if start > most / _LEAST_SPAN:
        start, rule = most / _LEAST_SPAN, f"a quarter of the {'weight of a query' if shares else 'largest'}"
    elif not shares and start < largest / 1000:
        start, rule = largest / 1000, "a thousandth of the largest"
    if top:
        start = min(start, top / _LEAST_SPAN)
    start = max(start, largest * 1e-9) or 1 / _LEAST_SPAN
    top = top or max(_LEAST_SPAN * start, min(largest, _quantile(magnitudes[magnitudes >= start], _TOP_SHARE)))
    low = min(_quantile(magnitudes[magnitudes > 0], _LOW_SHARE), start / 10)
    return ColorRange(low, start, top, largest, signed, rule)


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
    if weight == 0:
        return "0"
    if weight < 0:
        return f"−{format_weight(-weight)}"
    rounded = float(f"{weight:.3g}")
    if abs(rounded) < 1e-4:
        mantissa, exponent = f"{weight:.2e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    if abs(rounded) >= 1000:
        return f"{rounded:.0f}"
    return f"{weight:#.3g}".removesuffix(".")


def _uniform_weight(counts: Num[np.ndarray, " queries"]) -> tuple[float, str]:
    """Return the mean of 1 / (number of keys), but at most 1.96 times the smallest of these weights, and its name."""
    counts = counts[counts > 0]
    if not len(counts):
        return 0.0, ""
    longest, mean = int(counts.max()), float((1 / counts).mean())
    if mean > 1.96 / longest:
        return 1.96 / longest, f"about twice the weight of uniform attention to {longest:,} keys"
    about = "about " if mean > 1.001 / longest else ""
    return mean, f"{about}the weight of uniform attention to {longest:,} keys"


def _quantile(magnitudes: Float[np.ndarray, " n"], share: float) -> float:
    return float(np.quantile(magnitudes, share, method="inverted_cdf")) if magnitudes.size else 0.0
