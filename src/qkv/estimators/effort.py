"""Presets of the options of the attention estimators, from quick to best."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["EFFORTS", "SMALL_TABLE", "Effort"]

SMALL_TABLE = 256
"""Tables of fewer rows have an ensemble that holds out each row about once; a member alone holds out too few."""
_LARGE_TABLE = 16_000


@dataclass(frozen=True)
class Effort:
    """Values of the options that are "auto".

    Attributes:
        members: maximum size of the ensemble.
        small_members: size of the ensemble of tables of less than 256 rows.
        ensemble_rows: maximum number of rows of all members together.
        hidden: hidden units per layer of the network.
        candidates: rows from which a batch is predicted; 0 means the rows of the batch.
        network_rate: learning rate with a network.
        min_steps: least maximum number of steps.
        small_steps: maximum number of steps for tables of less than 256 rows.
        max_steps: largest maximum number of steps, unless one epoch has more.
        batch_part: rows of the table per row of a batch.
        min_batch: smallest batch.
        max_batch: largest batch of tables of less than 16,000 rows.
        large_batch: batch of larger tables of numbers.
        epochs: passes over the rows, within the limits of the number of steps.
        total_steps: steps after which no further member is trained; infinite if all are trained at once.
        search_pairs: maximum number of pairs of rows per bandwidth, when the bandwidth is chosen.
    """

    members: int
    small_members: int
    ensemble_rows: int
    hidden: int
    candidates: int
    network_rate: float
    small_steps: int
    min_steps: int
    max_steps: int
    batch_part: int
    min_batch: int
    max_batch: int
    large_batch: int
    epochs: int
    total_steps: float
    search_pairs: float

    def batch_size(self, rows: int, classes: bool = False) -> int:
        """Return the number of rows of a batch for a table of `rows` rows of numbers or classes."""
        if rows >= _LARGE_TABLE and not classes:
            return self.large_batch
        return max(self.min_batch, min(self.max_batch, rows // self.batch_part))

    def steps(self, rows: int, batch: int) -> int:
        """Return the maximum number of steps for a table: some epochs within the limits, and at least one."""
        if rows < SMALL_TABLE:
            return self.small_steps
        one_epoch = -(-rows // batch) if self.candidates else 0
        # Steps of larger batches take longer, and large tables need fewer of them.
        fewest = self.min_steps * min(self.max_batch, batch) // batch
        return max(fewest, min(self.max_steps, self.epochs * rows // batch), one_epoch)


EFFORTS = {
    "quick": Effort(1, 4, 64_000, 64, 0, 1e-2, 150, 150, 150, 4, 64, 256, 256, 30, 150, 4e6),
    "standard": Effort(3, 8, 1_000_000, 64, 0, 1e-2, 250, 500, 900, 2, 64, 512, 1024, 28, 700, 1e7),
    "best": Effort(8, 8, 64_000, 128, 3072, 3e-3, 600, 600, 1000, 4, 32, 512, 512, 30, math.inf, 4e8),
}
"""The presets by name. The time of a fit and the errors are compared in docs/estimators.md."""
