"""Standard error and prediction interval of an answer, from the spread of the values and the weights.

For weights w that sum to 1 and are not negative, with the spread s of the values,

    n  = 1 / Σ w²                                effective number of rows (Kish)
    SE = s / √(n − 1)                            standard error of the weighted mean
    σ  = s √((n + 1) / (n − 1))                  standard deviation of a new value minus the mean
    interval = mean + σ t(n − 1) / z · [a, b]

where t and z are the 95 % quantiles of Student's and the normal distribution. For equal weights SE is the textbook's
sample standard deviation over √n. The factors a and b are −z and z for normal values; a `Calibration` estimates them
from the rows of the table. With fewer than two effective rows there is neither a standard error nor an interval. For
votes, the standard error is that of the share of the winning label, and there is no interval.

Source: Kish (1965), Survey sampling; Geisser (1993), Predictive inference, section 2.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from qkv.core.typing import Float
from qkv.database.execute.aggregates import Aggregate
from qkv.database.keys.columns import Column

if TYPE_CHECKING:
    import datetime as dt

    from qkv.database.io.arrow_columns import Temporal

__all__ = ["Calibration", "effective_rows", "prediction_interval", "standard_error", "student_quantile"]

Z = 1.6448536269514722
"""The 95 % quantile of the standard normal distribution."""

# Rounding leaves two equal weights with slightly fewer than two effective rows.
_LEAST_ROWS = 2 - 1e-9
_ANGLES = 2**12

Interval: TypeAlias = "tuple[float, float] | tuple[Temporal, Temporal]"


@dataclass(frozen=True)
class Calibration:
    """Factors of the standard deviation of a prediction between which 90 % of new values lie.

    Attributes:
        lower, upper: the factors, −1.645 and 1.645 for normal values.
        rows: the number of rows from which they were estimated; 0 if they are those of normal values.
    """

    lower: float = -Z
    upper: float = Z
    rows: int = 0


def effective_rows(weights: Float[np.ndarray, "q rows"]) -> Float[np.ndarray, " q"]:
    """Return 1 / Σ w² for the weights of each query, or NaN if a weight is negative or all are zero.

    Example:
        >>> effective_rows(np.array([[0.25, 0.25, 0.25, 0.25], [0.0, 1.0, 0.0, 0.0]])).tolist()
        [4.0, 1.0]
    """
    squares = np.einsum("ij,ij->i", weights, weights)
    valid = (squares > 0) & (weights.min(axis=1, initial=0.0) >= 0)
    return np.asarray(np.where(valid, 1.0 / np.where(valid, squares, 1.0), np.nan))


def standard_error(aggregate: Aggregate, rows: float, column: Column) -> float | dt.timedelta | None:
    """Return the standard error of an answer, or None with fewer than two effective rows.

    Args:
        aggregate: the average or the vote.
        rows: the effective number of rows; NaN if there is none.
        column: the value column, which gives the unit.
    """
    if aggregate.deviation is None or not rows >= _LEAST_ROWS:
        return None
    error = aggregate.deviation / math.sqrt(rows - 1.0)
    return column.duration(error) if column.kind == "timestamp" else error


def prediction_interval(
    aggregate: Aggregate, rows: float, column: Column, calibration: Callable[[], Calibration]
) -> Interval | None:
    """Return the interval that contains the value of a new row with a probability of 90 %, or None if unknown.

    Args:
        aggregate: the average.
        rows: the effective number of rows; NaN if there is none.
        column: the value column, which gives the unit.
        calibration: returns the factors of the standard deviation; called if there is an interval.
    """
    if aggregate.center is None or aggregate.deviation is None or not rows >= _LEAST_ROWS:
        return None
    scale = float(prediction_scale(np.array([aggregate.deviation]), np.array([rows]))[0])
    factors = calibration()
    lower, upper = aggregate.center + scale * factors.lower, aggregate.center + scale * factors.upper
    if column.kind != "timestamp":
        return lower, upper
    try:
        return column.timestamp(lower), column.timestamp(upper)
    except (ValueError, OverflowError):  # before year 1 or after 9999
        return None


def prediction_scale(deviation: Float[np.ndarray, " n"], rows: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return σ t(n − 1) / z of the module's equation for spreads and effective numbers of rows n of at least 2."""
    degrees = np.maximum(rows - 1.0, 1.0)
    return np.asarray(deviation * np.sqrt((degrees + 2.0) / degrees) * student_quantile(degrees) / Z)


def student_quantile(degrees: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return the 95 % quantile of Student's t distribution for degrees of freedom of at least 1, to 1e-4.

    Example:
        >>> student_quantile(np.array([1.0, 2.0, 10.0, 1e9])).round(3).tolist()
        [6.314, 2.92, 1.812, 1.645]
    """
    inverse = 1.0 / np.maximum(degrees, 1.0)
    return np.asarray(np.exp(np.interp(inverse, *_quantile_table())))


@cache
def _quantile_table() -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return a grid of 1 / degrees of freedom and the logarithms of the quantiles on it."""
    # With t = √ν tan θ the density becomes cos^(ν − 1) θ, which is integrated by the trapezoidal rule.
    angles = np.linspace(0.0, math.pi / 2, _ANGLES)
    inverse = np.concatenate([np.linspace(0.0, 0.05, 26), np.linspace(0.05, 1.0, 96)[1:]])
    quantiles = [math.log(Z)]
    for degrees in 1.0 / inverse[1:]:
        density = np.cos(angles) ** (degrees - 1.0)
        area = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
        angle = np.interp(0.9, area / area[-1], angles)
        quantiles.append(math.log(math.sqrt(degrees) * math.tan(angle)))
    return inverse, np.array(quantiles)
