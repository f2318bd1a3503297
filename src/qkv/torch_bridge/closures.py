"""Detection of parts that refer to tensors of a transform without holding them as arrays, as closures do."""

from __future__ import annotations

from typing import TypeVar

import torch

from qkv.core.arrays import is_tensor
from qkv.core.axes import broadcast_batch
from qkv.core.parts import Part
from qkv.core.positions import Positions
from qkv.core.tile import Tile
from qkv.core.typing import Array, DType, Num, Shaped, Tensor
from qkv.masks import Mask
from qkv.normalizers import Normalizer
from qkv.scores import Score

T = TypeVar("T", bound=Part)


def refers_to_transformed(
    query: Num[Tensor, "*#batch q query_width"],
    key: Num[Tensor, "*#batch k key_width"],
    parts: tuple[Score | None, Normalizer | None, Mask | None, Positions | None],
) -> bool:
    """Return whether a score, normalizer or mask refers to a tensor of an active transform of `torch.func`.

    The parts are evaluated on one pair of ordinary tensors, with ordinary tensors in place of their arrays. No
    transform then maps or differentiates the result, unless another tensor takes part.

    Args:
        query: queries.
        key: keys.
        parts: score, normalizer, mask and positions of the call.
    """
    if 0 in (query.shape[-2], key.shape[-2]):
        return False
    score, normalizer, mask, positions = parts
    batch = broadcast_batch(query=tuple(query.shape[:-2]), key=tuple(key.shape[:-2]))
    tile = Tile(
        (0, 1),
        (0, 1),
        query.shape[-2],
        key.shape[-2],
        batch,
        None if positions is None else _ordinary(positions),
        seed=0,
    )
    logits = torch.zeros((*batch, 1, 1), dtype=_floating(query))
    results: list[object] = []
    try:
        if score is not None:
            left, right = (torch.zeros((1, x.shape[-1]), dtype=_floating(x)) for x in (query, key))
            results.append(_ordinary(score).logits(left, right, tile))
        if normalizer is not None:
            results.append(_ordinary(normalizer).weights(logits, tile))
        if mask is not None:
            results.append(_ordinary(mask).allowed(tile, logits))
    except Exception:  # the call itself reports errors of the user's functions
        return False
    return any(isinstance(x, torch.Tensor) and _is_transformed(x) for x in results)


def _is_transformed(x: Shaped[Tensor, "*_"]) -> bool:
    """Return whether a transform maps a tensor, or differentiates it in reverse or forward mode."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        if functorch.is_batchedtensor(x) or x.requires_grad or has_tangent(x):
            return True
        x = functorch.get_unwrapped(x)
    return False


def has_tangent(x: Shaped[Tensor, "*_"]) -> bool:
    """Return whether forward-mode differentiation moves a tensor."""
    forward_mode = torch.autograd.forward_ad
    return forward_mode._current_level >= 0 and forward_mode.unpack_dual(x).tangent is not None  # type: ignore[no-untyped-call]


def _ordinary(part: T) -> T:
    """Return a part restricted to the first query and key, with zeros in place of its tensors."""

    def zeros(array: Array) -> Array:
        return torch.zeros(array.shape, dtype=array.dtype) if is_tensor(array) else array

    return part.map_arrays(zeros).slice(slice(0, 1), slice(0, 1))


def _floating(x: Shaped[Tensor, "*_"]) -> DType:
    return x.dtype if x.is_floating_point() else torch.get_default_dtype()
