"""Class table: queries and keys belong to classes, and a table says what each pair of classes adds.

logit = score(q_i, k_j) + T[a_i, b_j]          T[a_i, b_j] = <one_hot(a_i), T[:, b_j]>

The second form is an inner product as wide as the smaller side of the table: with few classes a fused kernel
runs it, and the table's gradient is that of a product, not of an array of pairs.
"""

from dataclasses import dataclass

from qkv.core.arrays import Array, arange, cast, gather, namespace, statically_known_true
from qkv.core.parts import array_field
from qkv.core.tile import Tile
from qkv.errors import OptionError
from qkv.scores.base import LiftKind, PointwiseScore, Score, concat_features

__all__ = ["ClassTable"]

FEW = 64
"""Classes up to which one more axis each costs less than looking up every pair: see decision 0006."""


@dataclass(frozen=True, eq=False)
class ClassTable(PointwiseScore):
    """Another score plus a number for each pair of classes.

    Args:
        score: the score within.
        table: T `(query_classes, key_classes)`.
        query_classes: a, integers `(*batch, q)`.
        key_classes: b, integers `(*batch, k)`.

    Raises:
        OptionError: a class has no row or column in the table.

    Example:
        >>> import numpy as np
        >>> from qkv.scores import Constant
        >>> table = np.array([[0.0, 1.0], [2.0, 3.0]])
        >>> score = ClassTable(Constant(), table, np.array([1]), np.array([0, 1, 1]))
        >>> score(np.ones((1, 1)), np.ones((3, 1)))
        array([[2., 3., 3.]])
    """

    score: Score
    table: Array = array_field("query_classes", "key_classes")
    query_classes: Array = array_field("q", default=None)
    key_classes: Array = array_field("k", default=None)

    @property
    def lift_kind(self) -> LiftKind | None:
        """Fact: an inner product where the score within is one and a side of the table has few classes."""
        return self.score.lift_kind if min(self.table.shape[-2:]) <= FEW else None

    def lift(self, query: Array, key: Array, tile: Tile) -> tuple[Array, Array]:
        """One more axis for each class of the smaller side: one-hot there, rows of the table on the other."""
        left, right = self.score.lift(query, key, tile)
        rows, columns = self.table.shape[-2:]
        xp = namespace(self.table)
        _check_classes("query", self.query_classes, rows)
        _check_classes("key", self.key_classes, columns)
        queries = _one_hot(self.query_classes, rows, self.table)
        keys = _one_hot(self.key_classes, columns, self.table)
        if rows <= columns:
            keys = xp.matmul(keys, xp.matrix_transpose(self.table))
        else:
            queries = xp.matmul(queries, self.table)
        return concat_features([left, queries]), concat_features([right, keys])

    def lifted_width(self, query_width: int, key_width: int) -> int:
        """Fact: one more axis for each class of the smaller side."""
        return self.score.lifted_width(query_width, key_width) + int(min(self.table.shape[-2:]))

    def lift_description(self) -> str:
        """Fact: the classes are one-hot."""
        own = "one-hot classes times rows of the table"
        return ", ".join(said for said in (self.score.lift_description(), own) if said)

    def offset(self, tile: Tile, reference: Array) -> Array:
        """T[a, b]"""
        rows, columns = self.table.shape[-2:]
        _check_classes("query", self.query_classes, rows)
        _check_classes("key", self.key_classes, columns)
        flat = namespace(self.table).reshape(self.table, (*self.table.shape[:-2], rows * columns))
        return gather(flat, self.query_classes[..., :, None] * columns + self.key_classes[..., None, :])


def _one_hot(classes: Array, count: int, table: Array) -> Array:
    """1 at the class, 0 elsewhere, `(*batch, n, count)`."""
    return cast(classes[..., None] == arange(table, 0, count), table.dtype)


def _check_classes(side: str, classes: Array, count: int) -> None:
    # Looked up flat, a class too large would silently read another row of the table.
    if statically_known_true(namespace(classes).any((classes < 0) | (classes >= count))):
        raise OptionError(f"a {side} has a class outside the table. Its {side} classes go from 0 to {count - 1}.")
