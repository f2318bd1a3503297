"""Biased: a score that adds a bias for each pair, or a bias for each key, to another score.

logit = score(q_i, k_j) + B_ij          or          + b_j
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from qkv.core.parts import array_field
from qkv.core.tile import Tile
from qkv.core.typing import Array, Num
from qkv.errors import OptionError
from qkv.scores.base import Score
from qkv.scores.forms import LiftKind
from qkv.scores.lifted_vectors import column_of_ones, concat_features
from qkv.scores.wrapper import PointwiseScore

__all__ = ["Biased"]


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
        """Check that exactly one of `bias` and `per_key` is given."""
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

    def lift(
        self, query: Num[Array, "*#batch q query_width"], key: Num[Array, "*#batch k key_width"], tile: Tile
    ) -> tuple[Num[Array, "*#batch q lifted"], Num[Array, "*#batch k lifted"]]:
        """Return the vectors of the inner score's `lift` with one more column: 1 for queries, the bias for keys."""
        left, right = self.score.lift(query, key, tile)
        assert self.per_key is not None
        return concat_features(left, column_of_ones(left)), concat_features(right, self.per_key[..., None])

    def lifted_width(self, query_width: int, key_width: int) -> int:
        """Return the lifted width of the inner score plus 1, for the column of the bias."""
        return self.score.lifted_width(query_width, key_width) + 1

    def lift_description(self) -> str:
        """Return the inner score's description of its lift, extended by the additional column for the bias."""
        return self._lift_description_with("additional column for the bias of the key")

    def simplify(self, q: int, k: int) -> Score:
        """Return an equal score with a bias per key if several queries share one row of `bias`, else this score."""
        if self.bias is None or self.bias.shape[-2] != 1 or self.bias.shape[-1] != k or q == 1:
            return super().simplify(q, k)
        return replace(self, bias=None, per_key=self.bias[..., 0, :])

    def offset(self, tile: Tile, reference: Array) -> Num[Array, "*#batch #q #k"]:
        """Return the bias of each pair or, broadcast over queries, of each key."""
        if self.per_key is not None:
            return self.per_key[..., None, :]
        assert self.bias is not None
        return self.bias
