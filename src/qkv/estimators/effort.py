"""Presets of the options of the attention estimators, from quick to best."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

SMALL_TABLE = 256
"""Tables of fewer rows have an ensemble that holds out each row about once; a member alone holds out too few."""
_FAST_TABLE = 512
_LARGE_TABLE = 4000


@dataclass(frozen=True)
class Effort:
    """Values of the options that are "auto".

    Attributes:
        members: maximum size of the ensemble.
        small_members: size of the ensemble of tables of less than 256 rows.
        ensemble_rows: maximum number of rows of all members together.
        hidden: hidden units per layer of the network.
        candidates: rows from which a batch is predicted; 0 means the rows of the batch.
        network_rate: learning rate with a network, of classes and of tables of less than 512 rows.
        fast_rate: learning rate with a network, of numbers in larger tables.
        small_steps: maximum number of steps for tables of less than 256 rows.
        min_steps: least maximum number of steps.
        max_steps: largest maximum number of steps, unless one epoch has more.
        large_steps: least maximum number of steps of larger batches than `max_batch`.
        batch_part: rows of the table per row of a batch.
        min_batch: smallest batch.
        max_batch: largest batch of tables of less than 4,000 rows, and of classes.
        large_batch: batch of larger tables of numbers.
        epochs: passes over the rows, within the limits of the number of steps.
        total_steps: steps after which no further member is trained, of batches of at most `max_batch` rows of numbers;
            infinite if all are trained at once.
        class_steps: the same for classes.
        validation_rows: maximum number of held-out rows that are evaluated, from twice as many rows.
        search_pairs: maximum number of pairs of rows per bandwidth, when the bandwidth is chosen.
    """

    members: int
    small_members: int
    ensemble_rows: int
    hidden: int
    candidates: int
    network_rate: float
    fast_rate: float
    small_steps: int
    min_steps: int
    max_steps: int
    large_steps: int
    batch_part: int
    min_batch: int
    max_batch: int
    large_batch: int
    epochs: int
    total_steps: float
    class_steps: float
    validation_rows: int
    search_pairs: float

    def rate(self, rows: int, classes: bool) -> float:
        """Return the learning rate with a network for a table of `rows` rows of numbers or classes."""
        return self.network_rate if classes or rows < _FAST_TABLE else self.fast_rate

    def batch_size(self, rows: int, classes: bool) -> int:
        """Return the number of rows of a batch for a table of `rows` rows of numbers or classes."""
        if rows >= _LARGE_TABLE and not classes:
            return self.large_batch
        return max(self.min_batch, min(self.max_batch, rows // self.batch_part))

    def steps(self, rows: int, batch: int) -> int:
        """Return the maximum number of steps for a table: some epochs within the limits, and at least one."""
        if rows < SMALL_TABLE:
            return self.small_steps
        one_epoch = -(-rows // batch) if self.candidates else 0
        # Steps of larger batches take longer, and fewer are needed.
        fewest = self.min_steps if batch <= self.max_batch else self.large_steps
        return max(fewest, min(self.max_steps, self.epochs * rows // batch), one_epoch)

    def most_steps(self, rows: int, batch: int, classes: bool) -> float:
        """Return the steps after which no further member is trained; infinite for small tables."""
        if rows < SMALL_TABLE:
            return math.inf
        most = self.class_steps if classes else self.total_steps
        return most * min(1.0, self.max_batch / batch)


_QUICK = Effort(
    members=1,
    small_members=4,
    ensemble_rows=64_000,
    hidden=64,
    candidates=0,
    network_rate=1e-2,
    fast_rate=2e-2,
    small_steps=150,
    min_steps=150,
    max_steps=225,
    large_steps=150,
    batch_part=4,
    min_batch=64,
    max_batch=256,
    large_batch=256,
    epochs=20,
    total_steps=150,
    class_steps=150,
    validation_rows=512,
    search_pairs=4e6,
)
_STANDARD = replace(
    _QUICK,
    members=3,
    small_members=8,
    ensemble_rows=1_000_000,
    small_steps=250,
    min_steps=500,
    max_steps=900,
    large_steps=350,
    batch_part=2,
    max_batch=512,
    large_batch=1024,
    epochs=28,
    total_steps=700,
    class_steps=2100,
    validation_rows=1024,
    search_pairs=1e7,
)
_BEST = replace(
    _STANDARD,
    members=8,
    ensemble_rows=64_000,
    hidden=128,
    candidates=3072,
    network_rate=3e-3,
    fast_rate=3e-3,
    small_steps=600,
    min_steps=600,
    max_steps=1000,
    large_steps=600,
    batch_part=4,
    min_batch=32,
    large_batch=512,
    epochs=30,
    total_steps=math.inf,
    class_steps=math.inf,
    search_pairs=4e8,
)
EFFORTS = {"quick": _QUICK, "standard": _STANDARD, "best": _BEST}
"""The presets by name. The time of a fit and the errors are compared in docs/estimators.md."""
