"""Class table: queries and keys belong to classes, and a table says what each pair of classes adds.

logit = score(q_i, k_j) + T[a_i, b_j]
"""

from dataclasses import dataclass

from qkv.core.arrays import Array, gather, known_true, namespace
from qkv.core.parts import axes
from qkv.core.positions import Place
from qkv.errors import OptionError
from qkv.scores.base import PointwiseScore, Score

__all__ = ["ClassTable"]


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
    table: Array = axes("query_classes", "key_classes")
    query_classes: Array = axes("q", default=None)
    key_classes: Array = axes("k", default=None)

    def point(self, logits: Array, place: Place) -> Array:
        """logit + T[a, b]"""
        rows, columns = self.table.shape[-2:]
        _check_classes("query", self.query_classes, rows)
        _check_classes("key", self.key_classes, columns)
        flat = namespace(self.table).reshape(self.table, (*self.table.shape[:-2], rows * columns))
        return logits + gather(
            flat, self.query_classes[..., :, None] * columns + self.key_classes[..., None, :]
        )


def _check_classes(side: str, classes: Array, count: int) -> None:
    # Looked up flat, a class too large would silently read another row of the table.
    if known_true(namespace(classes).any((classes < 0) | (classes >= count))):
        raise OptionError(
            f"a {side} has a class outside the table. Its {side} classes go from 0 to {count - 1}."
        )
