"""Biases that are arrays: of each pair, of each key, or of each pair of a query class and a key class.

    Biased         logit = score(q_i, k_j) + B_ij          or          + b_j
    ClassTable     logit = score(q_i, k_j) + T[a_i, b_j]          T[a_i, b_j] = <one_hot(a_i), T[:, b_j]>

The last form is an inner product of vectors with one element per class. With few classes, fused kernels support it,
and the gradient of the table is a matrix product instead of a scatter over all pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from qkv.core.arrays import arange, cast, gather, namespace, statically_known_true
from qkv.core.parts import array_field
from qkv.core.tile import Tile
from qkv.core.typing import Array, KeyArray, LiftedArrays, Num, QueryArray
from qkv.errors import OptionError
from qkv.scores.base import Score
from qkv.scores.forms import LiftKind, column_of_ones, concat_features
from qkv.scores.wrapper import PointwiseScore

__all__ = ["Biased", "ClassTable"]


@dataclass(frozen=True, eq=False)
class Biased(PointwiseScore):
    """Score that adds a bias for each pair of query and key, or a bias for each key, to an inner score.

    Args:
        score: the inner score.
        bias: bias of each pair, `(*batch, q, k)`; any of these axes may be 1.
        per_key: bias of each key, `(*batch, k)`. An inner product plus this bias is again an inner product.

    Raises:
        OptionError: not exactly one of `bias` and `per_key` is given.

    Example:
        >>> import numpy as np
        >>> from qkv.scores import Constant
        >>> Biased(Constant(), per_key=np.array([0.0, 2.0]))(np.ones((1, 1)), np.ones((2, 1)))
        array([[0., 2.]])
    """

    score: Score
    bias: Array | None = array_field("q", "k", default=None)
    per_key: Array | None = array_field("k", default=None)

    def validate(self) -> None:
        if (self.bias is None) == (self.per_key is None):
            given = "none" if self.bias is None else "both"
            raise OptionError(
                f"exactly one of bias and per_key must be given, got {given}. "
                "Pass either bias with shape (*batch, q, k) or per_key with shape (*batch, k)."
            )

    @property
    def lift_kind(self) -> LiftKind | None:
        """That of the inner score if the bias is per key; None if the bias is per pair."""
        return self.score.form.lift if self.per_key is not None else None

    def lift(self, query: QueryArray, key: KeyArray, tile: Tile) -> LiftedArrays:
        """Return the vectors of the inner score's `lift` with one more column: 1 for queries, the bias for keys."""
        left, right = self.score.lift(query, key, tile)
        assert self.per_key is not None
        return concat_features(left, column_of_ones(left)), concat_features(right, self.per_key[..., None])

    def lifted_width(self, query_width: int, key_width: int) -> int:
        return self.score.lifted_width(query_width, key_width) + 1

    def lift_description(self) -> str:
        return self._lift_description_with("additional column for the bias of the key")

    def simplify(self, q: int, k: int) -> Score:
        """Return an equal score with a bias per key if several queries share one row of `bias`, else this score."""
        if self.bias is None or self.bias.shape[-2] != 1 or self.bias.shape[-1] != k or q == 1:
            return super().simplify(q, k)
        return replace(self, bias=None, per_key=self.bias[..., 0, :])

    def offset(self, tile: Tile, reference: Array) -> Num[Array, "*#batch #q #k"]:
        if self.per_key is not None:
            return self.per_key[..., None, :]
        assert self.bias is not None
        return self.bias


_MAX_LIFTED_CLASSES = 64
"""Number of classes up to which a column per class is faster than a lookup per pair; see docs/decisions/0006."""


@dataclass(frozen=True, eq=False)
class ClassTable(PointwiseScore):
    """Score that adds a learned bias for each pair of a query class and a key class to an inner score.

    Args:
        score: the inner score.
        table: T `(query_classes, key_classes)`.
        query_classes: class a of each query, integers `(*batch, q)`.
        key_classes: class b of each key, integers `(*batch, k)`.

    Raises:
        OptionError: a class is negative or has no row or column in the table.

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
        """That of the inner score if there are at most 64 query classes or key classes, otherwise None."""
        return self.score.form.lift if min(self.table.shape[-2:]) <= _MAX_LIFTED_CLASSES else None

    def lift(self, query: QueryArray, key: KeyArray, tile: Tile) -> LiftedArrays:
        """Return the vectors of the inner score's `lift` with one more column per query class or per key class.

        The side with fewer classes determines the columns. They are one-hot vectors on this side, and entries of the
        table on the other side.
        """
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
        return concat_features(left, queries), concat_features(right, keys)

    def lifted_width(self, query_width: int, key_width: int) -> int:
        return self.score.lifted_width(query_width, key_width) + int(min(self.table.shape[-2:]))

    def lift_description(self) -> str:
        return self._lift_description_with("one-hot classes times rows of the table")

    def offset(self, tile: Tile, reference: Array) -> Num[Array, "*#batch q k"]:
        """Return the table entry T[a, b] for each pair of a query of class a and a key of class b."""
        rows, columns = self.table.shape[-2:]
        _check_classes("query", self.query_classes, rows)
        _check_classes("key", self.key_classes, columns)
        flat = namespace(self.table).reshape(self.table, (*self.table.shape[:-2], rows * columns))
        return gather(flat, self.query_classes[..., :, None] * columns + self.key_classes[..., None, :])


def _one_hot(classes: Num[Array, "*batch n"], count: int, table: Num[Array, "*_"]) -> Num[Array, "*batch n count"]:
    return cast(classes[..., None] == arange(table, 0, count), table.dtype)


def _check_classes(side: str, classes: Num[Array, "*batch n"], count: int) -> None:
    # The lookup in the flattened table would silently read another row for a class that is too large.
    if statically_known_true(namespace(classes).any((classes < 0) | (classes >= count))):
        lowest, highest = int(namespace(classes).min(classes)), int(namespace(classes).max(classes))
        raise OptionError(
            f"{side}_classes of ClassTable must be between 0 and {count - 1} for a table with {count} {side} classes, "
            f"got classes from {lowest} to {highest}. Number the classes from 0, or give a table with more classes."
        )
