"""Features: the inner product of feature vectors of query and key, as in linear attention.

    logit(q, k) = <φ(q), φ(k)>          "elu": φ(x) = elu(x) + 1          "relu": φ(x) = max(0, x)

Source: Katharopoulos et al. (2020), Transformers are RNNs: fast autoregressive transformers with linear attention,
https://arxiv.org/abs/2006.16236.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qkv.core.arrays import is_tensor, namespace, where
from qkv.core.parts import require_positive_integer
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float, KeyArray, LiftedArrays, Num, QueryArray, Shaped
from qkv.errors import OptionError, ShapeError
from qkv.scores.base import InnerProductScore
from qkv.scores.forms import Form, Product, SavedArrays

__all__ = ["Features"]


def _elu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return elu(x) + 1, computed as max(0, x) + e^min(0, x), which does not cancel for negative elements."""
    if is_tensor(x):
        return x.clamp(max=0.0).exp() + x.relu()
    return namespace(x).exp(where(x > 0, 0.0, x)) + _relu(x)  # the derivative at 0 is 1


def _relu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    return x.relu() if is_tensor(x) else where(x <= 0, 0.0, x)  # NaN stays NaN


_MAPS: dict[str, Callable[[Array], Array]] = {"elu": _elu, "relu": _relu}


@dataclass(frozen=True, eq=False)
class Features(InnerProductScore):
    """Inner product of feature vectors φ(query) and φ(key), which linear attention divides by its sum over the keys.

    With the normalizer `Sum`, which is its default, and with `Identity`, a call is computed as φ(Q) (φ(K)ᵀ V), in time
    linear in the numbers of queries and keys. `Dot` does the same for queries and keys that are features already.

    Args:
        function: φ, "elu" for elu(x) + 1, "relu" for max(0, x), or a function that maps an array `(*batch, n, width)`
            to features `(*batch, n, features)`, called as `function(x, *parameters)`. `Sum` requires that no logit is
            negative.
        parameters: learned arrays of the function. Arrays that the function closes over get no gradient.
        width: number of features that the function returns; None: the width of the queries.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, width)` -> logits `(*batch, q, k)`

    Raises:
        OptionError: `function` is neither a known name nor callable, or `width` is not a positive integer.
        ShapeError: the function returns another number of features than `width`.

    Example:
        >>> import numpy as np
        >>> Features("relu")(np.array([[2.0, -1.0]]), np.array([[3.0, 1.0], [-1.0, 5.0]]))
        array([[6., 0.]])
    """

    function: str | Callable[..., Array] = "elu"
    parameters: tuple[Array, ...] = ()
    width: int | None = None
    default_normalizer = "sum"

    def validate(self) -> None:
        known = isinstance(self.function, str) and self.function in _MAPS
        if not (known or callable(self.function)):
            raise OptionError(
                f"function of Features must be 'elu', 'relu' or a function, got {self.function!r}. Pass a function of "
                "(x, *parameters) that returns features."
            )
        if self.width is not None:
            require_positive_integer("Features", "width", self.width)
        if not isinstance(self.parameters, tuple):
            object.__setattr__(self, "parameters", tuple(self.parameters))

    @property
    def form(self) -> Form:  # type: ignore[override]
        """An inner product; that no feature is negative is known of the named functions alone."""
        return Product(nonnegative=isinstance(self.function, str), saved=SavedArrays(copies=3.0))

    def lifted_width(self, query_width: int, key_width: int) -> int:
        return self.width or query_width

    def lift_description(self) -> str:
        name = self.function if isinstance(self.function, str) else getattr(self.function, "__name__", "a function")
        return f"φ = {name}"

    def lift(self, query: QueryArray, key: KeyArray, tile: Tile) -> LiftedArrays:
        return self._features(query), self._features(key)

    def _features(self, x: Num[Array, "*batch n width"]) -> Shaped[Array, "*batch n features"]:
        if isinstance(self.function, str):
            return _MAPS[self.function](x)
        features = self.function(x, *self.parameters)
        expected_shape = (*x.shape[:-1], self.width or x.shape[-1])
        if tuple(getattr(features, "shape", ())) != expected_shape:
            raise ShapeError(
                f"function of Features must return an array of shape {expected_shape}, got "
                f"{tuple(getattr(features, 'shape', ())) or type(features).__name__}. Pass the number of features as "
                "width."
            )
        return features
