"""Spec: what is asked. Score, normalizer, mask, positions, dropout: a value that prints and compares."""

from __future__ import annotations

from dataclasses import dataclass, replace

from qkv.core.parts import Part
from qkv.core.positions import Positions
from qkv.errors import KindError, OptionError
from qkv.masks.base import Mask, require_mask
from qkv.normalizers import NORMALIZERS, Normalizer
from qkv.scores import ScaledDot, Score

__all__ = ["Spec"]


@dataclass(frozen=True, eq=False)
class Spec(Part):
    """What a call asks for, apart from its arrays.

    Args:
        score: how a query is compared with a key; default `ScaledDot()`.
        normalizer: how logits become weights; default: the score's own (`Softmax`, for most).
        mask: which pairs may meet; None: all.
        positions: how query positions relate to key positions, where that matters.
        dropout: probability of dropping a weight; more than 0 means training.

    Raises:
        KindError: a part is of another kind, such as a bare array as the mask.
        OptionError: a dropout outside [0, 1).

    Example:
        >>> print(Spec())
        Spec(ScaledDot(), normalizer=Softmax())
    """

    score: Score | None = None
    normalizer: Normalizer | None = None
    mask: Mask | None = None
    positions: Positions | None = None
    dropout: float = 0.0

    def validate(self) -> None:
        """Fill in the defaults; every part is of its kind."""
        if self.score is None:
            object.__setattr__(self, "score", ScaledDot())
        if not isinstance(self.score, Score):
            if callable(self.score) and not isinstance(self.score, type):
                raise KindError(f"score is a {_kind(self.score)}. Wrap it: scores.Custom(function).")
            raise KindError(f"score is a {_kind(self.score)}. Give one of qkv.scores, such as ScaledDot().")
        if self.normalizer is None:
            object.__setattr__(self, "normalizer", NORMALIZERS[self.score.default_normalizer]())
        if not isinstance(self.normalizer, Normalizer):
            raise KindError(
                f"normalizer is a {_kind(self.normalizer)}. Give one of qkv.normalizers, such as Softmax()."
            )
        if self.mask is not None:
            require_mask(self.mask)
        if self.positions is not None and not isinstance(self.positions, Positions):
            raise KindError(f'positions is a {_kind(self.positions)}. Give qkv.Positions(align="start" or "end").')
        if isinstance(self.dropout, bool) or not isinstance(self.dropout, (int, float)) or not 0 <= self.dropout < 1:
            raise OptionError(f"dropout is {self.dropout!r}. It must be a number from 0 up to, not including, 1.")

    @property
    def positional(self) -> bool:
        """Whether positions matter."""
        assert self.score is not None
        return self.score.positional or (self.mask is not None and self.mask.positional)

    def with_(self, **changes: object) -> Spec:
        """The spec with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]


def _kind(x: object) -> str:
    return f"class {x.__name__}, not an instance" if isinstance(x, type) else type(x).__name__
