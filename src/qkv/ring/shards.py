"""The part of a sharded call that one rank holds, and its calls of one chunk of queries and one chunk of keys each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

from qkv.core.equation import BoundCall, TorchCall
from qkv.core.positions import Positions
from qkv.core.tile import Centre, Tile, take_range
from qkv.core.typing import Array, Num, Shaped, Tensor
from qkv.kernels.runtime.isolated_autograd import isolated_autograd, projects_nothing
from qkv.kernels.runtime.tile_sizes import TileSizes
from qkv.plan.precise_call import lift_suffices
from qkv.ring.layout import Layout, Limits
from qkv.ring.local_parts import local_mask, slice_part, travels
from qkv.ring.transport import Pending, Ring

Call = TypeVar("Call", bound=BoundCall)


def travelling(call: BoundCall, with_value: bool = True) -> list[Any]:
    """Return the arrays that move around the ring: keys, values, and the arrays of parts with one row per key."""
    found = [call.key, call.value] if with_value else [call.key]
    for part in (call.score, call.mask):
        if part is not None:
            found += [x for x, names in part.array_fields() if travels(names)]
    return found


def received(call: Call, arrays: Sequence[Shaped[Array, "*_"]], with_value: bool = True) -> Call:
    """Return the call with the travelling arrays of some rank in place of those of this rank."""
    queue = list(arrays)
    key = queue.pop(0)
    value = queue.pop(0) if with_value else call.value
    score = call.score._map(lambda x, names: queue.pop(0) if travels(names) else x)
    mask = None
    if call.mask is not None:
        mask = call.mask._map(lambda x, names: queue.pop(0) if travels(names) else x)
    return dataclasses.replace(call, key=key, value=value, score=score, mask=mask)


class Block(NamedTuple):
    """Call of one chunk of the queries of this rank and one chunk of the keys of some rank.

    Attributes:
        number: number of the chunk of queries among those of this rank.
        rows: range of the queries in the arrays of this rank.
        cols: range of the keys in the arrays of the rank that holds them.
        whole_cols: range of the keys in the whole sequence.
        call: the call, in which indices count from 0.
    """

    number: int
    rows: Limits
    cols: Limits
    whole_cols: Limits
    call: TorchCall


@dataclass(frozen=True)
class Shards:
    """Layouts of the sequences and tile sizes of a sharded call.

    Attributes:
        ring: the ranks.
        queries: layout of the queries.
        keys: layout of the keys.
        offset: position of the first query of the whole sequence.
        sizes: sizes of the tiles of a chunk of queries and a chunk of keys.
    """

    ring: Ring
    queries: Layout
    keys: Layout
    offset: int
    sizes: TileSizes

    def own_rows(self) -> list[Limits]:
        """Return the range of each chunk of queries in the arrays of this rank."""
        return self.queries.local_chunks(self.ring.rank)

    def visits(
        self, call: TorchCall, with_value: bool = True
    ) -> Iterator[tuple[int, list[Shaped[Tensor, "*_"]], list[Block]]]:
        """Yield, for each rank in the order of the ring, its number, its tensors and the visible blocks of its keys.

        The tensors of the next rank travel while the caller computes.

        Args:
            call: the call of this rank.
            with_value: whether the values travel too; otherwise the blocks have the values of this rank.
        """
        ring, tensors = self.ring, travelling(call, with_value)
        for step in range(ring.size):
            owner = (ring.rank - step) % ring.size
            pending: Pending | None = None
            if step < ring.size - 1:
                pending = ring.send_to_next(tensors, self.shapes(call, tensors, owner - 1, with_value))
            yield owner, tensors, list(self._blocks(call, tensors, owner, with_value))
            if pending is not None:
                tensors = pending.wait()

    def shapes(
        self, call: TorchCall, tensors: Sequence[Shaped[Tensor, "*_"]], owner: int, with_value: bool = True
    ) -> list[tuple[int, ...]]:
        """Return the shapes of the travelling tensors of a rank, which differ in the number of keys alone."""
        length = self.keys.local_length(owner % self.ring.size)
        axes = [-2, -2] if with_value else [-2]
        for part in (call.score, call.mask):
            if part is not None:
                fields = [names for _, names in part.array_fields()]
                axes += [names.index("k") - len(names) for names in fields if names and travels(names)]
        found = []
        for x, axis in zip(tensors, axes, strict=True):
            shape = list(x.shape)
            shape[axis] = length
            found.append(tuple(shape))
        return found

    def _blocks(
        self, call: TorchCall, tensors: Sequence[Shaped[Tensor, "*_"]], owner: int, with_value: bool
    ) -> Iterator[Block]:
        whole = received(call, tensors, with_value)
        own = zip(self.own_rows(), self.queries.chunks(self.ring.rank), strict=True)
        for number, (rows, (first_query, _)) in enumerate(own):
            for cols, whole_cols in zip(self.keys.local_chunks(owner), self.keys.chunks(owner), strict=True):
                block = self._block(whole, rows, cols, first_query, whole_cols, with_value)
                if block is not None:
                    yield Block(number, rows, cols, whole_cols, block)

    def _block(
        self, call: TorchCall, rows: Limits, cols: Limits, first_query: int, whole_cols: Limits, with_value: bool
    ) -> TorchCall | None:
        """Return the call of a chunk of queries and a chunk of keys, or None if the mask excludes all its pairs."""
        q, k, first_key = rows[1] - rows[0], cols[1] - cols[0], whole_cols[0]
        if not (q and k):
            return None
        positions = Positions(query_start=self.offset + first_query - first_key)
        tile = Tile.whole(q, k, call.batch, positions, seed=call.tile.seed, first_pair=(first_query, first_key))
        mask = call.mask
        if mask is not None:
            mask = local_mask(
                mask,
                first_query,
                first_key,
                lambda part: slice_part(part, rows, cols, whole_cols),
                lambda part: part.bind(call.value, call.batch),
            )
            coverage = mask.coverage(tile)
            if coverage == "none":
                return None
            mask = None if coverage == "all" else mask
        return dataclasses.replace(
            call,
            query=take_range(call.query, rows),
            key=take_range(call.key, cols),
            value=take_range(call.value, cols) if with_value else call.value[..., :0, :],
            score=slice_part(call.score, rows, cols, whole_cols),
            mask=mask,
            tile=tile,
        )

    def precise(self, call: TorchCall) -> TorchCall:
        """Return the call with a score of differences if products of the keys of any rank would lose digits."""
        if not call.score.cancels:
            return call
        centre = self._mean_centre(call)  # on every rank, also on those without rows
        empty = 0 in (*call.query.shape, *call.key.shape)
        suffices = empty or (call.finite_sides and lift_suffices(call.score, call.query, call.key, centre) is True)
        failed = self.ring.sum(call.key.new_tensor([0.0 if suffices else 1.0]))
        return call if failed.item() == 0 else dataclasses.replace(call, score=call.score.by_differences())

    def project(self, call: TorchCall) -> TorchCall:
        """Return a call whose query and key are replaced by their projections, each computed by the rank that holds it.

        Data that is not finite is not projected, so that it does not reach other rows through a mean.
        """
        if not call.finite_sides:
            return call
        if projects_nothing(call.score):
            return call.with_projections(call.query, call.key)
        centre = self._mean_centre(call)

        def projections(
            query: Num[Tensor, "*#batch q query_width"],
            key: Num[Tensor, "*#batch k key_width"],
            *arrays: Shaped[Tensor, "*_"],
        ) -> tuple[Num[Tensor, "*_ q projected_query_width"], Num[Tensor, "*_ k projected_key_width"]]:
            import torch

            score = call.score.replace_arrays(arrays)
            lefts, rights = [], []
            rank = self.ring.rank
            own = zip(self.own_rows(), self.queries.chunks(rank), strict=True)
            others = zip(self.keys.local_chunks(rank), self.keys.chunks(rank), strict=True)
            for (rows, first), (cols, second) in zip(own, others, strict=True):
                tile = Tile(
                    (0, rows[1] - rows[0]),
                    (0, cols[1] - cols[0]),
                    self.queries.length,
                    self.keys.length,
                    call.batch,
                    Positions(query_start=self.offset),
                    centre=centre,
                    dynamic_start=(first[0], second[0]),
                )
                part = slice_part(score, rows, cols, second)
                left, right = part.project(take_range(query, rows), take_range(key, cols), tile)
                lefts.append(cast("Tensor", left))
                rights.append(cast("Tensor", right))
            return torch.cat(lefts, dim=-2), torch.cat(rights, dim=-2)

        tensors = cast("list[Tensor]", [call.query, call.key, *call.score.arrays()])
        return call.with_projections(*isolated_autograd(projections, *tensors))

    def _mean_centre(self, call: BoundCall) -> Centre:
        """Return the reference point of the score for the keys of all ranks, the mean of those of each rank."""
        import torch

        share = call.key.shape[-2] / max(1, self.keys.length)
        with torch.no_grad():
            return self._sum_of_shares(call.score.centre(call.key), share)

    def _sum_of_shares(self, centre: Centre, share: float) -> Centre:
        if isinstance(centre, tuple):
            return tuple(self._sum_of_shares(each, share) for each in centre)
        return None if centre is None else self.ring.sum((cast("Tensor", centre) * share).contiguous())
