"""Gradients of a row block or tile: cut the call's arrays, differentiate, and add to sums of the same shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from qkv.core.equation import TorchCall, side
from qkv.core.typing import Array, Tensor
from qkv.kernels.runtime.tile_loop import Limits

__all__ = ["accumulate", "block_tensors", "leaves_of"]


def block_tensors(call: TorchCall, rows: Limits, cols: Limits) -> list[Tensor]:
    """Return views of query, key, value and the arrays of score and normalizer, cut to some rows and columns."""
    score = call.score.slice(slice(*rows), slice(*cols))
    arrays = cast("tuple[Tensor, ...]", (*score.arrays(), *call.normalizer.arrays()))
    return [side(call.query, rows), side(call.key, cols), side(call.value, cols), *arrays]


def leaves_of(arrays: Sequence[Array], wanted: Sequence[bool] | None = None) -> list[Tensor]:
    """Return detached tensors; floating-point ones (where wanted) require a gradient."""
    tensors = cast("Sequence[Tensor]", arrays)
    flags = [True] * len(tensors) if wanted is None else wanted
    return [x.detach().requires_grad_(x.is_floating_point() and flag) for x, flag in zip(tensors, flags, strict=True)]


def accumulate(
    outputs: Sequence[Tensor], output_gradients: Sequence[Tensor], leaves: Sequence[Tensor], sums: Sequence[Tensor]
) -> None:
    """Add the gradient of each leaf that requires one to its sum, in place."""
    import torch

    pairs = [(x, g) for x, g in zip(outputs, output_gradients, strict=True) if x.requires_grad]
    trained = [(x, total) for x, total in zip(leaves, sums, strict=True) if x.requires_grad]
    if not (pairs and trained):
        return
    found = torch.autograd.grad(
        [x for x, _ in pairs], [x for x, _ in trained], [g for _, g in pairs], allow_unused=True
    )
    for gradient, (_, total) in zip(found, trained, strict=True):
        if gradient is not None:
            total.add_(gradient)
