"""transformers says a mask as functions within functions of (batch, head, query, key); here they are parts.

The functions of `transformers.masking_utils` are known by name and by what they close over. A function of
anybody else stays one: `Function` asks it tile by tile.

    causal, sliding window          Causal, Window
    chunks, packed texts, blocks    Documents
    padding                         Keys
    both, either                    &, |
    all else                        Function
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch

from qkv.core.arrays import Array, arange
from qkv.core.parts import array_field
from qkv.core.positions import Positions
from qkv.core.tile import Tile
from qkv.masks import Causal, Documents, Keys, Window
from qkv.masks.base import And, Mask, Or

__all__ = ["MaskContext", "FunctionMask", "simplify_mask", "translate_mask"]

_HOME = "transformers.masking_utils"


@dataclass(frozen=True)
class MaskContext:
    """Where a mask function is asked: query i is its number q_start + i, key j its number k_start + j.

    `ids`, `(batch, length)`, are the numbers that stand for them inside packed texts; None: they themselves.
    """

    batch: int
    q: int
    k: int
    q_start: int
    k_start: int
    device: Any
    vmapped: bool = False
    ids: torch.Tensor | None = None

    @property
    def positions(self) -> Positions:
        """Of the queries among the keys of the call."""
        return Positions(query_start=self.q_start - self.k_start)

    def queries(self, array: torch.Tensor) -> torch.Tensor:
        """What an array `(batch, length)` holds for each query, `(batch, 1, q)`."""
        return array[:, None, self.q_start : self.q_start + self.q]

    def keys(self, array: torch.Tensor) -> torch.Tensor:
        """What an array `(batch, length)` holds for each key, `(batch, 1, k)`."""
        return array[:, None, self.k_start : self.k_start + self.k]

    def numbers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The number of each query and key, with two batch axes."""
        if self.ids is not None:
            return self.queries(self.ids), self.keys(self.ids)
        rows = torch.arange(self.q_start, self.q_start + self.q, device=self.device)
        cols = torch.arange(self.k_start, self.k_start + self.k, device=self.device)
        return rows[None, None], cols[None, None]


@dataclass(frozen=True, eq=False)
class FunctionMask(Mask):
    """What a function of (batch, head, query, key) says, asked for each tile.

    Args:
        function: takes four integer tensors that broadcast.
        elements: the number of each batch element, `(batch, 1)`.
        q_start, k_start: numbers of the first query and key.
        vmapped: it takes four single integers only.

    Example:
        >>> from qkv.core.tile import Tile
        >>> elements = torch.zeros((1,), dtype=torch.int64)
        >>> even = FunctionMask(lambda b, h, i, j: (i + j) % 2 == 0, elements)
        >>> even.allowed(Tile.whole(2, 2, (1,)), torch.zeros(()))
        tensor([[ True, False],
                [False,  True]])
    """

    function: Callable[..., Any]
    elements: Array = array_field()
    q_start: int = 0
    k_start: int = 0
    vmapped: bool = False

    def signature(self) -> Any:
        """Without the function: plans are kept, and what it closes over is not to be kept with them."""
        return (type(self), self.vmapped, tuple(self.elements.shape))

    def allowed(self, tile: Tile, reference: Array) -> Array:
        """Ask it."""
        rows = arange(reference, *tile.rows) + self.q_start
        cols = arange(reference, *tile.cols) + self.k_start
        head = torch.zeros((), dtype=torch.int64, device=rows.device)
        if not self.vmapped:
            return self.function(self.elements[..., None, None], head, rows[:, None], cols[None, :])
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

        asked = self.function
        for dims in ((None, None, None, 0), (None, None, 0, None), (0, None, None, None)):
            asked = torch.vmap(asked, in_dims=dims, out_dims=0)
        with TransformGetItemToIndex():
            found = asked(self.elements.reshape(-1), head, rows, cols)
        return found.reshape((*self.elements.shape, rows.shape[0], cols.shape[0]))


def translate_mask(function: Callable[..., Any], frame: MaskContext) -> Mask | None:
    """The mask that a mask function of transformers stands for; None where all pairs meet."""
    known = _KNOWN.get(_name(function))
    if known is None:
        return _function(function, frame)
    return known(function, _closed_over(function), frame)


def simplify_mask(mask: Mask | None, tile: Tile) -> Mask | None:
    """The same mask without what allows every pair of the call: a window wider than all, no padding."""
    if isinstance(mask, And):
        return _all_of([simplify_mask(mask.left, tile), simplify_mask(mask.right, tile)])
    return None if mask is None or mask.coverage(tile) == "all" else mask


def _name(function: Callable[..., Any]) -> str:
    home = getattr(function, "__module__", "")
    return getattr(function, "__qualname__", "") if home == _HOME else ""


