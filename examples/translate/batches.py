"""Batches of sentences of similar length, in an order determined by a seed and an epoch number.

An interrupted training resumes with the next batch; only two numbers need to be saved for this.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from examples.translate.vocabulary import BEGIN, PAD

if TYPE_CHECKING:
    import torch

__all__ = ["Batch", "Examples", "padded"]

_POOL = 64
"""Number of batches sorted by length together: large enough for little padding, small enough for mixed order."""


@dataclass(frozen=True)
class Batch:
    """Encoded sentences, padded.

    Attributes:
        source: `(batch, source length)`, each ending in END.
        lengths: lengths of the sources, `(batch,)`.
        given: input of the decoder at each step, `(batch, length)`: BEGIN and the translation.
        wanted: targets of each step: the translation and END.
    """

    source: "torch.Tensor"
    lengths: "torch.Tensor"
    given: "torch.Tensor"
    wanted: "torch.Tensor"

    @property
    def tokens(self) -> int:
        """Number of target subwords without padding."""
        return int((self.wanted != PAD).sum())


def padded(rows: Sequence[Sequence[int]]) -> "tuple[torch.Tensor, torch.Tensor]":
    """Return rows of numbers as one padded array, and their lengths."""
    import torch

    lengths = torch.tensor([len(row) for row in rows])
    array = torch.full((len(rows), int(lengths.max())), PAD)
    for place, row in zip(array, rows, strict=True):
        place[: len(row)] = torch.tensor(row)
    return array, lengths


class Examples:
    """Encoded sentence pairs.

    Args:
        sources, targets: each ending in END.
        tokens: maximum number of tokens in a batch, including padding, on the longer side.
    """

    def __init__(self, sources: Sequence[list[int]], targets: Sequence[list[int]], tokens: int) -> None:
        self._sources, self._targets, self._tokens = sources, targets, tokens
        self._lengths = np.array([(len(b), len(a)) for a, b in zip(sources, targets, strict=True)])

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self._sources)

    def epoch(self, seed: int, number: int) -> list[np.ndarray]:
        """Return the rows of each batch of one epoch, determined by the seed and the epoch number."""
        draw = np.random.default_rng([seed, number])
        order = draw.permutation(len(self))
        # About the number of rows in the batches that are sorted together.
        typical = max(1, self._tokens // max(1, int(self._lengths.max(1).mean())))
        pools = [order[start : start + _POOL * typical] for start in range(0, len(order), _POOL * typical)]
        batches = [batch for pool in pools for batch in self._by_length(pool)]
        return [batches[place] for place in draw.permutation(len(batches))]

    def in_order(self) -> list[np.ndarray]:
        """Return the rows of each batch, shortest sentences first."""
        return list(self._by_length(np.arange(len(self))))

    def batch(self, rows: np.ndarray) -> Batch:
        """Return the batch of the given pairs."""
        source, lengths = padded([self._sources[row] for row in rows])
        wanted, _ = padded([self._targets[row] for row in rows])
        given = wanted.roll(1, 1)
        given[:, 0] = BEGIN
        # BEGIN replaces the column that was rolled to the front; END is read in shorter rows where no target is.
        return Batch(source, lengths, given, wanted)

    def _by_length(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        sizes = self._lengths[rows]
        rows = rows[np.lexsort((sizes[:, 1], sizes[:, 0]))]
        begin, longest = 0, 0
        for end, size in enumerate(self._lengths[rows].max(1)):
            longest = max(longest, size)
            if longest * (end + 1 - begin) > self._tokens and end > begin:
                yield rows[begin:end]
                begin, longest = end, size
        if begin < len(rows):
            yield rows[begin:]
