"""Reshape the arrays of scores, normalizers and masks so that they broadcast over the heads of a module.

The last batch axis of a multi-head call is the heads.

    batch axes of a part's array        meaning             in the call
    ()                                  one for all         ()
    (heads,)      score, normalizer     one per head        (1, …, 1, heads)
    (*batch,)     mask, positions       one per element     (*batch, 1)
    (*batch, heads)                     one per both        (*batch, heads)

In grouped-query attention the heads are two axes, (key_heads, group).
torch.compile traces these functions, so they use plain loops and list comprehensions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from qkv.core.map_batch import map_batch
from qkv.core.typing import Array, Shaped

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Groups", "align_array", "align_batch"]

T = TypeVar("T")

Groups = tuple[int, int] | None
"""(key_heads, group) if the heads are two axes of the call; None if they are a single axis."""


def align_batch(part: T, batch_axes: int, groups: Groups, per_head: bool) -> T:
    """Return `part` with its arrays reshaped to broadcast over the heads, or `part` itself if none needs it.

    Args:
        part: a part, or None.
        batch_axes: number of batch axes of the module's inputs.
        groups: (key_heads, group) if the heads are two axes of the call, else None.
        per_head: whether a single batch axis of an array means heads (scores, normalizers) or batch elements (masks).
    """
    return map_batch(part, lambda x, own_axes: align_array(x, own_axes, batch_axes, groups, per_head))


def align_array(
    x: Shaped[Array, "*_"], own_axes: int, batch_axes: int, groups: Groups, per_head: bool
) -> Shaped[Array, "*_"]:
    """Return the array, reshaped so that its leading batch axes broadcast over the heads.

    An array whose batch axes fit neither batch nor heads is returned unchanged; the engine raises the error.

    Args:
        own_axes: number of leading batch axes of the array.
        batch_axes: as in `align_batch`.
        groups: as in `align_batch`.
        per_head: as in `align_batch`.
    """
    if own_axes <= 0:
        return x
    shape = tuple(x.shape)
    lead, core = shape[:own_axes], shape[own_axes:]
    if own_axes == 1 and (per_head or batch_axes == 0):
        lead = (1,) * batch_axes + lead
    elif own_axes == batch_axes:
        lead = (*lead, 1)
    elif own_axes != batch_axes + 1:
        return x
    if groups is not None:
        lead = (*lead[:-1], 1, 1) if lead[-1] == 1 else (*lead[:-1], *groups)
    lead = (*lead, *core)
    return x if lead == shape else cast("Tensor", x).reshape(lead)
