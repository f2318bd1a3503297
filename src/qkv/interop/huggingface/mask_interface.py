"""Implementation of transformers' mask interface, which returns a lazy mask instead of an array.

`LazyMask` is a wrapper tensor of shape (batch, 1, q, k) without storage. Its elements are 0 for allowed pairs
and the most negative float for masked pairs, as in the mask that transformers passes to `eager` attention, which
every model supports. Passing the mask on, cropping its last keys and reading its shape allocate nothing. Every
other operation first allocates the array, so models that add to the mask, index it or write into it compute the
same results as with an array, with quadratic memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeAlias, cast

import torch
from torch.utils._pytree import tree_map

from qkv.core.arrays import arange
from qkv.core.parts import array_field
from qkv.core.positions import Positions
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool, Float, Int, Shaped, Tensor
from qkv.masks import AllowedKeys, Causal, Documents, Window
from qkv.masks.base import And, Mask, Or, and_masks

_KEEP_LAZY = ("aten::detach", "aten::alias")


class LazyMask(torch.Tensor):
    """Mask tensor for q queries and k keys, whose elements are allocated only when an operation needs them.

    The mask is the same for all heads.
    """

    mask: Mask | None
    positions: Positions
    crop: int
    uncropped_shape: tuple[int, ...]
    array: torch.Tensor | None
    step: tuple[int, tuple[int, int], torch.Tensor | None] | None
    """Number of keys, range of those that the mask allows, and what it adds to the logits, of a decoding step."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(
        cls,
        mask: Mask | None,
        positions: Positions,
        shape: tuple[int, ...],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        crop: int = 0,
    ) -> LazyMask:
        """Create the tensor without allocating its elements."""
        cropped = (*shape[:-1], shape[-1] - crop)
        out: LazyMask = torch.Tensor._make_wrapper_subclass(cls, cropped, dtype=dtype, device=torch.device(device))
        out.mask, out.positions, out.uncropped_shape, out.crop, out.array = mask, positions, tuple(shape), crop, None
        out.step = None
        return out

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def parts(self) -> tuple[Mask | None, Positions]:
        """Return the mask, restricted to the keys that are not cropped, and the positions of the queries.

        The mask does not reflect writes into the array: if `array` is not None, use the array.
        """
        if self.mask is None or not self.crop:
            return self.mask, self.positions
        return self.mask.slice(slice(None), slice(0, self.shape[-1])), self.positions

    def dense(self) -> Float[Tensor, "batch 1 q k"]:
        """Return the mask as an array, which is allocated by the first call and keeps later writes."""
        if self.array is None:
            batch, _, q, k = self.shape
            mask, positions = self.parts()
            self.array = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
            if mask is not None:
                allowed = cast(torch.Tensor, mask.allowed(Tile.whole(q, k, (batch, 1), positions), self.array))
                self.array.masked_fill_(~allowed, torch.finfo(self.dtype).min)
        return self.array

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        """Return a description of the mask, without allocating its elements."""
        content = "an array" if self.array is not None else str(self.mask or "all pairs")
        return f"LazyMask({content}, shape={tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Return a lazy mask for operations that detach or crop it. Run all others on the array."""
        name, first = func._schema.name, args[0] if args else None
        if isinstance(first, LazyMask) and first.array is None:
            if name in _KEEP_LAZY:
                return cls(first.mask, first.positions, first.uncropped_shape, first.device, first.dtype, first.crop)
            if name == "aten::slice" and (length := _cropped_length(first, *args[1:])) is not None:  # type: ignore[arg-type]
                crop = first.uncropped_shape[-1] - length
                return cls(first.mask, first.positions, first.uncropped_shape, first.device, first.dtype, crop)

        def allocate(x: object) -> object:
            return x.dense() if isinstance(x, LazyMask) else x

        return func(*tree_map(allocate, args), **tree_map(allocate, kwargs or {}))


