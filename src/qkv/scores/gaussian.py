"""Gaussian score: the logarithm of a Gaussian kernel of the distance between query and key.

    logit(q, k) = −‖q − k‖² / 2h²

With softmax this is the Nadaraya–Watson estimator with a Gaussian kernel.
Source: Nadaraya (1964), On estimating regression, https://doi.org/10.1137/1109020; Watson (1964), Smooth
regression analysis.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from qkv.core.arrays import (
    cast,
    dtype_name,
    is_array,
    is_tensor,
    itemsize,
    library,
    namespace,
    rounded,
    statically_known_true,
    stop_gradient,
    where,
)
from qkv.core.distances import half_square, one_or_nan, range_power, squares_as_products
from qkv.core.guard import all_finite, zero_nonfinite
from qkv.core.parts import array_field, expand_to_pairs, require_number
from qkv.core.tile import Centre, Tile
from qkv.core.typing import Array, LiftedArrays, Num, Shaped, Tensor
from qkv.scores.base import GeneralScore, InnerProductScore, Score
from qkv.scores.forms import Form, Pairwise, SavedArrays, SquaredDistance, concat_features

__all__ = ["Gaussian", "GaussianOfDifferences", "has_no_data"]

_SAVED = SavedArrays(copies=1.5, sides=(0.0, 1.0))
_BLOCK = 2**18
"""Number of elements of the blocks in which the largest length of a vector is computed."""


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

    @property
    def cancels(self) -> bool:  # type: ignore[override]
        """Whether ‖q‖² − 2<q, k> + ‖k‖² is computed, which subclasses may replace."""
        return type(self).lift is Gaussian.lift

    def radius(self, exponent: float) -> float:
        """Return h √(2 `exponent`), the distance at which the logit is −`exponent`."""
        known = self.cancels and isinstance(self.bandwidth, int | float)
        return float(self.bandwidth) * math.sqrt(2 * exponent) if known else math.inf

    def validate(self) -> None:
        require_number(
            "Gaussian", "bandwidth", self.bandwidth, lambda h: h >= 1e-150, "a positive number, at least 1e-150"
        )

    @property
    def form(self) -> Form:  # type: ignore[override]
        """The squared distance times −1/2h², if h is a number in range, and not a tensor, which may be traced."""
        h = self.bandwidth
        number = isinstance(h, (int, float)) or (isinstance(h, np.ndarray) and h.ndim == 0)
        number = number and range_power(float(h)) == 1
        return SquaredDistance(0.5 / float(h) ** 2 if number else None, saved=_SAVED)

    def centre(self, key: Num[Array, "*batch k width"]) -> Num[Array, "*batch 1 width"]:
        """Return the mean of the keys, `(*batch, 1, width)`, or zeros if there are no keys.

        Subtracting it from queries and keys reduces the cancellation errors of ‖q‖² − 2<q, k> + ‖k‖².
        """
        xp = namespace(key)
        if key.shape[-2] == 0:
            return xp.zeros((*key.shape[:-2], 1, key.shape[-1]), dtype=key.dtype)
        return rounded(stop_gradient(xp.mean(key, axis=-2, keepdims=True)))

    def lift(
        self, query: Num[Array, "*#batch q width"], key: Num[Array, "*#batch k width"], tile: Tile
    ) -> LiftedArrays:
        """Return (q − c)/h and (k − c)/h, with one more column: 1 for each query q, −‖k − c‖²/2h² for each key k.

        The point c is `tile.centre`, or 0 if that is None. The inner product omits −‖q − c‖²/2h², which cancels in
        softmax. All logits of a query that is not finite are NaN, whatever the point c.
        """
        query, key = self._scaled(query, tile), self._scaled(key, tile)
        return concat_features(query, one_or_nan(query)), concat_features(key, half_square(key))

    def complete_lift(
        self, query: Num[Array, "*#batch q width"], key: Num[Array, "*#batch k width"], tile: Tile
    ) -> LiftedArrays:
        tile = replace(tile, centre=self.centre(key)) if tile.centre is None else tile
        return squares_as_products(self._scaled(query, tile), self._scaled(key, tile))

    def lifted_width(self, query_width: int, key_width: int) -> int:
        return max(query_width, key_width) + 1

    def lift_description(self) -> str:
        return "mean key subtracted, additional column for −‖k‖²/2h²"

    def query_term(self, query: Num[Array, "*#batch q width"], tile: Tile) -> Num[Array, "*#batch q"]:
        """Return −‖q − c‖²/2h² for each query q, where c is `tile.centre`, or 0 if that is None."""
        return half_square(self._scaled(query, tile))[..., 0]

    def lift_range(
        self,
        query: Num[Array, "*#batch q width"],
        key: Num[Array, "*#batch k width"],
        centre: Centre = None,
        cheap: bool = False,
    ) -> tuple[Num[Array, ""] | float, Num[Array, ""] | float]:
        """Return the largest ‖k − c‖²/h² and ‖q − c‖²/h² of rows that are finite, where c is `centre`."""
        if cheap:
            longest, total = _square_bounds(query, key)
            h = _smallest(self.bandwidth) if total < math.inf else 1.0
            return 4 * longest / (h * h), 4 * total / (h * h)  # ‖k − c‖ ≤ 2 max ‖k‖
        if centre is None:
            centre = self.centre(key)
        assert not isinstance(centre, tuple)
        assert centre is not None
        if not all_finite(centre):
            centre = self.centre(zero_nonfinite(key))
        tile = replace(Tile.whole(query.shape[-2], key.shape[-2]), centre=cast(centre, query.dtype))
        return self._largest_square(key, tile), self._largest_square(query, tile)

    def _largest_square(self, x: Num[Array, "*#batch n width"], tile: Tile) -> Num[Array, ""]:
        xp, pieces = namespace(x), [x]
        if 0 in tuple(x.shape):
            return xp.sum(x)
        if library(x) in ("numpy", "torch"):
            n = x.shape[-2]
            step = max(1, _BLOCK * n // math.prod(x.shape))
            pieces = [x[..., start : start + step, :] for start in range(0, n, step)]
        scaled = (stop_gradient(self._scaled(zero_nonfinite(stop_gradient(piece)), tile)) for piece in pieces)
        return reduce(xp.maximum, [xp.max(xp.sum(each * each, axis=-1)) for each in scaled])

    def by_differences(self, query: Array | None = None, key: Array | None = None) -> Score:
        """Return the score that computes −‖q − k‖²/2h² from differences, and differently for queries far from `key`."""
        if query is None or key is None:
            return GaussianOfDifferences(self.bandwidth)
        xp, key = namespace(key), zero_nonfinite(stop_gradient(key))
        centre = self.centre(key)
        reach = xp.max(abs(key - centre), axis=(-2, -1)) * (4 * math.sqrt(key.shape[-1]))
        if statically_known_true(xp.all(abs(stop_gradient(query) - centre) <= expand_to_pairs(reach))):
            return GaussianOfDifferences(self.bandwidth)
        return GaussianOfDifferences(self.bandwidth, centre, reach)

    def _scaled(self, x: Num[Array, "*#batch n width"], tile: Tile) -> Num[Array, "*#batch n width"]:
        centre = tile.centre
        assert not isinstance(centre, tuple)
        return (x if centre is None else x - centre) / expand_to_pairs(self.bandwidth)


@dataclass(frozen=True, eq=False)
class GaussianOfDifferences(GeneralScore):
    """The logits of `Gaussian`, computed from the differences of queries and keys.

    Where a query q is so far from all keys that q − k rounds to q, differences would not tell the keys apart. With
    x = (q − c)/h and y = (k − c)/h, the logits of such a query are <x, y> − ‖y‖²/2, which differs by ‖x‖²/2.

    Args:
        bandwidth: h > 0 in the unit of the keys, a number or one number per batch element.
        centre_point: c, a point amid the keys, `(*batch, 1, width)`; None: no query is far.
        reach: distance from c in a coordinate from which a query is far, a number per batch element.
    """

    bandwidth: Array | float = array_field(default=1.0)
    centre_point: Array | None = array_field("one", "width", default=None)
    reach: Array | None = array_field(default=None)
    form = Pairwise(saved=SavedArrays(logits=1.0))

    def flop_per_logit(self, query_width: int, key_width: int) -> int:
        """Return 3 operations per feature (difference, square and sum) plus 2."""
        return 3 * max(query_width, key_width) + 2

    def compare(
        self, query: Num[Array, "*#batch q width"], key: Num[Array, "*#batch k width"]
    ) -> Num[Array, "*#batch q k"]:
        """Return −‖q − k‖²/2h² for each pair of a query q and a key k, for far queries up to a term of the query."""
        if self.centre_point is None or self.reach is None:
            return self._from_differences(query, key)
        xp, h = namespace(query), expand_to_pairs(self.bandwidth)
        offset = query - self.centre_point
        largest = xp.max(abs(stop_gradient(offset)), axis=-1, keepdims=True)
        far = largest > expand_to_pairs(self.reach)
        near = self._from_differences(where(far, self.centre_point, query), key)
        # Logits of these queries differ so much that a smaller multiple has the same softmax, and does not overflow.
        limit = 1e12 if itemsize(dtype_name(query)) < 8 else 1e100
        scale = xp.minimum(xp.ones_like(largest), limit * h / where(far, largest, 1.0))
        x, y = where(far, offset, 0.0) * scale / h, (key - self.centre_point) / h
        products = xp.matmul(x, xp.matrix_transpose(y))
        lengths = xp.matrix_transpose(0.5 * xp.sum(y * y, axis=-1, keepdims=True))
        return where(far, products - scale * lengths, near)

    def _from_differences(self, query: Array, key: Array) -> Num[Array, "*#batch q k"]:
        h = self.bandwidth
        if is_array(h):
            h = expand_to_pairs(h)
            return _squares(query, key) * (-0.5 / (h * h))
        power = 2.0 ** -math.frexp(float(h))[1]  # a power of 2, with which products are exact
        return _squares(query * power, key * power) * (-0.5 / (h * power) ** 2)

    def __str__(self) -> str:
        return f"{Gaussian(self.bandwidth)} from differences"


def _squares(query: Num[Array, "*#batch q width"], key: Num[Array, "*#batch k width"]) -> Num[Array, "*#batch q k"]:
    if query.shape[-1] == key.shape[-1] == 1:
        difference = query - namespace(key).matrix_transpose(key)
        return difference * difference
    difference = query[..., :, None, :] - key[..., None, :, :]
    return namespace(query).sum(difference * difference, axis=-1)


def has_no_data(*arrays: Shaped[Array, "*_"]) -> bool:
    """Return whether reading arrays is an error, as it is while a graph of CUDA is captured."""
    if not any(is_tensor(x) and x.is_cuda for x in arrays):
        return False
    return bool(sys.modules["torch"].cuda.is_current_stream_capturing())


def _square_bounds(query: Num[Array, "*#batch q width"], key: Num[Array, "*#batch k width"]) -> tuple[float, float]:
    """Return max ‖k‖² and Σ ‖q‖² of arrays of NumPy or PyTorch, infinity of others and of tensors without data."""
    if 0 in key.shape:
        return math.inf, math.inf
    if isinstance(key, np.ndarray) and isinstance(query, np.ndarray) and key.dtype.kind == "f":
        with np.errstate(over="ignore"):
            keys, queries = (  # einsum converts block by block
                np.einsum("...i,...i->...", x, x, dtype=np.result_type(x, np.float32)) for x in (key, query)
            )
            return float(keys.max()), float(queries.sum())
    if is_tensor(key) and is_tensor(query) and not has_no_data(query, key):
        norm: Callable[..., Tensor] = sys.modules["torch"].linalg.vector_norm
        try:
            longest, total = norm(key.detach(), dim=-1).amax().item(), norm(query.detach()).item()
        except RuntimeError:  # a tensor without data
            return math.inf, math.inf
        return longest * longest, total * total
    return math.inf, math.inf


def _smallest(bandwidth: Array | float) -> float:
    """Return the smallest magnitude of a bandwidth, 0 if it has no data."""
    if not is_array(bandwidth):
        return float(bandwidth)
    if isinstance(bandwidth, np.ndarray):
        return float(abs(bandwidth).min())
    try:
        return float(bandwidth.detach().abs().amin())  # type: ignore[attr-defined]
    except (RuntimeError, AttributeError):
        return 0.0
