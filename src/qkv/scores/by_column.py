"""ByColumn: a weighted sum of scores, each of which compares one column of structured arrays.

    logit(q, k) = Σ_c weight_c · score_c(q[c], k[c])

Query and key are NumPy structured arrays, so columns of text and columns of numbers can be combined.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add

from qkv.core.arrays import cast
from qkv.core.axes import broadcast_batch
from qkv.core.tile import Tile
from qkv.core.typing import Array, Shaped
from qkv.errors import KindError, OptionError, ShapeError
from qkv.scores.base import GeneralScore, Score

__all__ = ["ByColumn"]


@dataclass(frozen=True, eq=False)
class ByColumn(GeneralScore):
    """Weighted sum of scores, each of which compares one column of query and key.

    Args:
        columns: a tuple with `(name, score, weight)` for each column.

    Shapes:
        query `(*batch, q)`, key `(*batch, k)`, structured arrays with these fields -> logits `(*batch, q, k)`

    Raises:
        OptionError: `columns` is not a tuple of one or more tuples (name, score, weight).
        KindError: query or key is not a structured array, or lacks a column.
        ShapeError: a column of vectors has different widths in query and key.

    Example:
        >>> import numpy as np
        >>> from qkv.scores import Exact, Gaussian
        >>> rows = np.array([("Oslo", 1.0), ("Rome", 3.0)], dtype=[("city", object), ("size", float)])
        >>> ByColumn((("city", Exact(), 1.0), ("size", Gaussian(1.0), 1.0)))(rows[:1], rows)
        array([[ 1., -2.]])
    """

    columns: tuple[tuple[str, Score, float], ...]
    accepts = "text"
    accepts_records = True

    def validate(self) -> None:
        if not isinstance(self.columns, tuple) or not self.columns:
            raise OptionError(
                f"columns must be a tuple of one or more tuples (name, score, weight), got {self.columns!r}. "
                'Pass, for example, (("age", Gaussian(5.0), 1.0),).'
            )
        for column in self.columns:
            if len(column) != 3 or not isinstance(column[1], Score):
                raise OptionError(
                    f"each element of columns must be a tuple (name, score, weight), got {column!r}. "
                    'Pass, for example, ("age", Gaussian(5.0), 1.0).'
                )

    def elements_per_logit(self, query_width: int, key_width: int) -> int:
        return 1 + max(score.elements_per_logit(1, 1) for _, score, _ in self.columns)

    def flop_per_logit(self, query_width: int, key_width: int) -> int:
        return sum(score.flop_per_logit(1, 1) + 2 for _, score, _ in self.columns)

    def compare(
        self, query: Shaped[Array, "*#batch q"], key: Shaped[Array, "*#batch k"]
    ) -> Shaped[Array, "*#batch q k"]:
        return reduce(add, (weight * _column_logits(name, score, query, key) for name, score, weight in self.columns))


def _column_logits(
    name: str, score: Score, queries: Shaped[Array, "*#batch q"], keys: Shaped[Array, "*#batch k"]
) -> Shaped[Array, "*#batch q k"]:
    for side, rows in (("query", queries), ("key", keys)):
        if name not in (rows.dtype.names or ()):
            present = ", ".join(map(repr, rows.dtype.names or ())) or f"no columns but dtype {rows.dtype}"
            raise KindError(
                f"{side} must be a structured array with the column {name!r}, got {present}. Add the column, "
                "or remove it from ByColumn."
            )
    query, key = queries[name], keys[name]
    if query.dtype != object:
        query, key = (x[..., None] if x.ndim == rows.ndim else x for x, rows in ((query, queries), (key, keys)))
        if not score.keeps_dtype:
            query, key = cast(query, "float64"), cast(key, "float64")
        if query.shape[-1] != key.shape[-1]:
            raise ShapeError(
                f"column {name!r} must have the same width in query and key, got widths {query.shape[-1]} and "
                f"{key.shape[-1]}. Store vectors of the same width in both."
            )
    batch = broadcast_batch(query=tuple(queries.shape[:-1]), key=tuple(keys.shape[:-1]))
    return score.logits(query, key, Tile.whole(queries.shape[-1], keys.shape[-1], batch))
