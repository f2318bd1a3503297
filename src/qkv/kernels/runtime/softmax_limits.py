"""Why a kernel whose programs compute softmax alone cannot compute a normalizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkv.normalizers.base import Normalizer


def softmax_limits(normalizer: Normalizer, number: bool = False) -> Iterator[str]:
    """Yield the reasons why a kernel for softmax cannot compute a normalizer.

    Args:
        number: whether its temperature must be a number, because the kernel does not compute the gradient of an array.
    """
    temperature = normalizer.temperature
    if number and not isinstance(temperature, (int, float)):
        temperature = None
    if not (normalizer.log_sum_exp and normalizer.online) or temperature is None:
        yield f"it supports only softmax{' with a number as temperature' if number else ''}, not {normalizer}"
    if not normalizer.shift_invariant:
        yield f"it does not support the sink of {normalizer}"
