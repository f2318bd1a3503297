"""Attention over a sequence that is divided among processes or devices (sequence or context parallelism).

attend    the output of this rank's queries over the keys of all ranks
shard     this rank's part of a whole array
gather    the whole array from the parts of all ranks
indices   the indices of this rank's rows in the whole sequence
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from qkv.core.arrays import as_array
from qkv.core.positions import Positions
from qkv.core.threefry import Seed
from qkv.core.typing import Array, ArrayLike, Num, Tensor
from qkv.masks import Mask
from qkv.normalizers import Normalizer
from qkv.plan.grouped_heads import split_heads
from qkv.plan.spec import Spec
from qkv.ring.layout import Layout, Order, require_order
from qkv.scores import Score

if TYPE_CHECKING:
    from qkv.ring.transport import Ring

__all__ = ["attend", "gather", "indices", "shard"]


def attend(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    group: object = None,
    order: Order = "contiguous",
    score: Score | None = None,
    normalizer: Normalizer | None = None,
    mask: Mask | None = None,
    positions: Positions | None = None,
    dropout: float = 0.0,
    seed: Seed | None = None,
    memory: int | str | None = None,
    enable_gqa: bool = False,
) -> Num[Array, "*batch q value_width"]:
    """Return the output of this rank's queries, which attend to the keys of all ranks of a group.

    All ranks call the function together, each with its own part of the sequence. Keys and values move around a ring
    of ranks while each rank merges partial results, so that the memory of a rank is that of its part. The outputs and
    gradients of all ranks together are those of `qkv.attend` on the whole sequence:

        attend(shard(query), shard(key), shard(value))  =  shard(qkv.attend(query, key, value))

    In PyTorch a gradient flows to the arrays of each rank from the outputs of all ranks. Parameters that all ranks
    share, such as the weights of a score, receive the part of their gradient that comes from this rank's queries: sum
    it over the group, as for any data-parallel model. All ranks must run backward. Within `jax.shard_map`, JAX sums
    the gradients of arrays that are not divided, and all devices hold equally many rows.

    Arrays of masks and scores are divided like query and key: those with one element per query or per key by `shard`,
    those with one element per pair along the queries alone. `Lengths`, `Prefix` and functions of positions
    (`masks.Custom`) refer to the whole sequence and are equal on all ranks.

    Args:
        query: this rank's queries `(*batch, q, width)`.
        key: this rank's keys `(*batch, k, width)`.
        value: this rank's values `(*batch, k, value_width)`.
        group: a `torch.distributed` process group (gloo or NCCL) or a device mesh with one axis; None: all processes.
            In JAX, within `jax.shard_map`, the name of the mesh axis along which the sequence is divided.
        order: "contiguous": rank r of n holds the r-th of n chunks. "balanced": it holds chunks r and 2n − 1 − r of 2n,
            with which all ranks do the same work under a causal mask.
        score: as in `qkv.attend`.
        normalizer: Softmax, Sum, Mean, Identity, Sigmoid, Sparsemax or Entmax15.
        mask: mask of `qkv.masks`, see above.
        positions: as in `qkv.attend`, of the whole sequence.
        dropout: as in `qkv.attend`.
        seed: as in `qkv.attend`, the same on all ranks; None: drawn by the first rank.
        memory: budget for scratch memory of each rank, as in `qkv.attend`.
        enable_gqa: as in `qkv.attend`.

    Returns:
        Output of this rank's queries, `(*batch, q, value_width)`.

    Raises:
        ShapeError: the ranks do not hold the numbers of rows that the order assigns to them, or arrays do not match.
        RefusedError: the normalizer or mask cannot be sharded, the ranks make different calls, or another rank raised
            an error.
        OptionError: `torch.distributed` is not initialized, or an option is unknown.
        GradientError: a second derivative is computed.
        QkvError: the call is invalid; see `qkv.attend`.

    Example:
        >>> import torch, torch.distributed as dist, qkv
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> part = qkv.distributed.shard(x)
        >>> output = qkv.distributed.attend(part, part, part, mask=qkv.masks.Causal())
        >>> bool(torch.allclose(qkv.distributed.gather(output), qkv.attend(x, x, x, mask=qkv.masks.Causal())))
        True
        >>> dist.destroy_process_group()
    """
    order = require_order(order)
    spec: Spec = Spec(score, normalizer, mask, positions, dropout)
    groups = None
    if enable_gqa:
        (query, key, value), spec, _, groups = split_heads(query, key, value, spec, ())
    sides = [as_array(query), as_array(key), as_array(value)]
    if isinstance(group, str):
        from qkv.ring.jax_ring import attend_mapped

        output = attend_mapped(sides[0], sides[1], sides[2], spec, group, order, seed, memory)
    else:
        from qkv.ring.attend import attend_sharded

        tensors = cast("list[Tensor]", sides)
        output = attend_sharded(tensors[0], tensors[1], tensors[2], spec, group, order, seed, memory)
    return output if groups is None else groups.merge(output)


def shard(array: ArrayLike, *, group: object = None, order: Order = "contiguous", axis: int = -2) -> ArrayLike:
    """Return the part of a whole PyTorch tensor that this rank holds.

    Args:
        array: the whole tensor, the same on all ranks; the result is differentiable.
        group: as in `attend`, of PyTorch.
        order: as in `attend`.
        axis: axis of the sequence; −2 for `(*batch, length, width)`, and −1 for a mask `(*batch, length)`.

    Raises:
        OptionError: `torch.distributed` is not initialized, or the order is unknown.

    Example:
        >>> import torch, torch.distributed as dist
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> shard(torch.arange(4.0)[:, None]).ravel()  # of rank 1 of two: tensor([2., 3.])
        tensor([0., 1., 2., 3.])
        >>> dist.destroy_process_group()
    """
    import torch

    ring, length = _ring(group), array.shape[axis]
    chunks = Layout(length, ring.size, require_order(order)).chunks(ring.rank)
    parts = [array.narrow(axis, start, stop - start) for start, stop in chunks]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=axis)


def gather(array: ArrayLike, *, group: object = None, order: Order = "contiguous", axis: int = -2) -> ArrayLike:
    """Return the whole PyTorch tensor whose parts the ranks of a group hold, on every rank, without a gradient.

    Args:
        array: this rank's part.
        group: as in `attend`, of PyTorch.
        order: as in `attend`.
        axis: axis of the sequence.

    Raises:
        ShapeError: the ranks do not hold the numbers of rows that the order assigns to them.
        OptionError: `torch.distributed` is not initialized, or the order is unknown.

    Example:
        >>> import torch, torch.distributed as dist
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> gather(torch.ones(3, 2)).shape  # of n ranks with three rows each: (3 n, 2)
        torch.Size([3, 2])
        >>> dist.destroy_process_group()
    """
    import torch
    import torch.distributed as dist

    ring, order = _ring(group), require_order(order)
    own = torch.tensor([array.shape[axis]], device=array.device)
    found = [torch.empty_like(own) for _ in range(ring.size)]
    dist.all_gather(found, own, group=ring.group)
    lengths = [int(x) for x in found]
    layout = Layout.of_lengths("array", lengths, order)
    # Parts differ in length by at most 2, and `all_gather` needs equal shapes.
    moved = array.detach().movedim(axis, 0)
    padded = moved.new_zeros((max(lengths), *moved.shape[1:]))
    padded[: len(moved)] = moved
    parts = [torch.empty_like(padded) for _ in range(ring.size)]
    dist.all_gather(parts, padded, group=ring.group)
    whole = moved.new_empty((layout.length, *moved.shape[1:]))
    for rank, part in enumerate(parts):
        for (start, stop), (first, last) in zip(layout.local_chunks(rank), layout.chunks(rank), strict=True):
            whole[first:last] = part[start:stop]
    return whole.movedim(0, axis)


def indices(length: int, *, group: object = None, order: Order = "contiguous") -> Tensor:
    """Return the indices in the whole sequence of the rows that this rank holds, for example to encode positions.

    Args:
        length: length of the whole sequence.
        group: as in `attend`, of PyTorch.
        order: as in `attend`.

    Returns:
        Tensor of integers `(n,)`.

    Raises:
        OptionError: `torch.distributed` is not initialized, or the order is unknown.

    Example:
        >>> import torch, torch.distributed as dist
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> indices(4)  # of rank 1 of two: tensor([2, 3])
        tensor([0, 1, 2, 3])
        >>> dist.destroy_process_group()
    """
    import torch

    ring = _ring(group)
    chunks = Layout(length, ring.size, require_order(order)).chunks(ring.rank)
    return torch.cat([torch.arange(*chunk) for chunk in chunks])


def _ring(group: object) -> Ring:
    from qkv.ring.transport import open_ring

    return open_ring(group)
