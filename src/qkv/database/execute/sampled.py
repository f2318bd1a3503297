"""How keys are compared where some rows are at hand, and the profile speaks for all of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from qkv.database.execute.statistics import ColumnStatistics, TableStatistics
from qkv.database.keys.bandwidth import Bandwidth, leave_one_out, scott, thinning_step
from qkv.database.keys.choose import ComparisonChooser
from qkv.database.keys.columns import Column

__all__ = ["SampledChooser"]


class SampledChooser(ComparisonChooser):
    """Key columns of which some rows are at hand, and of all rows what the profile says."""

    def __init__(self, columns: Sequence[Column], profile: TableStatistics, targets: Any, progress: Any) -> None:
        kept = np.ones(len(columns[0].cells), bool)
        super().__init__(tuple(columns), kept, self._chosen, self._rule)
        self.profile, self.targets, self.progress = profile, targets, progress

    def moments(self, indices: tuple[int, ...], stacked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of all rows."""
        columns = [self.columns[index] for index in indices]
        facts = [self.profile.columns[column.name] for column in columns]
        unit = np.array([c.units_per_day if c.kind == "timestamp" else 1.0 for c in columns])
        mean, deviation = (np.array([x[0] for x in xs]) for xs in zip(*map(_moments, facts), strict=True))
        return mean / unit, deviation / unit

    def repeats(self, column: Column) -> int:
        """Among all rows."""
        return self.profile.columns[column.name].repeats

    def between(self, key: np.ndarray, unit: str) -> float:
        """Of the sample, drawn together by Scott's power: rows that are not in it lie between them."""
        if unit not in self.profile.between:
            step = thinning_step(self.profile.kept)
            self.profile.between[unit] = super().between(key, unit) * step ** (-1.0 / key.shape[1])
            self.profile.remember()
        return self.profile.between[unit]

    def _chosen(self, points: np.ndarray) -> Bandwidth:
        if self.profile.bandwidth is None:
            targets = self.targets()
            if isinstance(targets, str):
                found = scott(self.profile.kept, points.shape[1], targets)
            else:
                found = leave_one_out(points, targets, self.progress, self.profile.kept)
            self.profile.bandwidth = found
            self.profile.remember()
        return self.profile.bandwidth

    def _rule(self, points: np.ndarray) -> Bandwidth:
        return scott(self.profile.kept, points.shape[1], "numbers beside other kinds of key")


def _moments(facts: ColumnStatistics) -> tuple[list[float], list[float]]:
    return facts.mean or [0.0], facts.deviation or [1.0]
