"""Masks as arrays of 0 and −inf to add to logits, which calls with the same mask share.

PyTorch's `masked_fill` takes as long as a matrix product of width 32. Adding such an array takes a tenth of that, and
no time at all as the initial value of a matrix product.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable
from functools import lru_cache
from typing import TypeAlias, cast

import torch

from qkv.core.equation import TorchCall
from qkv.core.typing import Bool, Float, Shaped, Tensor
from qkv.masks import Mask

MaskBias: TypeAlias = tuple[Float[Tensor, "*_ #q #k"] | None, Bool[Tensor, "*_ #q 1"] | None]
"""The array to add to logits, None for 0, and which queries have no key, None for no query."""

_SHARED: OrderedDict[Hashable, MaskBias] = OrderedDict()
"""Arrays of recent masks without arrays of their own, the oldest first."""
_MAX_SHARED = 8
"""Largest number of these arrays."""
_MAX_SHARED_PAIRS = 1 << 20
"""Largest number of pairs of such a mask: 4 MiB in single precision."""


def mask_bias(call: TorchCall, positional: bool | None = None) -> MaskBias:
    """Return the array to add to the logits of a call, 0 for a query without keys, and which queries have no key.

    The output of a query without keys must be set to 0.

    Args:
        positional: what `depends_on_positions_alone` returns for its mask, if it is known.
    """
    mask, tile = call.mask, call.tile
    if mask is None:
        return None, None
    if not (depends_on_positions_alone(mask) if positional is None else positional):
        return _compute(call, mask)
    if mask.coverage(tile) == "all":
        return None, None
    positions = tile.positions
    if (positions is not None and positions.arrays()) or tile.q_total * tile.k_total > _MAX_SHARED_PAIRS:
        return _compute(call, mask)
    like = call.value
    key = (
        mask.signature(), None if positions is None else positions.signature(), tile.rows, tile.cols, tile.q_total,
        tile.k_total, tile.batch, like.dtype, like.device,
    )  # fmt: skip
    found = _SHARED.get(key)
    if found is None:
        found = _SHARED[key] = _compute(call, mask)
        if len(_SHARED) > _MAX_SHARED:
            _SHARED.popitem(last=False)
    return found


def _compute(call: TorchCall, mask: Mask) -> MaskBias:
    allowed = row_major(cast("Bool[Tensor, '*_']", mask.allowed(call.tile, call.value)))
    if bool(allowed.all()):
        return None, None
    bias = torch.where(allowed, *_constants(call.value.dtype, call.value.device))
    largest = bias.amax(dim=-1, keepdim=True)
    if float(largest.min()) == 0:
        return bias, None
    # A query without keys would divide 0 by 0. It gets any weights here, and the output 0 later.
    empty = largest != 0
    return bias.masked_fill(empty, 0), empty


def row_major(x: Shaped[Tensor, "*axes"]) -> Shaped[Tensor, "*axes"]:
    """Return `x`, copied if its last two axes are swapped in memory.

    `core.arrays.toeplitz` returns such a tensor unless it is square. Results of operators would be laid out like it,
    so that softmax and matrix products copy them.
    """
    return x.contiguous() if x.ndim > 1 and x.mT.is_contiguous() else x


@lru_cache(maxsize=16)
def _constants(dtype: torch.dtype, device: torch.device) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Return 0 and −inf."""
    return torch.zeros((), dtype=dtype, device=device), torch.full((), -math.inf, dtype=dtype, device=device)


def depends_on_positions_alone(mask: Mask | None) -> bool:
    """Return whether a mask is the same for every call of a plan.

    This holds for masks of this package without arrays, unless they call a function of the user.
    """
    if mask is None:
        return True
    ours = all(type(part).__module__.startswith("qkv.masks.") for part in mask.parts())
    return ours and not mask.arrays() and not any(isinstance(p, Mask) and p.bound_per_call for p in mask.parts())
