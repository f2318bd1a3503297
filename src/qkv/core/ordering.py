"""The largest entries of each row, in order. Ties go to the lowest index; NaN counts as largest.

No library sorts whole rows for the few that are wanted, unless equal entries leave it open which those are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.core.arrays import Array, library, namespace, statically_known_true, stop_gradient
from qkv.core.tensorflow_arrays import top_indices, top_values

__all__ = ["finite_top_k_indices", "kth_largest", "top_k_mask", "top_k_indices"]


def top_k_indices(x: Array, count: int) -> Array:
    """Indices of the `count` largest entries along the last axis (fewer where it is shorter), largest first.

    Example:
        >>> top_k_indices(np.array([[1.0, 3.0, 3.0, 2.0, np.nan]]), 3)
        array([[4, 1, 2]])
    """
    xp = namespace(x)
    x = stop_gradient(x)
    x = _not_nan(x)
    name = library(x)
    if name == "numpy" and 8 * count < x.shape[-1]:
        return _partitioned(np.asarray(x), count)
    if name == "torch" and count < x.shape[-1]:
        return _by_topk(x, count)
    if name == "jax" and count < x.shape[-1]:
        import jax

        # Which takes the lower index of equal entries, but holds −0 for less than 0.
        return jax.lax.top_k(xp.where(x == 0, xp.zeros_like(x), x), count)[1]
    if name == "tensorflow" and count < x.shape[-1]:
        return top_indices(x, count)
    return xp.argsort(x, axis=-1, descending=True, stable=True)[..., :count]


def _not_nan(x: Array) -> Array:
    xp = namespace(x)
    return xp.where(xp.isnan(x), xp.zeros_like(x) + xp.inf, x)


def finite_top_k_indices(x: Array, count: int) -> Array:
    """As `top_k_indices`, but of entries that are −inf any may come, in any order: long rows are not sorted.

    Example:
        >>> finite_top_k_indices(np.array([[1.0, 3.0, 3.0, 2.0, np.nan]]), 3)
        array([[4, 1, 2]])
    """
    xp = namespace(x)
    if library(x) != "torch" or 4 * count >= x.shape[-1]:
        return top_k_indices(x, count)
    x = xp.where(xp.isnan(x), xp.zeros_like(x) + xp.inf, x)
    best, index = x.topk(count, dim=-1)
    last = best[..., -1:]
    # More entries equal the last one than were taken: perhaps not those of the lowest index.
    unsure = ((x == last).sum(dim=-1) > (best == last).sum(dim=-1)) & (last[..., 0] != -xp.inf)
    try:
        some = bool(unsure.any())
    except Exception:  # tracers do not know
        return top_k_indices(x, count)
    if some:
        index[unsure] = top_k_indices(x[unsure], count)
    index = index.sort(dim=-1).values
    by_rank = xp.argsort(xp.take_along_axis(x, index, axis=-1), axis=-1, descending=True, stable=True)
    return xp.take_along_axis(index, by_rank, axis=-1)


def top_k_mask(x: Array, count: int) -> Array:
    """Which entries are among the `count` largest of their row, as booleans.

    Example:
        >>> top_k_mask(np.array([[1.0, 3.0, 3.0, 2.0]]), 1)
        array([[False,  True, False, False]])
    """
    if count >= x.shape[-1]:
        return namespace(x).ones_like(x, dtype=namespace(x).bool)
    order, name = top_k_indices(x, count), library(x)
    if name == "torch":
        import torch

        return torch.zeros_like(x, dtype=torch.bool).scatter(-1, order, True)
    if name == "tensorflow":
        # Where each entry comes in the order, which is the inverse of the order.
        tile = namespace(x).argsort(namespace(x).argsort(_not_nan(x), descending=True))
        return tile < count
    if name == "jax":
        import jax.numpy as jnp

        return jnp.put_along_axis(jnp.zeros(x.shape, dtype=bool), order, True, axis=-1, inplace=False)
    mask = np.zeros(x.shape, dtype=bool)
    np.put_along_axis(mask, order, True, axis=-1)
    return mask


def kth_largest(x: Array, count: int) -> Array:
    """The `count`-th largest entry of each row, which must have as many, `(..., 1)`; no NaN among them.

    Example:
        >>> kth_largest(np.array([[1.0, 3.0, 3.0, 2.0]]), 3)
        array([[2.]])
    """
    name = library(x)
    at = x.shape[-1] - count
    if name == "torch":
        if x.device.type != "cpu" or x.requires_grad or x.itemsize < 4:
            return x.topk(count, dim=-1, sorted=False).values.amin(dim=-1, keepdim=True)
        # NumPy's partition runs on vectors: a tenth of the time.
        return x.new_tensor(np.partition(x.numpy(), at, axis=-1)[..., at : at + 1])
    if name == "tensorflow":
        return top_values(x, count)[..., -1:]
    if name == "jax":
        import jax

        return jax.lax.top_k(x, count)[0][..., -1:]
    return np.partition(x, at, axis=-1)[..., at : at + 1]


def _by_topk(x: Any, count: int) -> Any:
    """By `torch.topk`, which does not say which of equal entries it takes, nor in which order."""
    import torch

    # One more than wanted shows whether the last one was a choice among equals.
    values, order = x.topk(count + 1, dim=-1)
    tied = (values[..., 1:] == values[..., :-1]).any(dim=-1)
    if statically_known_true(~tied.any()):
        return order[..., :count]
    if not statically_known_true(tied.any()):  # a tracer, whose ties cannot be seen
        return torch.argsort(x, dim=-1, descending=True, stable=True)[..., :count]
    order = order[..., :count]
    order[tied] = _among_equals(x[tied], values[tied][:, count - 1 : count], count)
    return order


def _among_equals(x: Any, last: Any, count: int) -> Any:
    """Of rows `(n, k)` whose `count`-th largest is `last`: all above it, and the first that are equal."""
    above, equal = x > last, x == last
    room = count - above.sum(dim=-1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(dim=-1) <= room))
    index = chosen.nonzero()[:, 1].reshape(len(x), count)
    by_rank = x.gather(-1, index).argsort(dim=-1, descending=True, stable=True)
    return index.gather(-1, by_rank)


def _partitioned(x: np.ndarray, count: int) -> np.ndarray:
    """The same without sorting whole rows: a table of a million keys is asked for its ten best."""
    rows = x.reshape(-1, x.shape[-1])
    order = np.empty((len(rows), count), dtype=np.intp)
    for row, out in zip(rows, order, strict=True):
        last = np.partition(row, len(row) - count)[len(row) - count]
        above = np.flatnonzero(row > last)
        equal = np.flatnonzero(row == last)[: count - len(above)]
        chosen = np.sort(np.concatenate([above, equal]))
        out[:] = chosen[np.argsort(-row[chosen], kind="stable")]
    return order.reshape(*x.shape[:-1], count)
