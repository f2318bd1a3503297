"""Class `Spec`, which holds the score, normalizer, mask, positions and dropout of a call as an immutable object."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypedDict

from qkv.core.checks import check_probability, describe
from qkv.core.parts import Part
from qkv.core.positions import Positions
from qkv.core.threefry import Seed
from qkv.errors import KindError
from qkv.masks.base import Mask, require_mask
from qkv.normalizers import NORMALIZERS, Normalizer
from qkv.normalizers.base import require_normalizer
from qkv.scores import ScaledDot, Score
from qkv.scores.base import require_score


class CallOptions(TypedDict, total=False):
    """Keyword arguments of `qkv.attend` and `qkv.observe`."""

    score: Score
    normalizer: Normalizer | None
    mask: Mask | None
    positions: Positions | None
    dropout: float
    seed: Seed | None
    kernel: str | None
    memory: int | str | None


@dataclass(frozen=True, eq=False)
class Spec(Part):
    """Specification of a call: all arguments that define its result, except query, key and value.

    Args:
        score: function that gives each pair of query and key a logit. The default is `ScaledDot()`.
        normalizer: function that maps logits to weights. The default depends on the score; it is `Softmax()` for most.
        mask: mask of the pairs that may attend; None allows all pairs.
        positions: how query positions relate to key positions, for scores and masks that use positions.
        dropout: probability of dropping a weight, greater than 0 only in training.

    Raises:
        KindError: a part has the wrong type, such as an array given as the mask.
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
        """Set the default score and normalizer, and check the type of every part."""
        if self.score is None:
            object.__setattr__(self, "score", ScaledDot())
        score = require_score(self.score)
        if self.normalizer is None:
            object.__setattr__(self, "normalizer", NORMALIZERS[score.default_normalizer]())
        require_normalizer(self.normalizer)
        if self.mask is not None:
            require_mask(self.mask)
        if self.positions is not None and not isinstance(self.positions, Positions):
            raise KindError(
                f"positions must be an instance of Positions, got {describe(self.positions)}. Pass "
                'qkv.Positions(align="start") or qkv.Positions(align="end").'
            )
        check_probability(self.dropout)

    @property
    def positional(self) -> bool:
        """Whether the score or the mask depends on the positions of queries."""
        assert self.score is not None
        return self.score.positional or (self.mask is not None and self.mask.positional)

    def with_(self, **changes: object) -> Spec:
        """Return a copy of the spec in which the fields named in `changes` are replaced."""
        return replace(self, **changes)  # type: ignore[arg-type]
