"""Choice of the dtype of matrix products in calls of half precision.

Products whose result is rounded to half precision anyway (the output and the gradients of query, key and value), and
the product of the output's gradient with the values, are computed in bfloat16 where the processor does that faster:
about twice as fast on AMD processors with AVX-512 for bfloat16. Logits and weights stay in single precision. The
errors of outputs and gradients were .1 to 1.3 times those of PyTorch's operators on bfloat16.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from qkv.core.axes import Axes
from qkv.core.equation import TorchCall

if TYPE_CHECKING:
    import torch

__all__ = ["half_of", "suits_half"]

_MIN_WIDTH = 32
"""Width of queries, keys and values from which products in bfloat16 take less time, with conversions."""
_MIN_PRODUCTS = 1 << 21
"""Number of pairs of a batch element times width from which they do."""


def half_of(call: TorchCall) -> torch.dtype | None:
    """Return the dtype of the output if products in it take less time than in single precision, otherwise None."""
    import torch

    if call.out_dtype != torch.bfloat16 or not call.value.is_cpu:
        return None
    axes = Axes.of(call.query.shape, call.key.shape, call.value.shape)
    return torch.bfloat16 if suits_half(axes) and _bfloat16_is_faster() else None


def suits_half(axes: Axes) -> bool:
    """Return whether the products of a call are large enough to gain from half precision."""
    width = min(axes.query_width, axes.key_width, axes.value_width)
    return width >= _MIN_WIDTH and axes.q * axes.k * width >= _MIN_PRODUCTS


@cache
def _bfloat16_is_faster() -> bool:
    """Return whether the processor has instructions for bfloat16; a measurement would let results depend on load."""
    import torch

    supported = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return supported is not None and bool(supported())
