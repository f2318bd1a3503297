"""Forward product form of long sequences in PyTorch, one batch element at a time.

The queries, keys and values of one element stay in the processor's cache between the checks and the products.
"""

from __future__ import annotations

import itertools

from qkv.core.typing import Float, Tensor

__all__ = ["product_of_elements"]

_LEAST = 2**16
"""Smallest number of elements of the queries of a batch element that is computed alone."""


def product_of_elements(
    left: Float[Tensor, "*_ q features"],
    right: Float[Tensor, "*_ k features"],
    value: Float[Tensor, "*_ k value_width"],
    divides: bool,
    nonnegative: bool,
) -> tuple[Float[Tensor, "*_ q value_width"] | None, str] | None:
    """Return the output of a call without a gradient and without a mask, or None if its elements are short.

    Args:
        left: features of the queries.
        right: features of the keys.
        value: values.
        divides: whether to divide by the sum of the logits.
        nonnegative: whether the features must be checked for negative numbers.

    Returns:
        The output, or None and the reason why the data has no product form. None if batch axes are broadcast, or if
        elements are so short that the products of the whole batch are faster.
    """
    import torch

    batch = left.shape[:-2]
    if right.shape[:-2] != batch or value.shape[:-2] != batch:
        return None
    if torch.is_grad_enabled() and (left.requires_grad or right.requires_grad or value.requires_grad):
        return None
    if min(left.shape[-2], right.shape[-2]) * left.shape[-1] < _LEAST:
        return None
    output = value.new_empty((*batch, left.shape[-2], value.shape[-1]))
    with torch.no_grad():
        for index in itertools.product(*map(range, batch)):
            q, k, out = left[index], right[index], output[index]
            if nonnegative and not bool((k.min() >= 0) & (q.min() >= 0)):
                return None, "a feature is negative or NaN"
            state = k.mT @ value[index]
            torch.mm(q, state, out=out)
            checked = out.sum()
            if divides:
                total = torch.mv(q, k.sum(0))
                checked = state.sum() + total.sum()
                out.mul_(total.reciprocal().masked_fill_(total == 0, 0.0).unsqueeze(-1))
            if not bool(checked.isfinite()):
                return None, "not all finite"
    return output, ""