def _cropped_length(
    mask: LazyMask, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> int | None:
    """Return the number of keys that a slice leaves, or None if it does more than remove keys at the end."""
    length, keys = int(mask.shape[dim]), int(mask.shape[-1])
    stop = length if end is None else int(end)
    if start not in (None, 0) or step != 1 or stop < 0:
        return None
    if dim % 4 == 3:
        return min(stop, length)
    return keys if stop >= length else None


MaskFunction: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""A function of batch, head, query and key indices that returns which pairs are allowed."""

_Closure: TypeAlias = dict[str, Any]
"""Variables that a mask function closes over, by name."""

_MODULE = "transformers.masking_utils"


@dataclass(frozen=True)
class MaskContext:
    """Ranges of query and key indices of a call, with options for evaluating a mask function on them.

    Attributes:
        batch: number of batch elements.
        q: number of queries.
        k: number of keys.
        q_start: index of the first query.
        k_start: index of the first key.
        device: device of the mask.
        vmapped: whether the mask function only accepts scalar indices.
        ids: `(batch, length)`, indices within packed sequences, used instead of indices in the call; None if the
            mask function uses indices in the call.
    """

    batch: int
    q: int
    k: int
    q_start: int
    k_start: int
    device: torch.device | str
    vmapped: bool = False
    ids: Int[Tensor, "batch length"] | None = None

    @property
    def positions(self) -> Positions:
        """Positions of the queries relative to the keys of the call."""
        return Positions(query_start=self.q_start - self.k_start)

    def slice_queries(self, array: Shaped[Tensor, "batch length"]) -> Shaped[Tensor, "batch 1 q"]:
        """Return the columns of `array` that belong to the queries of the call, `(batch, 1, q)`."""
        return array[:, None, self.q_start : self.q_start + self.q]

    def slice_keys(self, array: Shaped[Tensor, "batch length"]) -> Shaped[Tensor, "batch 1 k"]:
        """Return the columns of `array` that belong to the keys of the call, `(batch, 1, k)`."""
        return array[:, None, self.k_start : self.k_start + self.k]

    def indices(self) -> tuple[Int[Tensor, "#batch 1 q"], Int[Tensor, "#batch 1 k"]]:
        """Return the query indices `(batch, 1, q)` and the key indices `(batch, 1, k)` for a mask function.

        The batch axis has length 1 if all batch elements have the same indices.
        """
        if self.ids is not None:
            return self.slice_queries(self.ids), self.slice_keys(self.ids)
        rows = torch.arange(self.q_start, self.q_start + self.q, device=self.device)
        cols = torch.arange(self.k_start, self.k_start + self.k, device=self.device)
        return rows[None, None], cols[None, None]


@dataclass(frozen=True, eq=False)
class FunctionMask(Mask):
    """Mask of a mask function of transformers, whose arguments are indices (batch, head, query, key).

    Args:
        function: function of four integer tensors that broadcast.
        elements: index of each batch element, `(batch, 1)`.
        q_start: index of the first query.
        k_start: index of the first key.
        vmapped: whether the function only accepts scalar indices and must be vectorized with `torch.vmap`.

    Example:
        >>> from qkv.core.tile import Tile
        >>> elements = torch.zeros((1,), dtype=torch.int64)
        >>> even = FunctionMask(lambda b, h, i, j: (i + j) % 2 == 0, elements)
        >>> even.allowed(Tile.whole(2, 2, (1,)), torch.zeros(()))
        tensor([[ True, False],
                [False,  True]])
    """

    function: MaskFunction
    elements: Array = array_field()
    q_start: int = 0
    k_start: int = 0
    vmapped: bool = False

    def signature(self) -> tuple[type, bool, tuple[int, ...]]:
        """Return the type, the option `vmapped` and the shape of `elements` as a key for the plan cache.

        The function is not part of the key, because its closure would stay in memory.
        """
        return (type(self), self.vmapped, tuple(self.elements.shape))

    def allowed(self, tile: Tile, reference: Array) -> Bool[Tensor, "*batch #q #k"]:
        """Return the result of the function for all pairs of a tile, True where the query may attend to the key."""
        elements = cast(torch.Tensor, self.elements)
        rows = cast(torch.Tensor, arange(reference, *tile.rows)) + self.q_start
        cols = cast(torch.Tensor, arange(reference, *tile.cols)) + self.k_start
        head = torch.zeros((), dtype=torch.int64, device=rows.device)
        if not self.vmapped:
            return self.function(elements[..., None, None], head, rows[:, None], cols[None, :])
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

        function: MaskFunction = self.function
        for dims in ((None, None, None, 0), (None, None, 0, None), (0, None, None, None)):
            function = torch.vmap(function, in_dims=dims, out_dims=0)
        with TransformGetItemToIndex():
            allowed = function(elements.reshape(-1), head, rows, cols)
        return allowed.reshape((*elements.shape, rows.shape[0], cols.shape[0]))


def translate_mask(function: MaskFunction, context: MaskContext) -> Mask | None:
    """Return the mask of qkv that is equivalent to a mask function of transformers.

    Return None if the function allows all pairs.
    """
    name = _name(function)
    if name in _DISTANCE_MASKS:
        mask = _DISTANCE_MASKS[name](_closure(function))
        # Indices restart in each packed sequence, so they give other distances than positions in the call.
        return mask if mask is None or context.ids is None else _function_mask(function, context)
    if name in _TRANSLATIONS:
        return _TRANSLATIONS[name](function, _closure(function), context)
    return _function_mask(function, context)


def simplify_mask(mask: Mask | None, tile: Tile) -> Mask | None:
    """Return a mask without the operands of intersections that allow every pair of the tile.

    Return None if no operand is left, for example for padding masks without padding.
    """
    if isinstance(mask, And):
        return and_masks(simplify_mask(mask.left, tile), simplify_mask(mask.right, tile))
    return None if mask is None or mask.coverage(tile) == "all" else mask


def _name(function: MaskFunction) -> str:
    return getattr(function, "__qualname__", "") if getattr(function, "__module__", "") == _MODULE else ""


def _closure(function: MaskFunction) -> _Closure:
    cells = function.__closure__ or ()
    return dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in cells), strict=True))


def _function_mask(function: MaskFunction, context: MaskContext) -> Mask:
    if context.ids is not None:
        inner, ids = function, context.ids

        def function(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
            return inner(b, h, ids[b, i], ids[b, j])

    elements = torch.arange(context.batch, device=context.device)[:, None]
    return FunctionMask(function, elements, context.q_start, context.k_start, context.vmapped)


def _and(function: MaskFunction, closure: _Closure, context: MaskContext) -> Mask | None:
    return and_masks(*[translate_mask(operand, context) for operand in closure["mask_functions"]])


def _or(function: MaskFunction, closure: _Closure, context: MaskContext) -> Mask | None:
    masks = [translate_mask(operand, context) for operand in closure["mask_functions"]]
    return None if None in masks else reduce(Or, masks)  # type: ignore[arg-type]


def _chunks(function: MaskFunction, closure: _Closure, context: MaskContext) -> Mask:
    padded, size = closure["left_padding"].to(context.device)[:, None, None], closure["chunk_size"]
    rows, cols = ((index - padded) // size for index in context.indices())
    return Documents(rows, cols)


def _blocks(function: MaskFunction, closure: _Closure, context: MaskContext) -> Mask:
    ids = closure["block_sequence_ids"]
    if context.ids is not None or context.q_start + context.q > ids.shape[-1]:
        return _function_mask(function, context)
    rows, cols = context.slice_queries(ids), context.slice_keys(ids)
    # −1 marks a position outside all blocks, which must not match another −1.
    return Documents(rows, torch.where(cols < 0, -2, cols))


def _padding(function: MaskFunction, closure: _Closure, context: MaskContext) -> Mask:
    if context.ids is not None:
        return _function_mask(function, context)
    return AllowedKeys(context.slice_keys(closure["padding_mask"]).to(torch.bool))


def _translate_packed_positions(function: MaskFunction, closure: _Closure, context: MaskContext) -> Mask | None:
    """Return the mask for a mask function that is called with positions within packed sequences.

    The indices grow by one from token to token of a sequence, and transformers combines the function with
    `packed_sequence_mask_function`, so distances within a sequence are those of the call.
    """
    inner = closure["mask_function"]
    return translate_mask(
        inner, context if _depends_on_distance(inner) else replace(context, ids=closure["position_ids"])
    )


def _depends_on_distance(function: MaskFunction) -> bool:
    name = _name(function)
    if name.startswith("and_masks."):
        return all(map(_depends_on_distance, _closure(function)["mask_functions"]))
    return name in _DISTANCE_MASKS


_DISTANCE_MASKS: dict[str, Callable[[_Closure], Mask | None]] = {
    "causal_mask_function": lambda closure: Causal(),
    "bidirectional_mask_function": lambda closure: None,
    "sliding_window_overlay.<locals>.inner_mask": lambda closure: Window(closure["sliding_window"] - 1, None),
    "sliding_window_bidirectional_overlay.<locals>.inner_mask": lambda closure: Window(
        closure["sliding_window"], closure["sliding_window"]
    ),
}
"""Masks that depend only on the distance of query and key, by the name of the mask function."""

_TRANSLATIONS: dict[str, Callable[[MaskFunction, _Closure, MaskContext], Mask | None]] = {
    "and_masks.<locals>.and_mask": _and,
    "or_masks.<locals>.or_mask": _or,
    "chunked_overlay.<locals>.inner_mask": _chunks,
    "blockwise_overlay.<locals>.inner_mask": _blocks,
    "padding_mask_function.<locals>.inner_mask": _padding,
    "packed_sequence_mask_function.<locals>.inner_mask": lambda function, closure, context: Documents(
        context.slice_queries(closure["packed_sequence_mask"]), context.slice_keys(closure["packed_sequence_mask"])
    ),
    "remap_positions_for_packed_sequence.<locals>.inner_mask": _translate_packed_positions,
}


def build_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Int[Tensor, ""] = 0,
    kv_offset: int | Int[Tensor, ""] = 0,
    mask_function: MaskFunction | None = None,
    attention_mask: Shaped[Tensor, "batch length"] | Shaped[Tensor, "#batch #heads #q k"] | None = None,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    **kwargs: object,
) -> Shaped[Tensor, "#batch #heads #q k"] | None:
    """Return the mask that `transformers.masking_utils.eager_mask` computes, as a `LazyMask` if possible.

    The arguments are those of the mask interface of transformers.

    Returns:
        A `LazyMask` of shape (batch, 1, q, k); None if all pairs are allowed and `allow_is_bidirectional_skip` is True.
    """
    from transformers import masking_utils
    from transformers.utils import import_utils

    function = mask_function or cast(MaskFunction, masking_utils.causal_mask_function)
    if import_utils.is_tracing(attention_mask):
        eager_mask: Callable[..., torch.Tensor | None] = masking_utils.eager_mask
        return eager_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, function, attention_mask, dtype,
            allow_is_bidirectional_skip, use_vmap, device, **kwargs,
        )  # fmt: skip
    if isinstance(attention_mask, LazyMask) or (attention_mask is not None and attention_mask.ndim == 4):
        return attention_mask
    context = MaskContext(batch_size, q_length, kv_length, int(q_offset), int(kv_offset), device, use_vmap)
    mask = translate_mask(function, context)
    if attention_mask is not None and attention_mask.ndim == 2:
        real = attention_mask.to(device=device, dtype=torch.bool)
        if (unused := context.k_start + kv_length - real.shape[-1]) > 0:
            # Slots of a static cache that have not been written yet.
            real = torch.nn.functional.pad(real, (0, unused))
        mask = and_masks(mask, AllowedKeys(context.slice_keys(real)))
    mask = simplify_mask(mask, Tile.whole(q_length, kv_length, (batch_size, 1), context.positions))
    if mask is None and allow_is_bidirectional_skip:
        return None
    return LazyMask(mask, context.positions, (batch_size, 1, q_length, kv_length), device, dtype)
