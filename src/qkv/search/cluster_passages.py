"""Search of a saved index by the workers of a cluster, each of which compares its ranges of passages."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.database.cluster.opening import open_cluster
from qkv.database.cluster.scheduler import Scheduler
from qkv.database.cluster.task import FragmentRows, FragmentTask, run_call
from qkv.errors import DataError
from qkv.search.hits import TopPassages
from qkv.search.index_files import IndexParts, parse_index, read_index
from qkv.search.passage_range import BoundQueries, PassageRange, QueryWords, ScoreStatistics, Selection

if TYPE_CHECKING:
    from qkv.database.cluster.worker import FragmentWorker


_PASSAGES, _MOST_RANGES = 4096, 64
"""A range has at least so many passages, and an index has at most so many ranges."""

_open: dict[str, tuple[str, IndexParts]] = {}
"""The digest and the parts of the index that a worker has open, by path."""


def open_passages(path: Path, cluster: str) -> IndexParts:
    """Return the arguments with which `Index` is created from a folder, with passages held by the workers of a cluster.

    Raises:
        DataError: The folder contains no index.
        DamagedError: The index is damaged.
        OptionError: `cluster` names no workers.
        MissingPackageError: Ray is not installed.
    """
    folder = path.absolute()
    container = read_index(folder)
    parts = parse_index(container)
    passages = ClusterPassages(str(folder), container.digest, len(parts["keys"]), open_cluster(cluster))
    return {**parts, "passages": passages}


class ClusterPassages:
    """The passages of a saved index, held by the workers of a cluster."""

    def __init__(self, path: str, digest: str, count: int, scheduler: Scheduler) -> None:
        self.path, self.digest, self.scheduler = path, digest, scheduler
        ranges = max(1, min(_MOST_RANGES, count // _PASSAGES))
        ends = [count * number // ranges for number in range(ranges + 1)]
        self.ranges = [
            FragmentRows(number, f"passages {first} to {last}", last - first)
            for number, (first, last) in enumerate(pairwise(ends))
        ]
        self.ends = ends

    def bind(self, queries: QueryWords) -> BoundQueries:
        """Return an object that compares queries with the passages; see `Passages.bind`."""
        return _ClusterQueries(self, queries)

    def run(self, queries: QueryWords, selection: Selection | None) -> Any:
        """Return the merged results of a call over all ranges."""
        call = _IndexCall(self.path, self.digest, self.ends, queries, selection)
        return run_call(self.scheduler, call, self.ranges, self.path)

    def close(self) -> None:
        """End the workers. The next query starts new ones."""
        self.scheduler.close()


class _ClusterQueries:
    """A batch of queries over the passages of a cluster."""

    def __init__(self, passages: ClusterPassages, queries: QueryWords) -> None:
        self.passages, self.queries = passages, queries

    def statistics(self) -> ScoreStatistics:
        """Return statistics of the scores; see `BoundQueries.statistics`."""
        found: ScoreStatistics = self.passages.run(self.queries, None)
        return found

    def select(self, selection: Selection) -> TopPassages:
        """Return the passages of largest weight; see `BoundQueries.select`."""
        found: TopPassages = self.passages.run(self.queries, selection)
        return found


@dataclass(frozen=True, eq=False)
class _IndexCall:
    """Statistics of the scores of some passages, or those of largest weight; a `FragmentCall`."""

    path: str
    digest: str
    ends: list[int]
    queries: QueryWords
    selection: Selection | None

    def run(self, worker: FragmentWorker, each: FragmentTask) -> ScoreStatistics | TopPassages:
        """Return the statistics, or the passages of largest weight, of a range that is opened once."""
        index = each.fragment.index

        def prepare() -> PassageRange:
            parts = _parts(self.path, self.digest)
            return PassageRange(parts["keys"], parts["words"]).slice(self.ends[index], self.ends[index + 1])

        rows: PassageRange = worker.prepared(f"index {self.path} {self.digest}", index, prepare)
        bound = rows.bind(self.queries)
        return bound.statistics() if self.selection is None else bound.select(self.selection)


def _parts(path: str, digest: str) -> IndexParts:
    """Return the parts of an index, which stays open in this worker."""
    if path not in _open or _open[path][0] != digest:
        container = read_index(Path(path))
        if container.digest != digest:
            raise DataError(
                f"the index {path!r} must be the one that was opened, but another one was saved there. Open it again."
            )
        _open.clear()
        _open[path] = digest, parse_index(container)
    return _open[path][1]
