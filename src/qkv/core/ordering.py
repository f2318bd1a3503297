"""Functions that find equal rows, and the k largest elements of each row; ties go to the lowest index, NaN is largest.

Whole rows are sorted only if the top-k function of the library does not specify which of several equal entries it
returns.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable

import numpy as np

from qkv.core.arrays import (
    cast,
    choose,
    is_ndarray,
    is_tensor,
    library,
    namespace,
    statically_known_true,
    stop_gradient,
    where,
)
from qkv.core.tracing import tracing_mode
from qkv.core.typing import Array, Bool, DType, Float, Int, Num, Shaped, Tensor

_SORTED_ROW = 512
"""Rows that NumPy sorts in at most the time in which it selects elements."""
_LOW = 0xFFFFFFFF
"""The bits of the key in an integer of `pack_ranks`."""
_LONG_ROW = 4096
"""Length from which the maxima of groups of a NumPy row bound its largest elements."""
_GROUP_SIZE = 16
"""Number of elements in a group, of which `RunningTopK` compares only the largest with a bound first."""
_CHUNK = 2**18
"""Number of elements of shorter rows that are processed at once, so that they stay in the cache."""


def top_k_indices(x: Num[Array, "*batch n"], count: int) -> Int[Array, "*batch top"]:
    """Return the indices of the `count` largest elements along the last axis of `x`, largest first.

    If the axis has fewer than `count` elements, the indices of all elements are returned.

    Example:
        >>> top_k_indices(np.array([[1.0, 3.0, 3.0, 2.0, np.nan]]), 3)
        array([[4, 1, 2]])
    """
    xp = namespace(x)
    x = _nan_to_inf(stop_gradient(x))
    name = library(x)
    if is_ndarray(x) and 2 * count < x.shape[-1] and 0 not in x.shape and count:
        return _numpy_top_k(x, count)
    if is_tensor(x) and count < x.shape[-1]:
        return _torch_top_k(x, count) if _torch_sorts(x, count) else _in_numpy(top_k_indices, x, count)
    if name == "jax" and count < x.shape[-1]:
        import jax

        # jax.lax.top_k takes the lowest index of equal entries, but orders −0 before 0.
        index: Array = jax.lax.top_k(where(x == 0, 0.0, x), count)[1]
        return index
    if name == "tensorflow" and count < x.shape[-1]:
        return xp.astype(xp.top_k(x, count)[1], xp.int64)
    return xp.argsort(x, axis=-1, descending=True, stable=True)[..., :count]


def _nan_to_inf(x: Num[Array, "*shape"]) -> Num[Array, "*shape"]:
    unknown = namespace(x).isnan(x)
    return x if is_ndarray(unknown) and not unknown.any() else where(unknown, math.inf, x)


def nonzero_top_k_indices(x: Num[Array, "*batch n"], count: int) -> Int[Array, "*batch top"]:
    """Return the same indices as `top_k_indices`, except that elements of 0 come last, in any order.

    Example:
        >>> nonzero_top_k_indices(np.array([[0.0, 3.0, 3.0, -2.0, np.nan]]), 4)
        array([[4, 1, 2, 3]])
    """
    if not is_tensor(x) or count >= x.shape[-1]:
        return top_k_indices(_zero_last(x), count)
    x = stop_gradient(x)
    assert is_tensor(x)
    if not _torch_sorts(x, count):
        return _in_numpy(nonzero_top_k_indices, x, count)
    values, order = x.topk(count + 1, dim=-1)
    # In most rows the elements are larger than 0 and decrease, so that there are no equal ones, 0 or NaN among them.
    unclear = ~(values[..., :-1] > values[..., 1:].clamp(min=0)).all(dim=-1)
    order = order[..., :-1]
    if statically_known_true(~unclear.any()):
        return order
    if not statically_known_true(unclear.any()):  # a tracer has no values to compare
        return top_k_indices(_zero_last(x), count)
    rows = typing.cast("Tensor", _nan_to_inf(_zero_last(x[unclear])))
    order[unclear] = _torch_top_k(rows, count, finite=True)
    return order


def _torch_sorts(x: Num[Tensor, "*batch n"], count: int) -> bool:
    """Return whether PyTorch finds the largest elements of each row in less time than NumPy, or alone can read them.

    In rows of at least 64 k elements PyTorch sorts a part. In shorter ones it selects them without vector instructions,
    which takes twice the time of NumPy, on each of its threads.
    """
    import torch

    if not 2 * count < x.shape[-1] < 64 * (count + 1) or x.dtype not in (torch.float32, torch.float64):
        return True
    return x.device.type != "cpu" or torch.get_num_threads() > 2 or bool(tracing_mode(x))


def _in_numpy(
    find: Callable[[Num[np.ndarray, "*batch n"], int], Int[Array, "*batch top"]], x: Num[Tensor, "*batch n"], count: int
) -> Int[Tensor, "*batch top"]:
    import torch

    return torch.from_numpy(find(x.numpy(), count))


def _zero_last(x: Num[Array, "*batch n"]) -> Num[Array, "*batch n"]:
    if is_ndarray(x) and x.dtype.kind == "f":
        # Different numbers: NumPy takes longer to select from many equal elements.
        low = np.finfo(x.dtype).min * (0.5 + np.arange(x.shape[-1]) / max(1, 2 * x.shape[-1]))
        return np.where(x != 0, x, low.astype(x.dtype))
    return where(x != 0, x, -math.inf)


def top_k_mask(x: Num[Array, "*batch n"], count: int) -> Bool[Array, "*batch n"]:
    """Return a boolean array that is True for the `count` largest elements of each row of `x`.

    Example:
        >>> top_k_mask(np.array([[1.0, 3.0, 3.0, 2.0]]), 1)
        array([[False,  True, False, False]])
    """
    if count >= x.shape[-1]:
        return namespace(x).ones_like(x, dtype=namespace(x).bool)
    if is_ndarray(x) and 0 not in x.shape and count:
        rows = x.reshape(-1, x.shape[-1])
        return _chosen_of_short_rows(rows, count).reshape(x.shape)
    if library(x) == "tensorflow":
        return _tensorflow_top_k_mask(stop_gradient(x), count)
    return index_mask(top_k_indices(x, count), x)


def _tensorflow_top_k_mask(x: Num[Array, "*batch n"], count: int) -> Bool[Array, "*batch n"]:
    xp = namespace(x)
    largest = xp.top_k(x, count + 1)[0]
    last, next_one = largest[..., -2:-1], largest[..., -1:]
    # Which of several excluded keys are chosen makes no difference. A row with NaN has the sum NaN.
    unclear = xp.any((next_one == last) & (last > -math.inf)) | xp.isnan(xp.sum(x))

    def careful() -> Array:
        finite = _nan_to_inf(x)
        return _with_first_equal(finite, kth_largest(finite, count), count)

    return choose(unclear, careful, lambda: x >= last)


def _with_first_equal(x: Num[Array, "*batch n"], last: Num[Array, "*batch 1"], count: int) -> Bool[Array, "*batch n"]:
    """Return which elements are the `count` largest; of those equal to the `count`-th largest `last`, the first."""
    xp, above = namespace(x), x > last
    equal = cast(x == last, xp.int32)
    missing = count - xp.sum(cast(above, xp.int32), axis=-1, keepdims=True)
    return above | ((equal == 1) & (xp.cumulative_sum(equal, axis=-1) <= missing))


def index_mask(index: Int[Array, "*batch top"], like: Num[Array, "*batch n"]) -> Bool[Array, "*batch n"]:
    """Return a boolean array of the shape of `like` that is True at the elements of `index` of each row.

    Elements of `index` that are negative or at least n are ignored. TensorFlow is not supported.

    Example:
        >>> index_mask(np.array([[2, -1, 7]]), np.zeros((1, 4)))
        array([[False, False,  True, False]])
    """
    n = like.shape[-1]
    # One more column takes the indices that are ignored.
    index, shape = where((index < 0) | (index > n), n, index), (*like.shape[:-1], n + 1)
    if is_tensor(like) and is_tensor(index):
        import torch

        return like.new_zeros(shape, dtype=torch.bool).scatter(-1, index, True)[..., :n]
    if library(like) == "jax":
        import jax.numpy as jnp

        chosen: Array = jnp.put_along_axis(jnp.zeros(shape, dtype=bool), index, True, axis=-1, inplace=False)
        return chosen[..., :n]
    mask = np.zeros(shape, dtype=bool)
    np.put_along_axis(mask, np.asarray(index), True, axis=-1)
    return mask[..., :n]


def kth_largest(x: Num[Array, "*batch n"], count: int) -> Num[Array, "*batch 1"]:
    """Return the `count`-th largest element of each row of `x`, `(*batch, 1)`.

    Each row must have at least `count` elements and no NaN.

    Example:
        >>> kth_largest(np.array([[1.0, 3.0, 3.0, 2.0]]), 3)
        array([[2.]])
    """
    name = library(x)
    if is_tensor(x):
        if x.device.type != "cpu" or x.requires_grad or x.itemsize < 4:
            return x.topk(count, dim=-1, sorted=False).values.amin(dim=-1, keepdim=True)
        # NumPy's sort and partition are vectorized and take a tenth of the time.
        return x.new_tensor(largest_elements(x.numpy(), count)[..., :1])
    if name == "tensorflow":
        return namespace(x).top_k(x, count)[0][..., -1:]
    if name == "jax":
        import jax

        largest: Array = jax.lax.top_k(x, count)[0]
        return largest[..., -1:]
    return largest_elements(np.asarray(x), count)[..., :1]


def largest_elements(x: Num[np.ndarray, "*batch n"], count: int) -> Num[np.ndarray, "*batch top"]:
    """Return the `count` largest elements of each row, the least of them first and the others in any order.

    NaN is largest.

    Example:
        >>> largest_elements(np.array([[4.0, 1.0, 3.0, 2.0]]), 2)
        array([[3., 4.]])
    """
    first = x.shape[-1] - count
    if x.shape[-1] <= _SORTED_ROW:
        return np.sort(x, axis=-1)[..., first:]
    # Selection of upper elements takes ten times as long if many equal the lowest, as those of excluded keys do.
    if x.dtype.kind == "f" and x.size and x.min() == -math.inf:
        return -np.partition(-x, count - 1, axis=-1)[..., :count][..., ::-1]
    return np.partition(x, first, axis=-1)[..., first:]


def _torch_top_k(x: Num[Tensor, "*batch n"], count: int, finite: bool = False) -> Int[Tensor, "*batch top"]:
    """Return the indices of the largest elements, largest first; with `finite` those of −inf may come in any order."""
    import torch

    # torch.topk does not define which of equal entries it takes. One entry more than `count` shows whether there are
    # equal ones.
    values, order = x.topk(count + 1, dim=-1)
    tied = values[..., 1:] == values[..., :-1]
    tied = (tied & (values[..., 1:] != -math.inf) if finite else tied).any(dim=-1)
    if statically_known_true(~tied.any()):
        return order[..., :count]
    if not statically_known_true(tied.any()):  # a tracer has no values to compare
        return torch.argsort(x, dim=-1, descending=True, stable=True)[..., :count]
    order = order[..., :count]
    order[tied] = _resolve_ties(x[tied], values[tied][:, count - 1 : count], count)
    return order


def _resolve_ties(x: Num[Tensor, "n k"], last: Num[Tensor, "n 1"], count: int) -> Int[Tensor, "n top"]:
    """Return the indices of the `count` largest elements of each row; ties go to the lowest index.

    `last` holds the `count`-th largest element of each row.
    """
    index = typing.cast("Tensor", _with_first_equal(x, last, count)).nonzero()[:, 1].reshape(len(x), count)
    by_rank = x.gather(-1, index).argsort(dim=-1, descending=True, stable=True)
    return index.gather(-1, by_rank)


def _numpy_top_k(x: Num[np.ndarray, "*batch n"], count: int) -> Int[np.ndarray, "*batch top"]:
    rows = x.reshape(-1, x.shape[-1])
    order = np.empty((len(rows), count), dtype=np.intp)
    if count == 1:
        order[:, 0] = rows.argmax(axis=-1)
    else:
        step = max(1, _CHUNK // x.shape[-1])
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            order[start : start + step] = _largest(part, count)
    return order.reshape(*x.shape[:-1], count)


def _largest(x: Num[np.ndarray, "rows n"], count: int) -> Int[np.ndarray, "rows top"]:
    if x.shape[-1] >= _LONG_ROW and x.dtype.kind == "f":
        top = RunningTopK(x.shape[:1], count, x.dtype)
        top.update(x, 0)
        if (top.index >= 0).all():  # otherwise elements of −inf are among the largest
            return top.index
    return _top_of_short_rows(x, count)


def _top_of_short_rows(x: Num[np.ndarray, "rows n"], count: int) -> Int[np.ndarray, "rows top"]:
    chosen = np.flatnonzero(_chosen_of_short_rows(x, count))
    index = (chosen % x.shape[-1]).reshape(len(x), count)
    if x.dtype == np.float32:
        packed = pack_ranks(x.reshape(-1).take(chosen), index.reshape(-1)).reshape(index.shape)
        return unpack_ranks(np.sort(packed, axis=-1)[:, ::-1])[0]
    by_rank = np.argsort(-np.take_along_axis(x, index, axis=-1), axis=-1, kind="stable")
    return np.take_along_axis(index, by_rank, axis=-1)


def pack_ranks(ranks: Float[np.ndarray, " n"], keys: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Return integers that sort like float32 ranks. Of equal ranks, the first key has the largest integer.

    −0 equals 0. NumPy sorts integers with vector instructions, but not the indices of numbers.
    """
    bits = (ranks + np.float32(0)).view(np.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    packed: np.ndarray = (ordered.astype(np.int64) << 32) | (_LOW - keys)
    return packed


def unpack_ranks(packed: Int[np.ndarray, "*shape"]) -> tuple[Int[np.ndarray, "*shape"], Float[np.ndarray, "*shape"]]:
    """Return the keys and the ranks of integers of `pack_ranks`."""
    ordered = (packed >> 32).astype(np.int32)
    ranks: np.ndarray = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(np.float32)
    return _LOW - (packed & _LOW), ranks


def _chosen_of_short_rows(x: Num[np.ndarray, "rows n"], count: int) -> Bool[np.ndarray, "rows n"]:
    largest = largest_elements(x, count)
    chosen: Bool[np.ndarray, "rows n"] = x >= largest[..., :1]
    unknown = np.isnan(largest)
    if np.count_nonzero(chosen) != len(x) * count or unknown.any():
        # Of several elements equal to the last one, the first are taken; NaN is largest.
        unclear = (np.count_nonzero(chosen, axis=-1) != count) | unknown.any(axis=-1)
        rows = np.asarray(_nan_to_inf(x[unclear]))
        chosen[unclear] = _with_first_equal(rows, kth_largest(rows, count), count)
    return chosen


class RunningTopK:
    """The k largest of the elements of each row that were added so far, in descending order, and their indices.

    Ties go to the element that was added first. Most elements that cannot be among the largest are only compared in
    groups: with the k-th largest so far, and with the k-th largest of the maxima of groups.

    Args:
        shape: the axes of the rows.
        count: k.
        dtype: dtype of `rank`, which must hold the added elements exactly.

    Attributes:
        rank: `(*shape, k)`, the elements, with +inf in place of NaN; −inf in unused places.
        index: `(*shape, k)`, their indices; −1 in unused places.

    Example:
        >>> top = RunningTopK((1,), 2)
        >>> top.update(np.array([[1.0, 3.0]]), 0)
        >>> top.update(np.array([[3.0, 2.0]]), 2)
        >>> top.index, top.rank
        (array([[1, 2]]), array([[3., 3.]]))
    """

    def __init__(self, shape: tuple[int, ...], count: int, dtype: DType = np.float64) -> None:
        self.rank = np.full((*shape, count), -np.inf, dtype)
        self.index = np.full((*shape, count), -1, np.int64)

    def update(
        self, rank: Float[np.ndarray, "*shape n"], first: int, largest: Float[np.ndarray, "*shape"] | None = None
    ) -> None:
        """Add elements to each row; those of −inf are ignored, and NaN counts as +inf.

        Args:
            rank: the elements.
            first: the index of the first element; the others follow.
            largest: the largest of the added elements of each row, if known.
        """
        if 0 in rank.shape:
            return
        least = self.rank[..., -1:].astype(rank.dtype)
        # Not (a > b): True for NaN.
        if largest is not None and bool((largest <= least[..., 0]).all()):
            return
        count, n = self.rank.shape[-1], rank.shape[-1]
        groups = n // _GROUP_SIZE
        if groups < 4 * count:  # the maxima of few groups bound little
            groups, maxima = n, rank
        else:
            # Groups are interleaved, so that one vectorized maximum reduces all of them.
            end = groups * _GROUP_SIZE
            maxima = rank[..., :end].reshape(*rank.shape[:-1], _GROUP_SIZE, groups).max(axis=-2)
            if end < n:
                self.update(rank[..., :end], first, largest)
                self.update(rank[..., end:], first + end)
                return
        if bool(np.isnan(maxima.max())):
            self.update(np.where(np.isnan(rank), np.inf, rank), first)
            return
        reached = maxima > least
        if (found := np.count_nonzero(reached)) > 2 * least.size * count and groups > count:
            # At least k elements reach the k-th largest maximum.
            floor = largest_elements(maxima, count)[..., :1]
            reached &= maxima >= floor
        else:
            floor = least
        if not found:
            return
        *row, group = np.nonzero(reached)
        column = group[:, None] + np.arange(0, n, groups)
        member = rank[(*(at[:, None] for at in row), column)]
        at = tuple(row)
        hit = (member > least[at]) & (member >= floor[at])  # at least one, as a maximum is
        lead = np.ravel_multi_index(at, self.rank.shape[:-1]) if row else np.zeros(len(group), np.intp)
        flat = (lead[:, None] * n + column)[hit]
        order = np.argsort(flat)
        self._merge(flat[order] // n, flat[order].astype(np.int64) % n + first, member[hit][order])

    def _merge(
        self, row: Int[np.ndarray, " new"], index: Int[np.ndarray, " new"], rank: Float[np.ndarray, " new"]
    ) -> None:
        """Merge elements in ascending order of row and index."""
        count = self.rank.shape[-1]
        known, indices = self.rank.reshape(-1, count), self.index.reshape(-1, count)
        if len(known) == 1:  # sorting takes half the time
            both, at = np.concatenate([known[0], rank]), np.concatenate([indices[0], index])
            order = np.argsort(-both, kind="stable")[:count]
            known[0], indices[0] = both[order], at[order]
            return
        length = np.bincount(row)
        rows = np.flatnonzero(length)
        length = length[rows]
        place = np.repeat(np.arange(len(rows)), length)
        column = count + np.arange(len(row)) - (np.cumsum(length) - length)[place]
        table = np.full((len(rows), count + length.max()), -np.inf, self.rank.dtype)
        table[:, :count], table[place, column] = known[rows], rank
        at = np.full(table.shape, -1, np.int64)
        at[:, :count], at[place, column] = indices[rows], index
        chosen = _top_of_short_rows(table, count)
        known[rows], indices[rows] = np.take_along_axis(table, chosen, axis=1), np.take_along_axis(at, chosen, axis=1)


def row_groups(*fields: Shaped[np.ndarray, "rows ..."]) -> Int[np.ndarray, " rows"]:
    """Return the group of each row, whose cells in all fields are equal; groups are numbered by their first rows.

    Example:
        >>> row_groups(np.array([[0.0, 1.0], [2.0, 1.0], [-0.0, 1.0]])).tolist()
        [0, 1, 0]
    """
    cells = [each.tolist() if each.ndim == 1 else map(bytes, each + 0) for each in fields]
    codes: dict[object, int] = {}
    return np.array([codes.setdefault(row, len(codes)) for row in zip(*cells, strict=True)], np.int64)


def first_equal_vectors(key: Shaped[np.ndarray, "rows ..."]) -> Int[np.ndarray, " rows"] | None:
    """Return for each vector the index of the first equal one; None if no two are equal, or the keys are no vectors.

    A matrix product rounds the logits of equal vectors differently, which would decide between them.
    """
    if key.dtype.kind != "f" or key.ndim != 2 or key.shape[1] < 2:
        return None
    # Rows of different hashes are different.
    bits = np.ascontiguousarray(key + 0).view(f"u{key.dtype.itemsize}").astype(np.uint64, copy=False)
    hashes = bits @ np.random.default_rng(0).integers(2**63, size=key.shape[1], dtype=np.uint64)
    _, group, count = np.unique(hashes, return_inverse=True, return_counts=True)
    alike = np.flatnonzero(count[group] > 1)
    _, place, group = np.unique(row_groups(key[alike]), return_index=True, return_inverse=True)
    first = np.arange(len(key))
    first[alike] = alike[place[group]]
    return None if (first == np.arange(len(key))).all() else first
