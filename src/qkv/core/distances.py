"""Euclidean distances of all pairs of two sets of vectors.

    d_ij = ‖q_i − k_j‖

The differences are squared and summed, because ‖q‖² − 2<q,k> + ‖k‖² would lose half the digits where q is near k.
PyTorch's `cdist` does this without an array of the features of all pairs; other libraries need that array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from qkv.core.arrays import library, namespace, where
from qkv.core.autograd_function import autograd_function
from qkv.core.tracing import tracing_mode
from qkv.core.typing import Array, Float, Num, Tensor

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx

    class _Context(FunctionCtx):
        saved_tensors: tuple[Tensor, ...]


__all__ = ["distances"]


def distances(query: Num[Array, "*#batch q width"], key: Num[Array, "*#batch k width"]) -> Float[Array, "*batch q k"]:
    """Return the distance ‖q − k‖ of each pair of a query q and a key k; its gradient is 0 where the distance is 0.

    Args:
        query: queries.
        key: keys.
    """
    if library(query, key) == "torch" and not tracing_mode(query, key):
        return _torch_distances(cast("Tensor", query), cast("Tensor", key))
    return _all_differences(query, key)


def _all_differences(
    query: Num[Array, "*#batch q width"], key: Num[Array, "*#batch k width"]
) -> Float[Array, "*batch q k"]:
    xp = namespace(query)
    difference = query[..., :, None, :] - key[..., None, :, :]
    square = xp.sum(difference * difference, axis=-1)
    zero = square == 0
    return where(zero, 0.0, xp.sqrt(where(zero, 1.0, square)))


def _torch_distances(
    query: Num[Tensor, "*#batch q width"], key: Num[Tensor, "*#batch k width"]
) -> Float[Tensor, "*batch q k"]:
    import torch

    if not (query.dtype == key.dtype and query.dtype in (torch.float32, torch.float64)):
        return cast("Tensor", _all_differences(query, key))
    batch = np.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    sides = [x.expand(*batch, *x.shape[-2:]).contiguous() for x in (query, key)]
    result: Tensor = autograd_function(_forward, _backward)(*sides)
    return result


def _forward(
    ctx: _Context, query: Float[Tensor, "*batch q width"], key: Float[Tensor, "*batch k width"]
) -> Float[Tensor, "*batch q k"]:
    import torch

    result = torch.cdist(query, key, compute_mode="donot_use_mm_for_euclid_dist")
    ctx.save_for_backward(query, key, result)
    return result


def _backward(ctx: _Context, gradient: Float[Tensor, "*batch q k"]) -> tuple[Tensor | None, ...]:
    import torch

    query, key, result = ctx.saved_tensors
    if torch.is_grad_enabled():  # for second derivatives, which cdist lacks
        sides = [x.view_as(x) for x in (query, key)]
        again = cast("Tensor", _all_differences(*sides))
        return torch.autograd.grad(again, sides, gradient, create_graph=True)
    gradient, backward = gradient.contiguous(), torch.ops.aten._cdist_backward
    transposed = gradient.mT.contiguous(), key, query, 2.0, result.mT.contiguous()
    return backward(gradient, query, key, 2.0, result), backward(*transposed)
