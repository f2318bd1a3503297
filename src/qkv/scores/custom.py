"""Custom: a score that calls a function written by the user.

logit(q, k) = function(query, key, *parameters)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qkv.core.checks import takes_arguments
from qkv.core.function_part import FunctionPart, pad_axes
from qkv.core.typing import Array, Shaped
from qkv.errors import KindError
from qkv.scores.base import GeneralScore

__all__ = ["Custom"]


@dataclass(frozen=True, eq=False)
class Custom(FunctionPart, GeneralScore):
    """Score that a user's function computes from a tile of queries and a tile of keys.

    Masks, kernels with memory linear in the lengths, gradients and EXPLAIN work as with any other score.

    Args:
        function: called as `function(query, key, *parameters)` with tiles `(*batch, q, query_width)` and
            `(*batch, k, key_width)`, returns `(*batch, q, k)`. Each logit must depend only on its own query and
            key.
        parameters: learned arrays, passed to the function after the key. Their leading axes may be the last batch
            axes of the call: of a parameter `(heads, 1, 1)` or `(batch, heads)`, the function gets the elements of its
            batch elements, with the same number of axes. Arrays that the function closes over get no gradient and are
            not divided.
        elements: number of array elements in memory at once per logit, which determines the size of tiles;
            None: found by a trial on a few made-up rows in PyTorch, once for each function and shape, and otherwise the
            larger of the widths of query and key.
        accepts: the kind of queries and keys, "numbers", "text" or "any".
        batch_axes: number of leading axes of each parameter that are batch axes of the call; None: found by a trial of
            the function on drawn arrays.

    Raises:
        OptionError: `function` is not callable, or `batch_axes` does not match `parameters`.
        RefusedError: raised by the call if a trial on drawn arrays shows that a logit depends on other queries, keys or
            batch elements, or on their number.
        GradientError: raised by the call if `function` closes over an array that requires a gradient.
        KindError: raised by the call if `function` takes other arguments, or does not return an array of real numbers
            of the library of the query.
        ShapeError: raised by the call if the result of `function` does not broadcast to `(*batch, q, k)`.

    Example:
        >>> import numpy as np
        >>> near = Custom(lambda query, key: -abs(query - key[..., None, :, 0]))
        >>> near(np.array([[1.0]]), np.array([[1.5], [0.0]]))
        array([[-0.5, -1. ]])
    """

    function: Callable[..., Array]
    parameters: tuple[Array, ...] = ()
    elements: int | None = None
    accepts: str = "numbers"
    batch_axes: tuple[int, ...] | None = None

    def validate(self) -> None:
        self.check_function("Pass a function of (query, key, *parameters) that returns logits.")

    @property
    def accepts_records(self) -> bool:  # type: ignore[override]
        return self.accepts != "numbers"

    def check_widths(self, query_width: int, key_width: int) -> None:
        """Accept any widths of query and key, because only `function` can check them."""

    def elements_per_logit(self, query_width: int, key_width: int) -> int:
        return self.elements or max(query_width, key_width)

    def compare(self, query: Shaped[Array, "*_"], key: Shaped[Array, "*_"]) -> Shaped[Array, "*#batch #q #k"]:
        """Return the logits `(*batch, q, k)` that `function` computes from query, key and `parameters`.

        Raises:
            KindError: `function` takes other arguments.
        """
        if self.ranks:
            query, key = pad_axes(query, self.ranks[0]), pad_axes(key, self.ranks[1])
        try:
            return self.function(query, key, *self.parameters)
        except TypeError as error:
            if takes_arguments(self.function, query, key, *self.parameters):
                raise
            expected = "query and key" if not self.parameters else f"query, key and {len(self.parameters)} parameters"
            raise KindError(
                f"function of Custom must take {expected} as positional arguments, got an error: {error}. Change its "
                "arguments, or pass the arrays that it needs as parameters."
            ) from None
