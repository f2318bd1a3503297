"""Euclidean distances of all pairs of two sets of vectors.

    d_ij = ‖q_i − k_j‖

The differences are squared and summed, because ‖q‖² − 2<q,k> + ‖k‖² would lose half the digits where q is near k.
PyTorch's `cdist` does this without an array of the features of all pairs; other libraries need that array.

For wide vectors in PyTorch, matrix products compute the distances and their gradients several times faster, after the
mean key is subtracted. Pairs with d² < (‖q‖² + ‖k‖²) / 64 are then computed again from their differences, so that the
relative error of a distance is below 64 times that of a rounding; if there are many of them, `cdist` computes all.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import numpy as np

from qkv.core.arrays import library, namespace, stop_gradient, where
from qkv.core.autograd_function import autograd_function
from qkv.core.tracing import tracing_mode
from qkv.core.typing import Array, Float, Int, Num, Tensor

if TYPE_CHECKING:
    from qkv.core.autograd_function import Context


_MIN_WIDTH = 12
"""Width from which matrix products are faster than differences."""
_MIN_ELEMENTS = 2**15
"""Number of pairs times width from which they are faster."""
_NEAR = 1 / 64
"""Largest d² / (‖q‖² + ‖k‖²) of pairs that are computed from differences."""
_MAX_NEAR_SHARE = 1 / 32
"""Share of such pairs above which `cdist` computes all pairs."""
_RANGE = (1e-30, 1e30)
"""Range of ‖q‖² + ‖k‖² in which no square overflows or underflows."""


def distances(query: Num[Array, "*#batch q width"], key: Num[Array, "*#batch k width"]) -> Float[Array, "*batch q k"]:
    """Return the distance ‖q − k‖ of each pair of a query q and a key k; its gradient is 0 where the distance is 0."""
    if library(query, key) == "torch" and not tracing_mode(query, key) and cast("Tensor", query).device.type != "meta":
        return _torch_distances(cast("Tensor", query), cast("Tensor", key))
    return _all_differences(query, key)


def range_power(bandwidth: float) -> float:
    """Return a power of 2 by which vectors and a bandwidth are multiplied so that float32 holds squares, usually 1."""
    exponent = math.frexp(bandwidth)[1]
    return 1.0 if abs(exponent) <= 30 else 2.0 ** -max(-120, min(exponent, 120))


def squares_as_products(
    x: Num[Array, "*batch_of_x q width"], y: Num[Array, "*batch_of_y k width"]
) -> tuple[Num[Array, "*batch_of_x q lifted"], Num[Array, "*batch_of_y k lifted"]]:
    """Return the rows (x, 1, −‖x‖²/2) and (y, −‖y‖²/2, 1), whose inner products are −‖x − y‖²/2.

    The inner products of a row x that is not finite are NaN.
    """
    if library(x, y) == "torch" and not tracing_mode(x, y):
        return cast("tuple[Tensor, Tensor]", autograd_function(_lift, _lift_gradients)(x, y))
    return _with_squares(x, y)


def _with_squares(x: Array, y: Array) -> tuple[Array, Array]:
    concat, squares = namespace(x).concat, (half_square(x), half_square(y))
    ones = one_or_nan(x), namespace(y).ones_like(squares[1])
    return concat([x, ones[0], squares[0]], axis=-1), concat([y, squares[1], ones[1]], axis=-1)


def half_square(x: Num[Array, "*batch n width"]) -> Num[Array, "*batch n 1"]:
    """Return −‖x‖²/2 for each row x."""
    return -0.5 * namespace(x).sum(x * x, axis=-1, keepdims=True)


def one_or_nan(x: Num[Array, "*batch n width"]) -> Num[Array, "*batch n 1"]:
    """Return 1 for each row, or NaN for a row that is not finite."""
    return namespace(x).sum(0 * stop_gradient(x), axis=-1, keepdims=True) + 1


def _lift(
    ctx: Context, x: Float[Tensor, "*_ q width"], y: Float[Tensor, "*_ k width"]
) -> tuple[Float[Tensor, "*_ q lifted"], Float[Tensor, "*_ k lifted"]]:
    ctx.save_for_backward(x, y)
    return cast("tuple[Tensor, Tensor]", _with_squares(x, y))


def _lift_gradients(
    ctx: Context, d_left: Float[Tensor, "*_ q lifted"], d_right: Float[Tensor, "*_ k lifted"]
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and y in half the operators that autograd would record, which is half the time."""
    import torch

    x, y = ctx.saved_tensors
    width = x.shape[-1]
    d_x = torch.addcmul(d_left[..., :width], x, d_left[..., width + 1 :], value=-1)
    return d_x, torch.addcmul(d_right[..., :width], y, d_right[..., width : width + 1], value=-1)


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
    count = math.prod(batch)
    sides = [x.expand(*batch, *x.shape[-2:]).reshape(count, *x.shape[-2:]) for x in (query, key)]
    result: Tensor = autograd_function(_forward, _backward)(*sides)
    return result.view(*batch, *result.shape[-2:])


