"""Spec: the score, normalizer, mask, positions and dropout of a call, as a value that prints and compares."""

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
    """The arguments of a call, apart from query, key and value.

    Args:
        score: compares queries with keys; default `ScaledDot()`.
        normalizer: turns logits into weights; default: the score's own, which is `Softmax()` for most scores.
        mask: excludes pairs of queries and keys; None: no pair.
        positions: how query positions relate to key positions, if score or mask use positions.
        dropout: probability of dropping a weight; use more than 0 only in training.

    Raises:
        KindError: a part is of another type, such as a bare array as the mask.
        OptionError: dropout is not in [0, 1).

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
        """Fill in the defaults and check the type of every part."""
        if self.score is None:
            object.__setattr__(self, "score", ScaledDot())
        if not isinstance(self.score, Score):
            if callable(self.score) and not isinstance(self.score, type):
                advice = "Wrap it: scores.Custom(function)."
            else:
                advice = "Give one of qkv.scores, such as ScaledDot()."
            raise KindError(f"score must be a Score, got a {_kind(self.score)}. {advice}")
        if self.normalizer is None:
            object.__setattr__(self, "normalizer", NORMALIZERS[self.score.default_normalizer]())
        if not isinstance(self.normalizer, Normalizer):
            raise KindError(
                f"normalizer must be a Normalizer, got a {_kind(self.normalizer)}. Give one of qkv.normalizers, such "
                f"as Softmax()."
            )
        if self.mask is not None:
            require_mask(self.mask)
        if self.positions is not None and not isinstance(self.positions, Positions):
            raise KindError(
                f"positions must be Positions, got a {_kind(self.positions)}. Give "
                f'qkv.Positions(align="start" or "end").'
            )
        if isinstance(self.dropout, bool) or not isinstance(self.dropout, (int, float)) or not 0 <= self.dropout < 1:
            raise OptionError(
                f"dropout must be a number of at least 0 and less than 1, got {self.dropout!r}. Give 0 for no dropout."
            )

    @property
    def positional(self) -> bool:
        """Whether the score or the mask uses positions."""
        assert self.score is not None
        return self.score.positional or (self.mask is not None and self.mask.positional)

    def with_(self, **changes: object) -> Spec:
        """Return the spec with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]


def _kind(x: object) -> str:
    return f"class {x.__name__}, not an instance" if isinstance(x, type) else type(x).__name__
