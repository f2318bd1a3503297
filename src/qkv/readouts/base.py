"""What a readout is: something computed from the weights, without keeping them.

A readout sees whole rows: some queries, all keys. It never changes the output, and sees no dropout.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from qkv.core.arrays import Array, namespace
from qkv.core.parts import Part
from qkv.core.positions import Place

__all__ = ["Readout", "join"]


class Readout(Part, ABC):
    """Reads rows of weights.

    `q_axis` says which axis of the result runs over the queries, counted from the end: rows read apart are
    joined there. `every_query`: it has an entry for each.
    """

    q_axis: ClassVar[int] = -1
    every_query: ClassVar[bool] = True

    def refuse(self, normalizer: Any) -> str | None:
        """Why this readout makes no sense for the normalizer, as a sentence; None where it does."""
        return None

    def check(self, q: int, k: int) -> None:
        """Raise an error where the readout asks for what is not there."""

    def numbers(self, q: int, k: int) -> int:
        """How many numbers it keeps for each batch element."""
        return q

    @abstractmethod
    def read(self, logits: Array, weights: Array, normalizer: Any, place: Place) -> Any:
        """What these rows show: an array, or named fields.

        Args:
            logits: `(*batch, q, k)`, −inf where a key is excluded.
            weights: `(*batch, q, k)`, before dropout.
            normalizer: made the weights of the logits.
            place: of these rows; all keys.
        """

    def finish(self, joined: Any, place: Place) -> Any:
        """The result, from the rows joined in order."""
        return joined


def join(readout: Readout, pieces: list[Any]) -> Any:
    """What rows read apart show together."""
    if len(pieces) == 1:
        return pieces[0]
    if isinstance(pieces[0], tuple):
        fields = (_concat(list(of), readout.q_axis) for of in zip(*pieces, strict=True))
        return type(pieces[0])(*fields)
    return _concat(pieces, readout.q_axis)


def _concat(pieces: list[Array], axis: int) -> Array:
    return namespace(*pieces).concat(pieces, axis=axis)
