"""Choice of the comparison of queries and keys for a store, from a sample of its rows and statistics of all rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from qkv.core.progress import Progress
from qkv.core.typing import Float, Int
from qkv.database.execute.statistics import TableStatistics
from qkv.database.keys.bandwidth import Bandwidth
from qkv.database.keys.choose import ComparisonChooser
from qkv.database.keys.columns import Column

__all__ = ["SampledChooser"]


class SampledChooser(ComparisonChooser):
    """A `ComparisonChooser` for stores that uses a sample of the rows and statistics of all rows.

    Chosen bandwidths and distances are saved with the statistics.

    Args:
        columns: the key columns of the sample.
        value: the value column of the sample.
        statistics: the statistics of all rows.
        targets: as in `ComparisonChooser`.
        votes: whether answers are votes, for which bandwidths are chosen apart.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        value: Column,
        statistics: TableStatistics,
        targets: Callable[[Int[np.ndarray, " n"]], Float[np.ndarray, "n targets"] | str],
        votes: bool = False,
    ) -> None:
        super().__init__(tuple(columns), value, np.ones(len(columns[0].cells), bool), targets)
        self.statistics, self.votes = statistics, votes

    def bandwidth(self, points: Float[np.ndarray, "rows width"], progress: Progress | None) -> Bandwidth:
        """Return the bandwidth saved with the statistics. If there is none, choose one from the sample and save it."""
        saved = self.statistics.bandwidths
        name = ("linear" if self.linear else "mean") + " by vote" * self.votes
        if name not in saved:
            targets = self.targets(np.arange(len(points)))
            saved[name] = self.search(points, targets, progress, self.total, self._groups)
            self.statistics.save()
        self._bandwidths[self.search] = saved[name]
        return saved[name]

    @property
    def sample(self) -> Int[np.ndarray, " sample"]:
        """All rows of the sample, see `ComparisonChooser.sample`."""
        return np.arange(len(self.complete))

    @property
    def total(self) -> int:
        """The number of complete rows of the store."""
        return self.statistics.complete

    def mean_and_deviation(
        self, indices: tuple[int, ...], stacked: Float[np.ndarray, "rows width"]
    ) -> tuple[Float[np.ndarray, " width"], Float[np.ndarray, " width"]]:
        """Return the mean and the standard deviation of each selected column over all complete rows of the store.

        Timestamps are in days.
        """
        columns = [self.columns[index] for index in indices]
        found = [self.statistics.columns[column.name] for column in columns]
        unit = np.array([c.units_per_day if c.kind == "timestamp" else 1.0 for c in columns])
        mean = np.array([(each.mean or [0.0])[0] for each in found])
        deviation = np.array([(each.deviation or [1.0])[0] for each in found])
        return mean / unit, deviation / unit

    def most_repeats(self, column: Column) -> int:
        """Return the number of complete rows of the store that hold the most common text of a key column."""
        return self.statistics.columns[column.name].repeats

    def largest(self, column: Column) -> float:
        """Return the largest magnitude of the numbers of a key column over the complete rows of the store."""
        return self.statistics.columns[column.name].largest

    def form(self, column: Column) -> str:
        """Return the form that the texts of a key column have in all complete rows of the store."""
        return self.statistics.columns[column.name].form

    def nearest_quantile(self, key: Float[np.ndarray, "rows width"], unit: str) -> float:
        """Return the 99th percentile of the distance of a key to its nearest other key, estimated from the sample."""
        saved = self.statistics.nearest_quantiles
        if unit not in saved:
            saved[unit] = super().nearest_quantile(key, unit)
            self.statistics.save()
        return saved[unit]
