"""Soft cap: a smooth limit of ±cap on the logits of another score.

    logit = cap · tanh(score(q, k) / cap)

Source: Gemma Team (2024), Gemma 2, section 2, https://arxiv.org/abs/2408.00118.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from qkv.core.arrays import is_array, is_ndarray, namespace, where
from qkv.core.parts import array_field, expand_to_pairs, require_number
from qkv.core.tile import Tile
from qkv.core.typing import Array, Num
from qkv.scores.base import Score
from qkv.scores.forms import Capped, Form, SavedArrays
from qkv.scores.wrapper import PointwiseScore

__all__ = ["Softcap"]


@dataclass(frozen=True, eq=False)
class Softcap(PointwiseScore):
    """Score that limits the logits of an inner score smoothly to the range from −cap to cap.

    Args:
        score: the inner score.
        cap: the limit, > 0, a number or one number per batch element.

    Raises:
        OptionError: the cap is not positive.

    Example:
        >>> import numpy as np
        >>> from qkv.scores import Dot
        >>> Softcap(Dot(), cap=5.0)(np.array([[1.0]]), np.array([[0.0], [1000.0]]))
        array([[0., 5.]])
    """

    score: Score
    cap: Array | float = array_field(default=50.0)

    def validate(self) -> None:
        require_number("Softcap", "cap", self.cap, lambda c: c > 0, "a positive number")

    @property
    def form(self) -> Form:  # type: ignore[override]
        return Capped(self.score, self.cap, saved=SavedArrays(logits=1.25))

    def transform(self, logits: Num[Array, "*#batch #q #k"], tile: Tile) -> Num[Array, "*#batch #q #k"]:
        """Return cap · tanh(logit / cap) for each logit; logits of −inf are unchanged."""
        cap = expand_to_pairs(self.cap)
        # A logit of −inf, which excludes the pair, must not become −cap, and gives a learned cap no gradient.
        excluded = logits == -math.inf
        finite = where(excluded, 0.0, logits) if is_array(self.cap) else logits
        capped = cap * namespace(logits).tanh(finite / cap)
        return capped if is_ndarray(excluded) and not excluded.any() else where(excluded, -math.inf, capped)
