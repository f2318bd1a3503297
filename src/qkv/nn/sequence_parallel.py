"""Multi-head attention over a sequence whose parts are held by the ranks of a process group."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from qkv import distributed
from qkv.core.map_batch import Groups, align_array, align_batch
from qkv.core.typing import Float, Int
from qkv.errors import RefusedError
from qkv.masks import Mask
from qkv.masks.base import and_masks
from qkv.nn import head_layout
from qkv.nn.protocols import KeyValue
from qkv.ring.layout import Layout, Order
from qkv.ring.transport import open_ring
from qkv.scores import Biased

if TYPE_CHECKING:
    from qkv.nn.multihead import MultiHeadAttention


def attend_to_shards(
    module: MultiHeadAttention,
    query: Float[Tensor, "*#batch q width"],
    key: Float[Tensor, "*#batch k key_width"] | KeyValue | None,
    value: Float[Tensor, "*#batch k value_width"] | None,
    mask: Mask | None,
    bias: Float[Tensor, "*_ #q all_keys"] | None,
    others: dict[str, object],
) -> tuple[Float[Tensor, "*batch_heads q head_value_width"], Groups]:
    """Return the outputs of the heads for this rank's queries over the keys of all ranks, and the axes of the heads.

    Raises:
        RefusedError: an option or argument needs the whole sequence on one rank.
    """
    options = {
        "talking_heads": module.logit_mix is not None,
        "learned_key": module.extra_key is not None,
        "zero_key": module.zero_key,
        "kernel": module.kernel is not None,
    }
    for name, given in {**options, **others}.items():
        if given is not None and given is not False:
            raise RefusedError(
                f"{name} must not be used with process_group, because the keys of a call are on several ranks. Omit "
                "one of them."
            )
    queries = module.queries(query)
    keys, values = key if isinstance(key, KeyValue) else module.key_value(query if key is None else key, value)
    order = cast("Order", module.order)
    if module.positions is not None:
        places = [_indices(x, module.process_group, order) for x in (queries, keys)]
        (rows, q), (columns, k) = places
        # The last query and the last key have the same position, as in `qkv.attend`.
        queries, keys = module.positions.rotate(queries, keys, rows + (k - q), columns)
    axes = max(queries.ndim, keys.ndim) - 3
    groups = head_layout.head_groups(module.heads, module.key_heads, False)
    score, normalizer = module._parts(axes, groups)
    if bias is not None:
        score = Biased(score, align_array(bias, bias.ndim - 2, axes, groups, False))
    output = distributed.attend(
        *cast("tuple[Tensor, Tensor, Tensor]", head_layout.group_heads(queries, keys, values, groups, None)),
        group=module.process_group,
        order=order,
        score=score,
        normalizer=normalizer,
        mask=align_batch(and_masks(module.mask(), mask), axes, groups, False),
        dropout=module.dropout if module.training else 0.0,
        memory=module.memory,
    )
    return cast("Tensor", output), groups


def _indices(x: Float[Tensor, "*_ n width"], group: object, order: Order) -> tuple[Int[Tensor, " n"], int]:
    """Return the indices of this rank's rows in the whole sequence, and its length."""
    ring = open_ring(group)
    own = torch.tensor([x.shape[-2]], device=x.device)
    found = [torch.empty_like(own) for _ in range(ring.size)]
    torch.distributed.all_gather(found, own, group=ring.group)
    layout = Layout.of_lengths("query or key", [int(length) for length in found], order)
    chunks = layout.chunks(ring.rank)
    return torch.cat([torch.arange(*chunk, device=x.device) for chunk in chunks]), layout.length