def pair_distances(
    query: Float[Tensor, "batch q width"], key: Float[Tensor, "batch k width"]
) -> tuple[Float[Tensor, "batch q k"], Int[Tensor, "near 3"] | None]:
    """Return the distances of all pairs, without recording a graph, and an argument for `distance_gradients`.

    The argument is None if `cdist` computed them, otherwise the indices of the pairs computed from differences.

    Args:
        query: queries, of which the dtype is float32 or float64.
        key: keys of the same dtype.
    """
    import torch

    found = _by_products(query, key)
    if found is not None:
        return found
    # The operator behind `torch.cdist(compute_mode="donot_use_mm_for_euclid_dist")`.
    return torch.ops.aten._cdist_forward.default(query, key, 2.0, 2), None


def distance_gradients(
    query: Float[Tensor, "batch q width"],
    key: Float[Tensor, "batch k width"],
    found: Float[Tensor, "batch q k"],
    near: Int[Tensor, "near 3"] | None,
    gradient: Float[Tensor, "batch q k"],
) -> tuple[Float[Tensor, "batch q width"], Float[Tensor, "batch k width"]]:
    """Return the gradients of query and key; the gradient of a distance of 0 is 0.

    Args:
        found: their distances.
        near: as `pair_distances` returned it.
        gradient: gradient of the distances.
    """
    import torch

    if near is not None:
        return _gradients_by_products(query, key, found, near, gradient)
    backward = torch.ops.aten._cdist_backward.default  # it requires contiguous tensors
    query, key, gradient = query.contiguous(), key.contiguous(), gradient.contiguous()
    transposed = gradient.mT.contiguous(), key, query, 2.0, found.mT.contiguous()
    return backward(gradient, query, key, 2.0, found), backward(*transposed)


def _forward(
    ctx: Context, query: Float[Tensor, "batch q width"], key: Float[Tensor, "batch k width"]
) -> Float[Tensor, "batch q k"]:
    found, near = pair_distances(query, key)
    ctx.save_for_backward(query, key, found, near)
    return found


def _by_products(
    query: Float[Tensor, "batch q width"], key: Float[Tensor, "batch k width"]
) -> tuple[Float[Tensor, "batch q k"], Int[Tensor, "near 3"]] | None:
    """Return the distances and the indices of the pairs that are near, or None if the products are not suited."""
    import torch

    (batch, q, width), k = query.shape, key.shape[1]
    if width < _MIN_WIDTH or batch * q * k * width < max(1, _MIN_ELEMENTS):
        return None
    center = key.mean(dim=1, keepdim=True)
    left, right = query - center, key - center
    query_length, key_length = (torch.linalg.vector_norm(x, dim=-1).square_() for x in (left, right))
    square = torch.baddbmm(key_length[:, None], left, right.mT, alpha=-2).add_(query_length[:, :, None])
    ranges = [*torch.aminmax(query_length), *torch.aminmax(key_length), square.amin()]
    low_query, high_query, low_key, high_key, smallest = torch.stack(ranges).tolist()
    if not (low_query + low_key > _RANGE[0] and high_query + high_key < _RANGE[1]):  # also if a number is NaN
        return None
    near = query.new_empty((0, 3), dtype=torch.int64)
    # A bound for all pairs, because the comparison of each takes three more passes over them.
    if smallest <= _NEAR * (high_query + high_key):
        sums = query_length[:, :, None] + key_length[:, None]
        close = square <= sums.mul_(_NEAR)  # also 0 and 0
        if int(close.sum()) > _MAX_NEAR_SHARE * close.numel():
            return None
        near = close.nonzero()
        b, i, j = near.unbind(1)
        square[b, i, j] = (query[b, i] - key[b, j]).square_().sum(dim=-1)
    return square.sqrt_(), near


def _backward(ctx: Context, gradient: Float[Tensor, "batch q k"]) -> tuple[Tensor | None, ...]:
    import torch

    query, key, found, near = ctx.saved_tensors
    with torch.autocast(query.device.type, enabled=False):
        if torch.is_grad_enabled():  # for second derivatives, which cdist lacks
            sides = [x.view_as(x) for x in (query, key)]
            again = cast("Tensor", _all_differences(*sides))
            differentiated = [x for x in sides if x.requires_grad]
            gradients = iter(torch.autograd.grad(again, differentiated, gradient, create_graph=True))
            return tuple([next(gradients) if x.requires_grad else None for x in sides])
        return distance_gradients(query, key, found, near, gradient)


def _gradients_by_products(
    query: Float[Tensor, "batch q width"],
    key: Float[Tensor, "batch k width"],
    result: Float[Tensor, "batch q k"],
    near: Int[Tensor, "near 3"],
    gradient: Float[Tensor, "batch q k"],
) -> tuple[Float[Tensor, "batch q width"], Float[Tensor, "batch k width"]]:
    """Return Σ_j w_ij (q_i − k_j) and Σ_i w_ij (k_j − q_i) with w = gradient / distance."""
    import torch

    center = key.mean(dim=1, keepdim=True)
    left, right = query - center, key - center
    weights = gradient / result
    b, i, j = near.unbind(1)
    if len(near):
        distance = result[b, i, j]
        factor = torch.where(distance == 0, 0.0, gradient[b, i, j] / distance)
        weights[b, i, j] = 0
    d_query = torch.baddbmm(weights.sum(dim=2)[..., None] * left, weights, right, alpha=-1)
    d_key = torch.baddbmm(weights.sum(dim=1)[..., None] * right, weights.mT, left, alpha=-1)
    if len(near):
        part = factor[:, None] * (query[b, i] - key[b, j])
        d_query.index_put_((b, i), part, accumulate=True)
        d_key.index_put_((b, j), -part, accumulate=True)
    return d_query, d_key
