"""The normalizer `Custom`, which calls a function of the user with whole rows of logits.

w = function(l, *parameters)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qkv.core.arrays import dtype_name, is_array, library, namespace, where
from qkv.core.function_part import FunctionPart, pad_axes
from qkv.core.tile import Tile
from qkv.core.typing import Array, PairArray, Shaped
from qkv.errors import KindError, ShapeError
from qkv.normalizers.base import Normalizer, excluded

__all__ = ["Custom"]


@dataclass(frozen=True, eq=False)
class Custom(FunctionPart, Normalizer):
    """Normalizer that computes the weights of each row by a function of the user.

    Kernels call the function with whole rows, in blocks of queries, so that memory is linear in the number of keys.
    Masks, gradients, readouts and EXPLAIN work as with any other normalizer.

    Args:
        function: called as `function(logits, *parameters)` with logits `(*batch, q, k)`, in which −inf excludes a key;
            returns weights of the same shape. The weights of a row must depend only on the logits of the row, and not
            on the number of excluded keys. Excluded keys get weight 0 whatever the function returns, and rows that
            exclude every key are not passed as such.
        parameters: learned arrays, passed to the function after the logits. Their leading axes may be the last batch
            axes of the call, as in `scores.Custom`. Arrays that the function closes over get no gradient.
        batch_axes: number of leading axes of each parameter that are batch axes; None: found by a trial.

    Raises:
        OptionError: `function` is not callable, or `batch_axes` does not match `parameters`.
        RefusedError: raised by the call if a trial on drawn arrays shows that a weight depends on other rows or batch
            elements, or in a call with a mask on the number of excluded keys.
        KindError: raised by the call if the function does not return an array of the library of the logits.
        ShapeError: raised by the call if the function returns an array of another shape.

    Example:
        >>> import numpy as np, qkv
        >>> relu = Custom(lambda logits: np.maximum(logits, 0.0) / (1 + np.isfinite(logits).sum(-1, keepdims=True)))
        >>> relu.weights(np.array([[2.0, -1.0, 1.0]]))
        array([[0.5 , 0.  , 0.25]])
    """

    function: Callable[..., Array]
    parameters: tuple[Array, ...] = ()
    batch_axes: tuple[int, ...] | None = None
    online = False
    sums_to_one = False

    def validate(self) -> None:
        self.check_function("Pass a function of (logits, *parameters) that returns weights.")

    def weights(self, logits: PairArray, tile: Tile | None = None) -> PairArray:
        if logits.shape[-1] == 0:
            return logits
        if self.ranks and logits.ndim < self.ranks[0]:
            weights = self.weights(pad_axes(logits, self.ranks[0]), tile)
            return namespace(weights).reshape(weights, logits.shape)
        out = excluded(logits)
        # A row without keys would become NaN in most functions, and its gradient too.
        empty = namespace(logits).all(out, axis=-1, keepdims=True)
        weights = self._checked(self.function(where(empty, 0.0, logits), *self.parameters), logits)
        return where(out, 0.0, weights)

    def _checked(self, weights: object, logits: PairArray) -> Shaped[Array, "*_"]:
        if not is_array(weights) or library(weights) != library(logits):
            given = f"a {library(weights)} array" if is_array(weights) else f"type {type(weights).__name__}"
            raise KindError(
                f"the result of the function of Custom must be a {library(logits)} array, got {given}. Compute the "
                "weights with functions of the library of the call."
            )
        if tuple(weights.shape) != tuple(logits.shape):
            raise ShapeError(
                f"the result of the function of Custom must have the shape {tuple(logits.shape)} of the logits, got "
                f"{tuple(weights.shape)} with dtype {dtype_name(weights)}. Return one weight per logit."
            )
        return weights
