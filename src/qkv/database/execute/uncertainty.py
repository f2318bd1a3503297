"""Standard error and prediction interval of an answer, from the spread of the values and the weights.

For weights w that sum to 1 and are not negative, with the spread s of the values,

    n  = 1 / Σ w²                                effective number of rows (Kish)
    ν  = n − 1                                   degrees of freedom
    σ  = s √(n / ν)                              standard deviation of the values
    SE = σ / √n = s / √(n − 1)                   standard error of the weighted mean
    interval = mean + σ √(1 + 1/n) t(ν) / z · [a, b]

where t and z are the 95 % quantiles of Student's and the normal distribution. For equal weights SE is the textbook's
sample standard deviation over √n. The factors a and b are −z and z for normal values; a `Calibration` estimates them
from the rows of the table, as functions of the key where values scatter more at some keys than σ shows. With fewer than
two effective rows there is neither a standard error nor an interval. For votes, the standard error is that of the share
of the winning label, and there is no interval. For a line through the rows, n, ν and σ are those of
`qkv.estimators.regression.local_linear`.

Source: Kish (1965), Survey sampling; Geisser (1993), Predictive inference, section 2.2.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np

from qkv.core.typing import Float
from qkv.encoders.arrow_columns import Temporal
from qkv.encoders.columns import Column
from qkv.estimators.regression.local_scale import LocalScale

Z = 1.6448536269514722
"""The 95 % quantile of the standard normal distribution."""

# Rounding leaves two equal weights with slightly fewer than two effective rows.
_LEAST_DEGREES = 1 - 1e-9
_ANGLES = 2**12

Interval: TypeAlias = "tuple[float, float] | tuple[Temporal, Temporal]"


@dataclass(frozen=True)
class Calibration:
    """Factors of the standard deviation of a prediction between which 90 % of new values lie.

    Attributes:
        lower, upper: the factors, −1.645 and 1.645 for normal values.
        rows: the number of rows from which they were estimated; 0 if they are those of normal values.
        local: the factor g(x) by which they are larger at a key; None: 1 everywhere.
    """

    lower: float = -Z
    upper: float = Z
    rows: int = 0
    local: LocalScale | None = None

    def scale_at(self, points: Float[np.ndarray, "q width"] | None, count: int) -> Float[np.ndarray, " q"]:
        """Return g at the coordinates of `count` queries, which are None if the keys are not compared as numbers."""
        return np.ones(count) if self.local is None or points is None else self.local.at(points)


def effective_rows(weights: Float[np.ndarray, "q rows"]) -> Float[np.ndarray, " q"]:
    """Return 1 / Σ w² for the weights of each query, or NaN if a weight is negative or all are zero.

    Example:
        >>> effective_rows(np.array([[0.25, 0.25, 0.25, 0.25], [0.0, 1.0, 0.0, 0.0]])).tolist()
        [4.0, 1.0]
    """
    squares = np.einsum("ij,ij->i", weights, weights)
    valid = (squares > 0) & (weights.min(axis=1, initial=0.0) >= 0)
    return np.asarray(np.where(valid, 1.0 / np.where(valid, squares, 1.0), np.nan))


def perplexity(weights: Float[np.ndarray, "q rows"]) -> Float[np.ndarray, " q"]:
    """Return exp(−Σ w log w) for the weights of each query, with 0 log 0 = 0.

    Example:
        >>> perplexity(np.array([[0.25, 0.25, 0.25, 0.25], [0.0, 1.0, 0.0, 0.0]])).tolist()
        [4.0, 1.0]
    """
    with np.errstate(invalid="ignore"):  # of a negative weight
        return np.asarray(np.exp(-(weights * np.log(np.where(weights == 0, 1.0, weights))).sum(axis=1)))


@dataclass(frozen=True)
class Precision:
    """What determines the standard error and the interval of an answer, see the module's equations.

    Attributes:
        noise: σ, the standard deviation of the values around the answer.
        rows: n, the effective number of rows.
        degrees: ν, the degrees of freedom from which σ is estimated, at least 1.
    """

    noise: float
    rows: float
    degrees: float

    @staticmethod
    def known(noise: float, rows: float, degrees: float) -> Precision | None:
        """Return a precision, or None if a number is NaN or there is less than one degree of freedom."""
        valid = degrees >= _LEAST_DEGREES and noise >= 0 and rows > 0
        return Precision(noise, rows, max(degrees, 1.0)) if valid else None


def mean_precision(spread: float | None, rows: float) -> Precision | None:
    """Return the precision of a weighted mean, or None if it is not known.

    Args:
        spread: the spread of the values; None if there is none.
        rows: the effective number of rows; NaN if there is none.
    """
    if spread is None or not rows - 1.0 >= _LEAST_DEGREES:
        return None
    return Precision.known(spread * math.sqrt(rows / (rows - 1.0)), rows, rows - 1.0)


def standard_error(center: float | None, precision: Precision | None, column: Column) -> float | dt.timedelta | None:
    """Return the standard error of an answer in the unit of the value column, or None if it is not known.

    The arguments are those of `prediction_interval`. That of a vote is a share, whatever the labels are.
    """
    if precision is None:
        return None
    error = precision.noise / math.sqrt(precision.rows)
    return error if center is None or column.kind != "timestamp" else column.duration(error)


def prediction_interval(
    center: float | None, precision: Precision | None, column: Column, factors: Callable[[], tuple[float, float]]
) -> Interval | None:
    """Return the interval that contains the value of a new row with a probability of 90 %, or None if unknown.

    Args:
        center: the answer in the unit of the column; None for votes and vectors.
        precision: the precision of the answer.
        column: the value column, which gives the unit.
        factors: returns the factors a and b of the standard deviation; called if there is an interval.
    """
    if center is None or precision is None:
        return None
    arrays = (np.array([number]) for number in (precision.noise, precision.rows, precision.degrees))
    scale = float(prediction_scale(*arrays)[0])
    lower, upper = (center + scale * factor for factor in factors())
    if column.kind != "timestamp":
        return lower, upper
    try:
        return column.timestamp(lower), column.timestamp(upper)
    except (ValueError, OverflowError):  # before year 1 or after 9999
        return None


def prediction_scale(
    noise: Float[np.ndarray, " n"], rows: Float[np.ndarray, " n"], degrees: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Return σ √(1 + 1/n) t(ν) / z of the module's equations."""
    return np.asarray(noise * np.sqrt(1.0 + 1.0 / rows) * student_quantile(degrees) / Z)


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
    cosines = np.cos(angles)
    inverse = np.concatenate([np.linspace(0.0, 0.05, 26), np.linspace(0.05, 1.0, 96)[1:]])
    quantiles = [math.log(Z)]
    for degrees in 1.0 / inverse[1:]:
        density = cosines ** (degrees - 1.0)
        area = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
        angle = np.interp(0.9, area / area[-1], angles)
        quantiles.append(math.log(math.sqrt(degrees) * math.tan(angle)))
    return inverse, np.array(quantiles)
