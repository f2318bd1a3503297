"""Communication of the ranks of a `torch.distributed` group: agreement on a call, and tensors that move around a ring.

Tensors are sent to the next rank and received from the one before, while the rank computes. The same code runs on
`gloo` (CPU) and `nccl` (GPU).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qkv.core.checks import describe
from qkv.core.typing import Shaped, Tensor
from qkv.errors import KindError, OptionError, QkvError, RefusedError

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


@dataclass(frozen=True)
class Ring:
    """The ranks of a process group, in a ring.

    Attributes:
        group: the process group.
        rank: number of this rank in the group.
        size: number of ranks.
    """

    group: dist.ProcessGroup
    rank: int
    size: int

    def agree(
        self, numbers: Sequence[int], description: str, error: QkvError | None, device: torch.device
    ) -> list[list[int]]:
        """Return the numbers that each rank gave, after checking that all ranks make the same call.

        Args:
            numbers: integers that may differ between ranks, as many on each rank.
            description: text of what must be equal on all ranks.
            error: error of this rank, which then fails on all ranks instead of letting them wait; None without one.
            device: device on which the group communicates.

        Raises:
            QkvError: `error`, or a `RefusedError` if another rank has one or makes another call.
        """
        import torch
        import torch.distributed as dist

        digest = int.from_bytes(hashlib.sha256(description.encode()).digest()[:7], "big")
        own = torch.tensor([int(error is not None), digest, *numbers], dtype=torch.int64, device=device)
        found = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(found, own, group=self.group)
        rows = [x.tolist() for x in found]
        if error is not None:
            raise error
        failed = [rank for rank, row in enumerate(rows) if row[0]]
        if failed:
            raise RefusedError(
                f"the call must succeed on all ranks, got an error on rank {failed[0]}. See its message."
            )
        if len({row[1] for row in rows}) > 1:
            texts: list[str] = [""] * self.size
            dist.all_gather_object(texts, description, group=self.group)
            other = next(rank for rank, text in enumerate(texts) if text != texts[0])
            raise RefusedError(
                f"all ranks must make the same call, got {texts[0]} on rank 0 and {texts[other]} on rank {other}. Pass "
                "the same score, normalizer, mask and widths on all ranks; only the number of rows may differ."
            )
        return [row[2:] for row in rows]

    def send_to_next(
        self, tensors: Sequence[Shaped[Tensor, "*_"]], shapes: Sequence[tuple[int, ...]], first_tag: int = 0
    ) -> Pending:
        """Start to send tensors to the next rank and to receive as many from the one before.

        Args:
            tensors: the tensors.
            shapes: shapes of the tensors that are received, which have the same dtypes.
            first_tag: number of the first message, by which messages in flight are told apart.
        """
        import torch.distributed as dist

        sent = [x.contiguous() for x in tensors]
        received = [x.new_empty(shape) for x, shape in zip(sent, shapes, strict=True)]
        to, source = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        peers = [dist.get_global_rank(self.group, rank) for rank in (to, source)]
        operations = []
        for tag, (x, y) in enumerate(zip(sent, received, strict=True), start=first_tag):
            operations.append(dist.P2POp(dist.isend, _bytes(x), peers[0], self.group, tag))
            operations.append(dist.P2POp(dist.irecv, _bytes(y), peers[1], self.group, tag))
        return Pending(dist.batch_isend_irecv(operations), sent, received)

    def maximum(self, x: Shaped[Tensor, "*_"]) -> Shaped[Tensor, "*_"]:
        """Return the largest value on any rank of each element of a tensor, which is changed in place."""
        import torch.distributed as dist

        dist.all_reduce(x, dist.ReduceOp.MAX, group=self.group)
        return x

    def sum(self, x: Shaped[Tensor, "*_"]) -> Shaped[Tensor, "*_"]:
        """Return the sum over all ranks of each element of a tensor, which is changed in place."""
        import torch.distributed as dist

        dist.all_reduce(x, group=self.group)
        return x


@dataclass
class Pending:
    """Tensors on their way between two ranks.

    Attributes:
        requests: the messages.
        sent: tensors that are sent, which must not be changed until `wait` returns.
        received: tensors that `wait` returns.
    """

    requests: list[dist.Work]
    sent: list[Tensor]
    received: list[Tensor]

    def wait(self) -> list[Shaped[Tensor, "*_"]]:
        """Return the received tensors when all messages have arrived."""
        for request in self.requests:
            request.wait()
        self.sent = []
        return self.received


def open_ring(group: object) -> Ring:
    """Return the ring of a process group, of a device mesh with one axis, or of all processes for None.

    Raises:
        OptionError: `torch.distributed` is not initialized, or this process does not belong to the group.
        KindError: `group` is of another type.
    """
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        raise OptionError(
            "torch.distributed must be initialized for sharded attention, got no process group. Call "
            'torch.distributed.init_process_group("gloo") on a CPU or ("nccl") on GPUs first.'
        )
    if group is None:
        group = dist.group.WORLD
    elif callable(get_group := getattr(group, "get_group", None)):
        group = get_group()
    if not isinstance(group, dist.ProcessGroup):
        raise KindError(
            "group must be a torch.distributed process group, a device mesh with one axis, None, or in JAX the name of "
            f"a mesh axis, got {describe(group)}. Pass the result of torch.distributed.new_group."
        )
    rank = dist.get_rank(group)
    if rank < 0:
        raise OptionError("group must contain this process, got a group of other ranks. Call it only on its ranks.")
    return Ring(group, rank, dist.get_world_size(group))


def _bytes(x: Shaped[Tensor, "*_"]) -> Shaped[Tensor, "*_"]:
    """Return a view of booleans as bytes, which every backend sends."""
    import torch

    return x.view(torch.uint8) if x.dtype == torch.bool else x
