"""By column: rows of several columns, each compared in its own way, and the scores added.

    logit(q, k) = Σ_c weight_c · score_c(q[c], k[c])

Rows are NumPy structured arrays, so text and numbers can stand side by side.
"""

from dataclasses import dataclass

from qkv.core.arrays import Array, cast
from qkv.core.tile import Tile
from qkv.errors import KindError, OptionError, ShapeError
from qkv.scores.base import GeneralScore, Score

__all__ = ["ByColumn"]


@dataclass(frozen=True, eq=False)
class ByColumn(GeneralScore):
    """The weighted sum of one score per column.

    Args:
        columns: `(name, score, weight)` for each column, as a tuple.

    Shapes:
        query `(*batch, q)`, key `(*batch, k)`, structured arrays with these fields -> logits `(*batch, q, k)`

    Raises:
        OptionError: no column, or something that is no score.
        KindError: the arrays are not structured, or lack a column.

    Example:
        >>> import numpy as np
        >>> from qkv.scores import Exact, Gaussian
        >>> rows = np.array([("Oslo", 1.0), ("Rome", 3.0)], dtype=[("city", object), ("size", float)])
        >>> ByColumn((("city", Exact(), 1.0), ("size", Gaussian(1.0), 1.0)))(rows[:1], rows)
        array([[ 1., -2.]])
    """

    columns: tuple[tuple[str, Score, float], ...]
    accepts = "text"

    def validate(self) -> None:
        """A tuple of (name, score, weight)."""
        if not isinstance(self.columns, tuple) or not self.columns:
            raise OptionError(f"ByColumn was given {self.columns!r}. Give a tuple of (name, score, weight).")
        for column in self.columns:
            if len(column) != 3 or not isinstance(column[1], Score):
                raise OptionError(f"ByColumn was given the column {column!r}. Give (name, score, weight).")

    def elements_per_logit(self, query_width: int, key_width: int) -> int:
        """Fact: the widest of the columns."""
        return 1 + max(score.elements_per_logit(1, 1) for _, score, _ in self.columns)

    def flop_per_logit(self, query_width: int, key_width: int) -> int:
        """Fact: the sum of the columns."""
        return sum(score.flop_per_logit(1, 1) + 2 for _, score, _ in self.columns)

    def compare(self, query: Array, key: Array) -> Array:
        """Σ weight · score of the column"""
        total = None
        for name, score, weight in self.columns:
            for side, rows in (("query", query), ("key", key)):
                if name not in (rows.dtype.names or ()):
                    raise KindError(
                        f"{side} has no column {name!r}; it has {rows.dtype.names}. ByColumn wants a structured array."
                    )
            logits = weight * _column_logits(score, query[name], key[name], (query.ndim, key.ndim))
            total = logits if total is None else total + logits
        return total


def _column_logits(score: Score, query: Array, key: Array, axes: tuple[int, int]) -> Array:
    q, k = query.shape[axes[0] - 1], key.shape[axes[1] - 1]
    if query.dtype != object:
        query, key = (x[..., None] if x.ndim == n else x for x, n in zip((query, key), axes, strict=True))
        query, key = cast(query, "float64"), cast(key, "float64")
        if query.shape[-1] != key.shape[-1]:
            raise ShapeError(f"a column has width {query.shape[-1]} in the query and {key.shape[-1]} in the key.")
    return score.logits(query, key, Tile.whole(q, k))
