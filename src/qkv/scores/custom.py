"""Custom: any function of yours as a score.

logit(q, k) = function(query, key, *parameters)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qkv.core.arrays import Array
from qkv.errors import OptionError
from qkv.scores.base import GeneralScore

__all__ = ["Custom"]


@dataclass(frozen=True, eq=False)
class Custom(GeneralScore):
    """A function from a tile of queries and a tile of keys to their logits.

    It gets masks, memory-linear kernels, gradients and EXPLAIN like every other score. Learned arrays must be
    in `parameters`; what the function closes over gets no gradient, and where it wants one that is an error.

    Args:
        function: `(query (*batch, q, query_width), key (*batch, k, key_width), *parameters)` ->
            `(*batch, q, k)`. It is called with tiles, so each logit must depend on its own query and key
            alone.
        parameters: learned arrays, handed to the function after the key.
        elements: numbers in memory at once for each logit, from which tile sizes follow; None: the wider
            width.
        accepts: "numbers", "text" or "any".

    Raises:
        OptionError: the function cannot be called.
        GradientError: at the call, where the function closes over something that requires a gradient.

    Example:
        >>> import numpy as np
        >>> near = Custom(lambda query, key: -abs(query - key[..., None, :, 0]))
        >>> near(np.array([[1.0]]), np.array([[1.5], [0.0]]))
        array([[-0.5, -1. ]])
    """

    function: Callable[..., Any]
    parameters: tuple[Array, ...] = ()
    elements: int | None = None
    accepts: str = "numbers"

    def validate(self) -> None:
        """Something that can be called."""
        if not callable(self.function):
            raise OptionError(f"Custom was given {self.function!r}, which cannot be called. Give a function.")
        if not isinstance(self.parameters, tuple):
            object.__setattr__(self, "parameters", tuple(self.parameters))

    def check_widths(self, query_width: int, key_width: int) -> None:
        """Any widths: the function decides."""

    def elements_per_logit(self, query_width: int, key_width: int) -> int:
        """Fact: as said, or the wider width."""
        return self.elements or max(query_width, key_width)

    def compare(self, query: Array, key: Array) -> Array:
        """What the function gives."""
        return self.function(query, key, *self.parameters)