def _closed_over(function: Any) -> dict[str, Any]:
    cells = function.__closure__ or ()
    return dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in cells), strict=True))


def _function(function: Callable[..., Any], frame: MaskContext) -> Mask:
    if frame.ids is not None:
        inner, ids = function, frame.ids

        def function(b: Any, h: Any, i: Any, j: Any) -> Any:
            return inner(b, h, ids[b, i], ids[b, j])

    elements = torch.arange(frame.batch, device=frame.device)[:, None]
    return FunctionMask(function, elements, frame.q_start, frame.k_start, frame.vmapped)


def _all_of(masks: list[Mask | None]) -> Mask | None:
    found = [mask for mask in masks if mask is not None]
    return reduce(And, found) if found else None


def _and(function: Any, closed: dict[str, Any], frame: MaskContext) -> Mask | None:
    return _all_of([translate_mask(one, frame) for one in closed["mask_functions"]])


def _or(function: Any, closed: dict[str, Any], frame: MaskContext) -> Mask | None:
    found = [translate_mask(one, frame) for one in closed["mask_functions"]]
    return None if None in found else reduce(Or, found)  # type: ignore[arg-type]


def _relative(mask: Mask, function: Any, frame: MaskContext) -> Mask:
    """A mask of distances. Inside packed texts it is asked of their own numbers."""
    return mask if frame.ids is None else _function(function, frame)


def _causal(function: Any, closed: dict[str, Any], frame: MaskContext) -> Mask:
    return _relative(Causal(), function, frame)


def _all(function: Any, closed: dict[str, Any], frame: MaskContext) -> None:
    return None


def _sliding(function: Any, closed: dict[str, Any], frame: MaskContext) -> Mask:
    return _relative(Window(closed["sliding_window"] - 1, None), function, frame)


def _sliding_both_ways(function: Any, closed: dict[str, Any], frame: MaskContext) -> Mask:
    return _relative(Window(closed["sliding_window"], closed["sliding_window"]), function, frame)


def _chunks(function: Any, closed: dict[str, Any], frame: MaskContext) -> Mask:
    padded, size = closed["left_padding"].to(frame.device)[:, None, None], closed["chunk_size"]
    rows, cols = ((number - padded) // size for number in frame.numbers())
    return Documents(rows, cols)


def _blocks(function: Any, closed: dict[str, Any], frame: MaskContext) -> Mask:
    ids = closed["block_sequence_ids"]
    if frame.ids is not None or frame.q_start + frame.q > ids.shape[-1]:
        return _function(function, frame)
    rows, cols = frame.queries(ids), frame.keys(ids)
    # −1 is no block, and not the same block as another −1.
    return Documents(rows, torch.where(cols < 0, -2, cols))


def _padding(function: Any, closed: dict[str, Any], frame: MaskContext) -> Mask:
    if frame.ids is not None:
        return _function(function, frame)
    return Keys(frame.keys(closed["padding_mask"]).to(torch.bool))


def _packed(function: Any, closed: dict[str, Any], frame: MaskContext) -> Mask:
    ids = closed["packed_sequence_mask"]
    return Documents(frame.queries(ids), frame.keys(ids))


def _remapped(function: Any, closed: dict[str, Any], frame: MaskContext) -> Mask | None:
    """Numbers within each packed text. They grow by one from token to token of a text, and it is asked
    together with `packed_sequence_mask_function`: distances are those of the call.
    """
    inner = closed["mask_function"]
    if _of_distances(inner):
        return translate_mask(inner, frame)
    return translate_mask(inner, replace(frame, ids=closed["position_ids"]))


def _of_distances(function: Any) -> bool:
    name = _name(function)
    if name.startswith("and_masks."):
        return all(map(_of_distances, _closed_over(function)["mask_functions"]))
    return _KNOWN.get(name) in (_causal, _all, _sliding, _sliding_both_ways)


_KNOWN: dict[str, Callable[[Any, dict[str, Any], MaskContext], Mask | None]] = {
    "causal_mask_function": _causal,
    "bidirectional_mask_function": _all,
    "and_masks.<locals>.and_mask": _and,
    "or_masks.<locals>.or_mask": _or,
    "sliding_window_overlay.<locals>.inner_mask": _sliding,
    "sliding_window_bidirectional_overlay.<locals>.inner_mask": _sliding_both_ways,
    "chunked_overlay.<locals>.inner_mask": _chunks,
    "blockwise_overlay.<locals>.inner_mask": _blocks,
    "padding_mask_function.<locals>.inner_mask": _padding,
    "packed_sequence_mask_function.<locals>.inner_mask": _packed,
    "remap_positions_for_packed_sequence.<locals>.inner_mask": _remapped,
}
