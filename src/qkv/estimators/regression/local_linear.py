"""Local linear regression: the weighted least-squares line through the rows near a query, evaluated at the query.

For weights w of the rows that sum to 1, with keys at the offsets d = key − query, the line a + b·d minimizes
Σ w (v − a − b·d)². With the means m = Σ w d and v̄ = Σ w v, and C = Σ w (d − m)(d − m)ᵀ,

    b = C⁻¹ Σ w (d − m) v        a = v̄ − b·m = Σ l v        l = w (1 − (d − m)·C⁻¹m)

where a is the answer, b its gradient, and l are the effective weights, which sum to 1 and can be negative. With
G = 1 + (d − m)·C⁻¹(d − m) and the weighted squares s² = Σ w (v − a − b·d)²,

    σ² = s² / (1 − Σ w² G)           variance of the values around the line, without bias if it is constant
    SE(a)² = σ² Σ l²                 SE(b)² = σ² Σ w² (C⁻¹(d − m))²
    ν = (1 − Σ w² G) / Σ w²          degrees of freedom, n − p − 1 for equal weights

Directions in which the keys near the query do not vary are left out of the line.

Source: Fan, Gijbels (1996), Local polynomial modelling and its applications, sections 2.3 and 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from qkv.core.typing import Bool, Float

__all__ = ["LocalFits", "LocalMoments", "fit_rows", "solve", "spanned_inverse", "stack_moments"]

# Directions with a variance below this part of the largest are left out.
_SINGULAR = 1e-10
# The query is outside the span of the keys if it is farther away than this part of their deviation.
_OUTSIDE = 3e-5
# Squared rounding errors of an offset relative to its length.
_ROUNDING = 1e-24
# Smaller residuals are rounding errors of the sums.
_RESIDUAL_ROUNDING = 1e-12

ONE_KEY = "the rows near the query have one distinct key"
COLLINEAR = "the keys near the query are collinear, and the query is not on their line"
ONE_SIDE = "all rows near the query lie on one side of it"
WEAK = "a line through the rows near the query is less certain than one row"
PARTIAL = "the keys near the query vary in {rank} of {width} directions, and no slope is known in the others"


@dataclass(frozen=True)
class LocalMoments:
    """Weighted moments of the offsets and the values of rows, for each query. The weights w sum to 1.

    Attributes:
        mean, covariance: of the offsets.
        center, variance: of the values.
        cross: Σ w (d − m) (v − v̄).
        squares: Σ w².
        first, second: Σ w² d and Σ w² d dᵀ.
    """

    mean: Float[np.ndarray, "q width"]
    covariance: Float[np.ndarray, "q width width"]
    center: Float[np.ndarray, " q"]
    variance: Float[np.ndarray, " q"]
    cross: Float[np.ndarray, "q width"]
    squares: Float[np.ndarray, " q"]
    first: Float[np.ndarray, "q width"]
    second: Float[np.ndarray, "q width width"]


@dataclass(frozen=True)
class LocalFits:
    """The lines of several queries.

    Attributes:
        value: the answers a.
        gradient, gradient_error: b and its standard error; NaN where it is not known.
        spread: s.
        noise: σ.
        rows: 1 / Σ l², the effective number of rows.
        degrees: ν.
        intercept, slope: such that l = w (intercept − slope · d).
        notes: why the answer is the weighted mean, or which slopes are not known; empty otherwise.
    """

    value: Float[np.ndarray, " q"]
    gradient: Float[np.ndarray, "q width"]
    gradient_error: Float[np.ndarray, "q width"]
    spread: Float[np.ndarray, " q"]
    noise: Float[np.ndarray, " q"]
    rows: Float[np.ndarray, " q"]
    degrees: Float[np.ndarray, " q"]
    intercept: Float[np.ndarray, " q"]
    slope: Float[np.ndarray, "q width"]
    notes: tuple[str, ...]

    def weights(
        self, index: int, weights: Float[np.ndarray, " rows"], offsets: Float[np.ndarray, "rows width"]
    ) -> Float[np.ndarray, " rows"]:
        """Return the effective weights l of rows for the query `index`."""
        return np.asarray(weights * (self.intercept[index] - offsets @ self.slope[index]))


def fit_rows(
    weights: Float[np.ndarray, "q rows"],
    key: Float[np.ndarray, "rows width"],
    query: Float[np.ndarray, "q width"],
    cells: Float[np.ndarray, " rows"],
) -> LocalFits:
    """Return the line of each query through all rows.

    Args:
        weights: the weights, which are not negative and sum to 1 for each query, or are all 0.
        key: the keys.
        query: the queries.
        cells: the values.

    Example:
        >>> x = np.arange(5.0)
        >>> fits = fit_rows(np.full((1, 5), 0.2), x[:, None], np.array([[0.0]]), 3 + 2 * x)
        >>> fits.value.round(9), fits.gradient.round(9)
        (array([3.]), array([[2.]]))
    """
    moments = [_moments(row, key, one, cells) for row, one in zip(weights, query, strict=True)]
    return solve(stack_moments(moments, key.shape[1]))


def stack_moments(moments: Sequence[LocalMoments], width: int) -> LocalMoments:
    """Return the moments of several queries as those of one group of queries over `width` coordinates."""
    if not moments:
        vector, matrix, number = np.zeros((0, width)), np.zeros((0, width, width)), np.zeros(0)
        return LocalMoments(vector, matrix, number, number, vector, number, vector, matrix)
    parts = {each.name: np.concatenate([getattr(one, each.name) for one in moments]) for each in fields(LocalMoments)}
    return LocalMoments(**parts)


def _moments(
    weights: Float[np.ndarray, " rows"],
    key: Float[np.ndarray, "rows width"],
    query: Float[np.ndarray, " width"],
    cells: Float[np.ndarray, " rows"],
) -> LocalMoments:
    """Return the moments of one query."""
    rows = np.flatnonzero(weights)
    w, d, v = weights[rows], key[rows] - query, cells[rows]
    w = w / (w.sum() or 1.0)
    mean, center = w @ d, w @ v
    offset, deviation, square = d - mean, v - center, w * w
    with np.errstate(over="ignore", invalid="ignore"):
        weighted = w[:, None] * offset
        return LocalMoments(
            mean=mean[None],
            covariance=(weighted.T @ offset)[None],
            center=center[None],
            variance=(w @ np.square(deviation))[None],
            cross=(weighted.T @ deviation)[None],
            squares=square.sum()[None],
            first=(square @ d)[None],
            second=((square[:, None] * d).T @ d)[None],
        )


def spanned_inverse(
    mean: Float[np.ndarray, "q width"], covariance: Float[np.ndarray, "q width width"]
) -> tuple[Float[np.ndarray, "q width width"], Float[np.ndarray, "q width width"], Bool[np.ndarray, "3 q"]]:
    """Return C⁻¹ in the directions in which keys vary, the projection to them, and why there can be no line.

    Args:
        mean: the mean offset of the keys from each query.
        covariance: the covariance of the keys.

    Returns:
        The inverse, the projection, and three booleans for each query: there is one distinct key, the query is outside
        the span of the keys, and it is so far away from them that they lie on one side.
    """
    width = mean.shape[1]
    values, vectors = np.linalg.eigh(covariance)
    largest, length = values[:, -1:], np.square(mean).sum(axis=1, keepdims=True)
    kept = (values > _SINGULAR * largest) & (values > _ROUNDING * length) & (values > 0)
    inverse = np.where(kept, 1.0 / np.where(kept, values, 1.0), 0.0)
    along = np.einsum("qij,qi->qj", vectors, mean)
    one_key = ~kept.any(axis=1)
    outside = (~kept & (np.abs(along) > _OUTSIDE * np.sqrt(np.maximum(largest, 0)))).any(axis=1) & ~one_key
    # Gaussian weights at the edge of uniformly distributed keys have a distance of 1.3 √width.
    far = (np.square(along) * inverse).sum(axis=1) > (2.0 * np.sqrt(width) + 1.0) ** 2
    spanned = np.einsum("qij,qj,qkj->qik", vectors, inverse, vectors)
    projection = np.einsum("qij,qj,qkj->qik", vectors, kept.astype(np.float64), vectors)
    return spanned, projection, np.stack([one_key, outside, far & ~outside])


def solve(moments: LocalMoments) -> LocalFits:
    """Return the line of each query from the moments of the rows.

    Where there is no line, or where its variance is larger than that of one row, the answer is the weighted mean.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        finite = np.isfinite(moments.covariance).all(axis=(1, 2))
        covariance = np.where(finite[:, None, None], moments.covariance, 0.0)
        inverse, projection, (one_key, outside, far) = spanned_inverse(moments.mean, covariance)
        m, q0 = moments.mean, moments.squares
        outer = moments.first[:, :, None] * m[:, None, :]
        second = moments.second - outer - outer.transpose(0, 2, 1) + q0[:, None, None] * m[:, :, None] * m[:, None, :]
        slope = np.einsum("qij,qj->qi", inverse, m)
        first = moments.first - q0[:, None] * m
        squares = q0 - 2 * (slope * first).sum(axis=1) + np.einsum("qi,qij,qj->q", slope, second, slope)
        weak = squares > 1.0 + 1e-9
        fallback = one_key | outside | far | weak
        inverse = np.where(fallback[:, None, None], 0.0, inverse)
        slope = np.where(fallback[:, None], 0.0, slope)
        squares = np.where(fallback, q0, squares)
        gradient = np.einsum("qij,qj->qi", inverse, moments.cross)
        residual = moments.variance - np.einsum("qi,qij,qj->q", gradient, covariance, gradient)
        residual = np.where(residual > _RESIDUAL_ROUNDING * moments.variance, residual, 0.0)
        residual = np.where(np.isfinite(moments.variance), residual, np.nan)
        share = 1.0 - q0 - np.einsum("qij,qji->q", inverse, second)
        noise = np.sqrt(residual / np.where(share > 0, share, np.nan))
        spread_of_slope = np.einsum("qij,qjk,qki->qi", inverse, second, inverse)
        known = (np.einsum("qii->qi", projection) > 1.0 - 1e-6) & ~fallback[:, None]
        rows = 1.0 / np.where(squares > 0, squares, np.nan)
    return LocalFits(
        value=moments.center - (gradient * m).sum(axis=1),
        gradient=np.where(known, gradient, np.nan),
        gradient_error=np.where(known, noise[:, None] * np.sqrt(np.maximum(spread_of_slope, 0.0)), np.nan),
        spread=np.sqrt(residual),
        noise=noise,
        rows=rows,
        degrees=share * (1.0 / np.where(q0 > 0, q0, np.nan)),
        intercept=1.0 + (slope * m).sum(axis=1),
        slope=slope,
        notes=_notes(projection, (one_key, outside, far, weak)),
    )


def _notes(
    projection: Float[np.ndarray, "q width width"], reasons: tuple[Bool[np.ndarray, " q"], ...]
) -> tuple[str, ...]:
    width = projection.shape[1]
    ranks = np.einsum("qii->q", projection).round().astype(int)
    notes = []
    for rank, *found in zip(ranks.tolist(), *(reason.tolist() for reason in reasons), strict=True):
        texts = [text for text, true in zip((ONE_KEY, COLLINEAR, ONE_SIDE, WEAK), found, strict=True) if true]
        partial = PARTIAL.format(rank=rank, width=width) if rank < width else ""
        notes.append(f"weighted mean, because {texts[0]}" if texts else partial)
    return tuple(notes)
