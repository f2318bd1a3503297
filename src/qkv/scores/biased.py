"""Biased: another score plus numbers of your own, for pairs or for keys.

logit = score(q_i, k_j) + B_ij          or          + b_j
"""

from dataclasses import dataclass, replace

from qkv.core.arrays import Array, namespace
from qkv.core.parts import array_field
from qkv.core.tile import Tile
from qkv.errors import OptionError
from qkv.scores.base import LiftKind, PointwiseScore, Score, concat_features

__all__ = ["Biased"]


@dataclass(frozen=True, eq=False)
class Biased(PointwiseScore):
    """Another score plus a bias.

    Args:
        score: the score within.
        bias: `(*batch, q, k)`; any of these axes may be 1.
        per_key: `(*batch, k)`: one number per key. This form keeps an inner product an inner product.

    Raises:
        OptionError: neither or both are given.

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
        """One of the two."""
        if (self.bias is None) == (self.per_key is None):
            raise OptionError("Biased wants either bias=(*batch, q, k) or per_key=(*batch, k).")

    @property
    def lift_kind(self) -> LiftKind | None:
        """Fact: a bias per key is one more axis; a bias per pair is no inner product."""
        return self.score.lift_kind if self.per_key is not None else None

    def lift(self, query: Array, key: Array, tile: Tile) -> tuple[Array, Array]:
        """One more axis: 1 on the query's side, the bias on the key's."""
        left, right = self.score.lift(query, key, tile)
        one = namespace(left).ones_like(left[..., :1])
        assert self.per_key is not None
        return concat_features([left, one]), concat_features([right, self.per_key[..., None]])

    def lifted_width(self, query_width: int, key_width: int) -> int:
        """Fact: one more axis, of the bias."""
        return self.score.lifted_width(query_width, key_width) + 1

    def lift_description(self) -> str:
        """Fact: and one axis."""
        return ", ".join(
            said for said in (self.score.lift_description(), "one more axis for the bias of the key") if said
        )

    def simplify(self, q: int, k: int) -> Score:
        """A bias with one row for all queries is one per key."""
        if self.bias is None or self.bias.shape[-2] != 1 or self.bias.shape[-1] != k or q == 1:
            return self
        return replace(self, bias=None, per_key=self.bias[..., 0, :])

    def offset(self, tile: Tile, reference: Array) -> Array:
        """The bias."""
        if self.per_key is not None:
            return self.per_key[..., None, :]
        assert self.bias is not None
        return self.bias
