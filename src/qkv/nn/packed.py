"""Attention over sequences of different lengths that are stored one after the other, without padding.

    attend_packed    rows of all sequences in one tensor, with `cu_seqlens`, the first row of each sequence
    attend_jagged    PyTorch's nested tensors in the layout `torch.jagged`

Both run one call with the mask `Documents`, whose tiles of different sequences are skipped.
"""

from __future__ import annotations

from typing import Unpack, cast

import numpy as np
import torch
from torch import Tensor

from qkv.core.typing import Int, Num, Shaped
from qkv.engine import attend
from qkv.errors import KindError, PositionError, ShapeError
from qkv.masks import Causal, Custom, Documents, Mask
from qkv.plan.spec import CallOptions


def attend_packed(
    query: Num[Tensor, "total_q heads width"],
    key: Num[Tensor, "total_k key_heads width"],
    value: Num[Tensor, "total_k key_heads value_width"],
    cu_seqlens: Int[Tensor, " n"],
    cu_seqlens_k: Int[Tensor, " n"] | None = None,
    *,
    causal: bool = False,
    enable_gqa: bool = False,
    **options: Unpack[CallOptions],
) -> Num[Tensor, "total_q heads value_width"]:
    """Compute attention within each of several sequences whose rows are stored one after the other.

        output[a:b] = attend(query[a:b], key[c:d], value[c:d])    for a, b, c, d = consecutive entries of cu_seqlens

    The arguments are those of `flash_attn_varlen_func`.

    Args:
        query: queries of all sequences, `(total_q, heads, width)`.
        key: keys of all sequences, `(total_k, key_heads, width)`.
        value: values of all sequences, `(total_k, key_heads, value_width)`.
        cu_seqlens: index of the first query of each sequence, followed by `total_q`.
        cu_seqlens_k: index of the first key of each sequence, followed by `total_k`; None: as for the queries.
        causal: whether a query may not attend to later keys of its sequence; the last query of a sequence has
            the position of its last key.
        enable_gqa: whether key and value may have fewer heads than the queries, as in `qkv.attend`.
        **options: further arguments of `qkv.attend`; a mask applies to rows of the packed tensors.

    Returns:
        Output `(total_q, heads, value_width)`. Queries of sequences without keys get 0.

    Raises:
        ShapeError: `cu_seqlens` does not increase from 0 to the number of rows, or the numbers of sequences differ.
        PositionError: the score or the mask uses positions, and queries and keys of a sequence differ in number.
        QkvError: the call is invalid; see `qkv.attend`.

    Source: Dao et al. (2022), FlashAttention, https://arxiv.org/abs/2205.14135.

    Example:
        >>> import torch
        >>> x = torch.randn(5, 2, 4)
        >>> output = attend_packed(x, x, x, torch.tensor([0, 2, 5]))
        >>> first = attend_packed(x[:2], x[:2], x[:2], torch.tensor([0, 2]))
        >>> torch.allclose(output[:2], first, atol=1e-6)
        True
    """
    sides = [x.transpose(0, 1) for x in (query, key, value)]
    starts = _offsets("cu_seqlens", cu_seqlens, query.shape[0])
    key_starts = starts if cu_seqlens_k is None else _offsets("cu_seqlens_k", cu_seqlens_k, key.shape[0])
    output = _attend(sides, (starts, key_starts), causal, enable_gqa, options)
    return output.transpose(0, 1)


