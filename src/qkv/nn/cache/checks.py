"""Checks of the keys, values, lengths and indices that are passed to a key-value cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.core.checks import check_integers, is_int
from qkv.core.typing import Int, Num, Shaped
from qkv.errors import GradientError, KindError, OptionError, ShapeError
from qkv.plan.checks import check_arrays, check_data

if TYPE_CHECKING:
    from qkv.nn.cache.chunk import Chunk


def check_rows(
    key: Shaped[Tensor, "*_"], value: Shaped[Tensor, "*_"], old: dict[str, Num[Tensor, "*_"]], dtype: torch.dtype | None
) -> None:
    """Check new keys and values, and that they match the tensors "key" and "value" of a cache, `old`, if any.

    Raises:
        ShapeError: if the shapes of key and value do not match each other or the cache.
        KindError: if the dtype differs from `dtype`.
        GradientError: if key or value requires a gradient.
    """
    if old and isinstance(key, Tensor) and isinstance(value, Tensor) and _continues(key, value, old, dtype):
        return
    for name, x in (("key", key), ("value", value)):
        if not isinstance(x, Tensor) or (not x.is_nested and x.ndim < 2):
            raise ShapeError(
                f"{name} must be a tensor with shape (*batch, new, width), got {_describe(x)}. Pass the rows of "
                "the new tokens, also for a single one."
            )
        if x.requires_grad and torch.is_grad_enabled():
            raise GradientError(
                f"{name} must not require a gradient, because a cache stores no autograd graph, got "
                "requires_grad=True. Decode under torch.no_grad(), or train on whole sequences without a cache."
            )
        check_data(name, x)
    check_arrays(key, key, value)
    if key.shape[:-1] != value.shape[:-1]:
        raise ShapeError(
            f"value must have the shape of key {tuple(key.shape)} except for the width, got {tuple(value.shape)}. "
            "Pass one value for each key."
        )
    if not old:
        return
    for name, x in (("key", key), ("value", value)):
        shape, given = old[name].shape, x.shape
        if given[:-2] != shape[:-2] or given[-1] != shape[-1]:
            raise ShapeError(
                f"{name} must have batch axes {tuple(shape[:-2])} and width {shape[-1]}, like the cache, got shape "
                f"{tuple(given)}. Use reorder to change the batch."
            )
        if x.dtype != dtype:
            raise KindError(
                f"{name} must have the dtype of the cache, {dtype}, got {x.dtype}. Convert it with {name}.to({dtype})."
            )


def _continues(
    key: Shaped[Tensor, "*_"], value: Shaped[Tensor, "*_"], old: dict[str, Num[Tensor, "*_"]], dtype: torch.dtype | None
) -> bool:
    """Return whether key and value fit the cache, for keys and values of one shape; False if this is not certain."""
    shape, cached = key.shape, old["key"].shape
    return (
        value.shape == shape
        and old["value"].shape == cached
        and len(shape) == len(cached)
        and shape[:-2] == cached[:-2]
        and shape[-1] == cached[-1]
        and key.dtype == value.dtype == dtype
        and not (torch.is_grad_enabled() and (key.requires_grad or value.requires_grad))
    )


def check_index(index: Int[Tensor, " new_batch"], batch: tuple[int, ...] | None) -> None:
    """Check indices of elements of the first of the batch axes `batch`; None: the cache is empty.

    Raises:
        KindError: if `index` is not a one-dimensional tensor of integers.
        ShapeError: if there is no batch axis.
        OptionError: if an index is negative or too large.
    """
    if not isinstance(index, Tensor) or index.ndim != 1 or index.is_floating_point() or index.dtype == torch.bool:
        raise KindError(
            f"index must be a tensor of integers with shape (new_batch,), got {_describe(index)}. Pass the old index "
            "of each new batch element."
        )
    if batch == ():
        raise ShapeError("the cache must have a batch axis to be reordered, got none. Append keys (batch, new, width).")
    if batch and len(index) and not 0 <= int(index.min()) <= int(index.max()) < batch[0]:
        raise OptionError(
            f"index must be between 0 and {batch[0] - 1}, got {index.tolist()}. Pass indices of the batch."
        )


def check_lengths(lengths: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """Check lengths of batch elements, and return them as int64.

    Raises:
        KindError: if `lengths` is not an integer tensor.
        ShapeError: if `lengths` is not one-dimensional.
    """
    if not isinstance(lengths, Tensor) or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise KindError(
            f"lengths must be a tensor of integers with shape (batch,), got {_describe(lengths)}. Pass the number of "
            "tokens of each batch element."
        )
    if lengths.ndim != 1:
        raise ShapeError(
            f"lengths must have shape (batch,), one element per batch element, got {tuple(lengths.shape)}. "
            "Pass one integer per element."
        )
    return lengths.long()


def check_new_length(
    length: int | Int[Tensor, " batch"], total: int | Int[Tensor, " batch"], batch: int | None
) -> int | Int[Tensor, " batch"]:
    """Check the lengths to which a cache is cropped, and return them, as one integer if they are equal.

    Raises:
        KindError: if `length` is neither an integer nor an integer tensor.
        ShapeError: if `length` does not have one element per batch element.
        OptionError: if a length is negative or exceeds the present one.
    """
    if isinstance(length, int) and isinstance(total, int) and 0 <= length <= total:
        return length
    if not is_int(length):
        if not isinstance(length, Tensor) or length.is_floating_point() or length.dtype == torch.bool:
            raise KindError(
                f"length must be an integer or a tensor of integers, got {_describe(length)}. Pass the number of "
                "tokens that remain."
            )
        if length.ndim != 1 or batch not in (None, len(length)):
            raise ShapeError(
                f"length must have shape (batch,), one element per batch element, got {tuple(length.shape)}. Pass an "
                "integer if all have the same length."
            )
    old = total if isinstance(total, Tensor) else torch.tensor(total)
    new = torch.as_tensor(length, device=old.device).long()
    if bool((new < 0).any()) or bool((new > old).any()):
        raise OptionError(
            f"length must be between 0 and the number of tokens of each batch element, {old.tolist()}, got "
            f"{new.tolist()}. "
            "Pass the number of tokens that remain."
        )
    if new.numel() and int(new.min()) == int(new.max()):
        return int(new.max())
    return new


def _describe(x: object) -> str:
    return f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"


def check_loaded(
    chunks: Sequence[Chunk], total: int | Int[Tensor, " batch"], finite: Sequence[bool], dtype: torch.dtype | None
) -> None:
    """Raise any error if the chunks and the number of tokens of a saved cache do not belong together."""
    if [type(each) for each in finite] != [bool, bool] or not isinstance(dtype, torch.dtype | None):
        raise ValueError("finite must be two booleans, and dtype a type of elements")
    ends = [chunk.start + chunk.filled for chunk in chunks]
    longest = int(total.max()) if isinstance(total, Tensor) else total
    if [chunk.start for chunk in chunks[1:]] != ends[:-1] or longest != max(ends, default=0):
        raise ValueError("the chunks must follow one another up to the last token")
    for chunk in chunks:
        check_integers(0, start=chunk.start)
        for name, x in chunk.tensors.items():
            like = chunks[0].tensors[name]
            if x.shape[:-2] != chunks[0].tensors["key"].shape[:-2] or x.shape[-1] != like.shape[-1]:
                raise ValueError(f"{name} must have the same shape in all chunks")
            if x.shape[-2] != chunk.filled or not (x.is_floating_point() if "scale" in name else x.dtype == dtype):
                raise ValueError(f"{name} must have {chunk.filled} rows of {dtype}")
    if isinstance(total, Tensor):
        batch = tuple(chunks[0].tensors["key"].shape[:1]) if chunks else tuple(total.shape)
        if total.dtype != torch.int64 or tuple(total.shape) != batch or int(total.min()) < 0:
            raise ValueError("total must have one number of tokens for each batch element")
