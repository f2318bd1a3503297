"""Gaussian score: the logarithm of a Gaussian kernel of the distance between query and key.

    logit(q, k) = −‖q − k‖² / 2h²

With softmax this is the Nadaraya–Watson estimator with a Gaussian kernel.
Source: Nadaraya (1964), On estimating regression, https://doi.org/10.1137/1109020; Watson (1964), Smooth
regression analysis.
"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.arrays import namespace, stop_gradient
from qkv.core.parts import array_field, expand_to_pairs, require_number
from qkv.core.tile import Tile
from qkv.core.typing import Array, Num
from qkv.scores.base import InnerProductScore
from qkv.scores.lifted_vectors import concat_features

__all__ = ["Gaussian"]


@dataclass(frozen=True, eq=False)
class Gaussian(InnerProductScore):
    """Negative squared distance between query and key, divided by twice the squared bandwidth.

    Args:
        bandwidth: h > 0 in the unit of the keys, a number or one number per batch element.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, width)` -> logits `(*batch, q, k)`

    Raises:
        ShapeError: the widths of query and key differ.
        OptionError: the bandwidth is not positive.

    Example:
        >>> import numpy as np
        >>> Gaussian(0.5)(np.array([[1.0]]), np.array([[1.0], [2.0], [0.0]]))
        array([[ 0., -2., -2.]])
    """

    bandwidth: Array | float = array_field(default=1.0)
    lift_kind = "up_to_query_constant"

    def validate(self) -> None:
        """Check that the bandwidth is positive if it is a number; the elements of an array are not checked."""
        require_number(
            "Gaussian", "bandwidth", self.bandwidth, lambda h: h >= 1e-150, "a positive number, at least 1e-150"
        )

    @property
    def distance_factor(self) -> float | None:  # type: ignore[override]
        """1/2h², or None if the bandwidth is an array with axes."""
        return None if getattr(self.bandwidth, "ndim", 0) else 0.5 / float(self.bandwidth) ** 2

    def centre(self, key: Num[Array, "*batch k width"]) -> Num[Array, "*batch 1 width"]:
        """Return the mean of the keys, `(*batch, 1, width)`, or zeros if there are no keys.

        Subtracting it from queries and keys reduces the cancellation errors of ‖q‖² − 2<q, k> + ‖k‖².
        """
        xp = namespace(key)
        if key.shape[-2] == 0:
            return xp.zeros((*key.shape[:-2], 1, key.shape[-1]), dtype=key.dtype)
        return stop_gradient(xp.mean(key, axis=-2, keepdims=True))

    lift_copies = 1.5
    lift_saves = (0.0, 1.0)

    def lift(
        self, query: Num[Array, "*#batch q width"], key: Num[Array, "*#batch k width"], tile: Tile
    ) -> tuple[Num[Array, "*#batch q lifted"], Num[Array, "*#batch k lifted"]]:
        """Return (q − c)/h and (k − c)/h, with one more column: 1 for each query q, −‖k − c‖²/2h² for each key k.

        The point c is `tile.centre`, or 0 if that is None. The inner product omits −‖q − c‖²/2h², which cancels in
        softmax. All logits of a query that is not finite are NaN, whatever the point c.
        """
        xp = namespace(query)
        query, key = self._scaled(query, tile), self._scaled(key, tile)
        length = -0.5 * xp.sum(key * key, axis=-1, keepdims=True)
        one = xp.sum(0 * stop_gradient(query), axis=-1, keepdims=True) + 1  # or NaN
        return concat_features(query, one), concat_features(key, length)

    def lifted_width(self, query_width: int, key_width: int) -> int:
        """Return the width of query and key plus 1, for the additional column of `lift`."""
        return max(query_width, key_width) + 1

    def lift_description(self) -> str:
        """Return a description of what `lift` computes, for the printed plan."""
        return "mean key subtracted, additional column for −‖k‖²/2h²"

    def query_term(self, query: Num[Array, "*#batch q width"], tile: Tile) -> Num[Array, "*#batch q"]:
        """Return −‖q − c‖²/2h² for each query q, where c is `tile.centre`, or 0 if that is None."""
        query = self._scaled(query, tile)
        return -0.5 * namespace(query).sum(query * query, axis=-1)

    def _scaled(self, x: Num[Array, "*#batch n width"], tile: Tile) -> Num[Array, "*#batch n width"]:
        centre = tile.centre
        assert not isinstance(centre, tuple)
        return (x if centre is None else x - centre) / expand_to_pairs(self.bandwidth)