def attend_jagged(
    query: Num[Tensor, "*_"],
    key: Num[Tensor, "*_"],
    value: Num[Tensor, "*_"],
    *,
    causal: bool = False,
    enable_gqa: bool = False,
    **options: Unpack[CallOptions],
) -> Num[Tensor, "*_"]:
    """Compute attention for nested tensors in the layout `torch.jagged`, and return one in the layout of the queries.

    Args:
        query: queries `(batch, q, width)`, `(batch, heads, q, width)` as for PyTorch's fused attention, or
            `(batch, q, heads, width)`, where q differs between the elements of the batch.
        key: keys in the same layout.
        value: values in the same layout.
        causal: as in `attend_packed`.
        enable_gqa: as in `attend_packed`.
        **options: as in `attend_packed`.

    Raises:
        KindError: an argument is not a nested tensor in the layout `torch.jagged`.
        ShapeError: the layouts, or the numbers of sequences or of keys and values differ.
        PositionError: as in `attend_packed`.

    Example:
        >>> import torch
        >>> x = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=torch.jagged)
        >>> [tuple(each.shape) for each in attend_jagged(x, x, x).unbind()]
        [(2, 4), (3, 4)]
    """
    named = {"query": query, "key": key, "value": value}
    layouts = {_jagged_axis(name, x) for name, x in named.items()}
    if len(layouts) > 1:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in named.items())
        raise ShapeError(
            f"query, key and value must have the same layout, got {shapes}. Move the axis of different lengths to the "
            "same place, for example with transpose(1, 2)."
        )
    axis, axes = layouts.pop()
    # The values of a nested tensor lack its first axis, the batch.
    sides = [x.values() for x in named.values()]
    if axis == 1 and axes == 4:
        sides = [x.transpose(0, 1) for x in sides]
    starts, key_starts, value_starts = (_offsets(f"offsets of {n}", _row_offsets(x)) for n, x in named.items())
    if not np.array_equal(key_starts, value_starts):
        raise ShapeError(
            f"key and value must have the same lengths, got {np.diff(key_starts).tolist()} and "
            f"{np.diff(value_starts).tolist()}. Pass one value per key."
        )
    output = _attend(sides, (starts, key_starts), causal, enable_gqa, options)
    if axis == 1 and axes == 4:
        output = output.transpose(0, 1)
    return torch.nested.nested_tensor_from_jagged(output, _row_offsets(query), jagged_dim=axis)


def _attend(
    sides: list[Num[Tensor, "*_"]],
    starts: tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]],
    causal: bool,
    enable_gqa: bool,
    options: CallOptions,
) -> Num[Tensor, "*_"]:
    same = np.array_equal(*starts)
    mask, score = options.get("mask"), options.get("score")
    if not same and ((mask is not None and mask.positional) or (score is not None and score.positional)):
        raise PositionError(
            "queries and keys of each sequence must be equal in number for a score or mask that uses positions, got "
            f"{np.diff(starts[0]).tolist()} queries and {np.diff(starts[1]).tolist()} keys. Pass causal=True instead "
            "of the mask Causal, or call qkv.attend for each sequence."
        )
    whole: Mask = Documents.from_offsets(*starts)
    if causal:
        whole = whole & (Causal("start") if same else _causal_at_the_end(*starts))
    if mask is not None:
        whole = whole & mask
    arguments: CallOptions = {**options, "mask": whole}
    query, key, value = sides
    return cast("Tensor", attend(query, key, value, enable_gqa=enable_gqa, **arguments))


def _causal_at_the_end(starts: Int[np.ndarray, " n"], key_starts: Int[np.ndarray, " n"]) -> Mask:
    """Return a mask in which the last query of each sequence may attend up to the last key of the sequence."""
    rows = np.arange(starts[-1])
    last = rows + np.repeat(key_starts[1:] - starts[1:], np.diff(starts))
    return Custom(lambda query, key, last: key <= last[query], (torch.as_tensor(last),), align="start")


def _jagged_axis(name: str, x: Shaped[Tensor, "*_"]) -> tuple[int, int]:
    """Return the axis of different lengths of a nested tensor, and its number of axes."""
    if not (isinstance(x, Tensor) and x.is_nested and x.layout == torch.jagged):
        raise KindError(
            f"{name} must be a nested tensor in the layout torch.jagged, got {type(x).__name__}. Create it with "
            "torch.nested.nested_tensor(tensors, layout=torch.jagged)."
        )
    axis = next(n for n, length in enumerate(x.shape) if not isinstance(length, int))
    if (axis, x.ndim) not in ((1, 3), (1, 4), (2, 4)):
        raise ShapeError(
            f"{name} must have shape (batch, length, width), (batch, heads, length, width) or (batch, length, heads, "
            f"width), where the length differs, got {tuple(x.shape)}. Move the axes with transpose."
        )
    return axis, x.ndim


def _row_offsets(x: Shaped[Tensor, "*_"]) -> Int[Tensor, " n"]:
    offsets: Tensor = x.offsets()  # type: ignore[attr-defined]  # a method of nested tensors only
    return offsets


def _offsets(name: str, offsets: Int[Tensor, " n"], rows: int | None = None) -> Int[np.ndarray, " n"]:
    found = np.asarray(torch.as_tensor(offsets).detach().cpu())
    if found.ndim != 1 or len(found) < 1 or found[0] != 0 or (np.diff(found) < 0).any():
        raise ShapeError(
            f"{name} must be integers (sequences + 1,) that increase from 0, got {found.tolist()}. Pass the index of "
            "the first row of each sequence, and the number of rows."
        )
    if rows is not None and found[-1] != rows:
        raise ShapeError(f"{name} must end with the number of rows {rows}, got {found[-1]}. Append the number of rows.")
    return found
