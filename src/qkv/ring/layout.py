"""Division of a sequence into chunks, and the assignment of the chunks to the ranks of a group.

    contiguous    n chunks,  rank r holds chunk r
    balanced      2n chunks, rank r holds chunks r and 2n − 1 − r, so that under a causal mask all ranks compute equally
                  many pairs: chunk i has about i + 1 visible chunks, and (r + 1) + (2n − r) does not depend on r

If the number of chunks does not divide the length, the first chunks are longer by 1.

Source of the balanced order: Brandon et al. (2023), Striped attention, https://arxiv.org/abs/2311.09431, and the
zigzag order of https://github.com/zhuzilin/ring-flash-attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from qkv.core.checks import describe
from qkv.errors import OptionError, ShapeError

Limits = tuple[int, int]
"""Index of the first element of a range, and one past the index of the last."""
Order = Literal["contiguous", "balanced"]


@dataclass(frozen=True)
class Layout:
    """Chunks of a sequence and the ranks that hold them.

    Attributes:
        length: number of elements of the whole sequence.
        ranks: number of ranks.
        order: which rank holds which chunks.

    Example:
        >>> Layout(10, 2, "balanced").chunks(1)
        [(3, 6), (6, 8)]
    """

    length: int
    ranks: int
    order: Order

    @classmethod
    def of_lengths(cls, name: str, lengths: list[int], order: Order) -> Layout:
        """Return the layout of a sequence of which each rank holds the given number of elements.

        Raises:
            ShapeError: the ranks do not hold the numbers of elements that the order assigns to them.
        """
        layout = cls(sum(lengths), len(lengths), order)
        expected = [layout.local_length(rank) for rank in range(len(lengths))]
        if expected != lengths:
            raise ShapeError(
                f"the ranks must hold {expected} rows of {name} in {order} order, got {lengths}. Divide the whole "
                f'{name} with qkv.distributed.shard(…, order="{order}").'
            )
        return layout

    def chunks(self, rank: int) -> list[Limits]:
        """Return the ranges of the sequence that a rank holds, in the order in which it holds them."""
        if self.order == "contiguous":
            return [self._chunk(rank, self.ranks)]
        return [self._chunk(n, 2 * self.ranks) for n in (rank, 2 * self.ranks - 1 - rank)]

    def local_length(self, rank: int) -> int:
        """Return the number of elements that a rank holds."""
        return sum(stop - start for start, stop in self.chunks(rank))

    def local_chunks(self, rank: int) -> list[Limits]:
        """Return the ranges of a rank's own array in which it holds its chunks."""
        found, start = [], 0
        for first, last in self.chunks(rank):
            found.append((start, start + last - first))
            start += last - first
        return found

    def _chunk(self, number: int, count: int) -> Limits:
        size, longer = divmod(self.length, count)
        start = number * size + min(number, longer)
        return start, start + size + (number < longer)


def require_order(order: object) -> Order:
    """Return `order`, or raise an `OptionError` if it is not the name of an order."""
    for known in get_args(Order):
        if order == known:
            return known  # type: ignore[no-any-return]
    raise OptionError(f'order must be "contiguous" or "balanced", got {describe(order)}. Omit it for "contiguous".')
