"""How long a query would take on 1 to 1,000 machines, up to 10^12 keys: a simulation from parts measured here.

    python -m benchmarks.scale_simulation             # about a minute
    python -m benchmarks.scale_simulation --draws 50

Measured on one core of this machine, in CPU time: the scan of a fragment, the size of a result, the merge of 16
results, the fixed work of a worker, and the work of the asking process for each worker. Assumed: everything else, see
`Assumptions`, which is printed. No cluster was used; the simulation says what these parts add up to, not what a cluster
does.

A query takes: dispatch, one worker after the other; the slowest scan, where each scan varies and a worker may die and
be replaced; and the steps of the merge tree, each of which waits for its slowest member.
"""

from __future__ import annotations

import argparse
import math
import pickle
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from qkv import Database, normalizers, scores
from qkv.database.cluster.scheduler import FAN_IN, Scheduler
from qkv.database.cluster.task import merge_replies
from qkv.database.cluster.worker import FragmentWorker
from qkv.normalizers.base import Normalizer

__all__ = ["Assumptions", "Parts", "simulate"]


@dataclass(frozen=True)
class Assumptions:
    """What was not measured.

    Attributes:
        cores: workers of one core on each machine.
        memory: bytes of memory of a machine for rows; more rows are read from the object store by each query.
        network: bytes per second between two machines.
        latency: seconds from one machine to another.
        store: bytes per second that a machine reads from the object store.
        call: seconds of the asking process for one remote call, which are made one after the other.
        spread: standard deviation of the logarithm of the time of a scan.
        deaths: probability that a worker dies during a query.
        replacement: seconds until another worker has started and opened its fragments.
    """

    cores: int = 16
    memory: float = 64e9
    network: float = 1.25e9
    latency: float = 0.5e-3
    store: float = 1e9
    call: float = 0.2e-3
    spread: float = 0.1
    deaths: float = 1e-5
    replacement: float = 10.0


@dataclass(frozen=True)
class Parts:
    """What was measured, in seconds of CPU time of one core and bytes, for one group of queries.

    Attributes:
        name: the case.
        queries: number of queries of the group.
        row_bytes: bytes of the key and the value of a row.
        row: seconds per row, for all queries.
        fixed: seconds of a worker for an empty scan.
        result: bytes of a result.
        merge: seconds to merge `FAN_IN` results.
        worker: seconds of the asking process per worker.
    """

    name: str
    queries: int
    row_bytes: int
    row: float
    fixed: float
    result: int
    merge: float
    worker: float


class _Recorder:
    """A worker in this process that keeps its messages, its replies and the CPU time of its scans."""

    def __init__(self) -> None:
        self.worker = FragmentWorker()
        self.messages: list[bytes] = []
        self.process_id = 0

    def call(self, message: bytes) -> bytes:
        return self.receive(self.send(message))

    def send(self, message: bytes) -> object:
        self.messages.append(message)
        return message

    def receive(self, sent: object) -> bytes:
        assert isinstance(sent, bytes)
        return self.worker.run(sent)

    def merge(self, results: Sequence[object]) -> bytes:
        return pickle.dumps(merge_replies([bytes(each) for each in results]))  # type: ignore[call-overload]

    def fetch(self, result: object) -> bytes:
        assert isinstance(result, bytes)
        return result

    def close(self) -> None:
        pass


def cpu_seconds(action: Callable[[], object], repeats: int = 5) -> float:
    """Return the median CPU time of an action."""
    taken = []
    for _ in range(repeats):
        started = time.process_time()
        action()
        taken.append(time.process_time() - started)
    return statistics.median(taken)


def measure(
    name: str, table: pa.Table, key: str, score: scores.Score, normalizer: Normalizer, queries: Sequence[object]
) -> Parts:
    """Return the parts of a query over fragments like the rows of a table."""
    count = len(queries)
    with tempfile.TemporaryDirectory() as folder:
        recorders, seconds = [], []
        for rows in (FAN_IN, table.num_rows):
            path = Path(folder) / str(rows)
            Database.create(path, table.slice(0, rows), key, "value")
            database, recorder = Database.open(path), _Recorder()
            database.cluster = Scheduler(lambda recorder=recorder: recorder, 1, "workers")  # type: ignore[misc]
            limit = {"min_similarity": -1.0} if isinstance(score, scores.Cosine) else {"max_distance": 1e9}
            database.ask(queries, score=score, normalizer=normalizer, **limit)
            seconds.append(cpu_seconds(lambda recorder=recorder: recorder.worker.run(recorder.messages[0])))
            recorders.append(recorder)
        reply = recorders[1].worker.run(recorders[1].messages[0])
        merge = cpu_seconds(lambda: _merge_copies(reply))
    return Parts(
        name,
        count,
        table.nbytes // table.num_rows,
        max(0.0, seconds[1] - seconds[0]) / table.num_rows,
        seconds[0],
        len(reply),
        merge,
        _asking(recorders[1].messages[0], reply),
    )


class _Canned(_Recorder):
    """A worker that returns the same reply at once."""

    def __init__(self, reply: bytes) -> None:
        self.reply = reply

    def send(self, message: bytes) -> object:
        return None

    def receive(self, sent: object) -> bytes:
        return self.reply

    def merge(self, results: Sequence[object]) -> bytes:
        return self.reply


def _asking(message: bytes, reply: bytes) -> float:
    """Return the CPU time of the asking process for each of 512 workers."""
    workers = 512
    task, fragments = pickle.loads(message)
    shares = [replace(fragments[0], fragment=replace(fragments[0].fragment, index=n)) for n in range(workers)]
    scheduler = Scheduler(lambda: _Canned(reply), workers, "workers")
    return cpu_seconds(lambda: scheduler.call(task, shares)) / workers


def _merge_copies(reply: bytes) -> bytes:
    """Merge `FAN_IN` results of different fragments, which are copies of one."""
    loaded = pickle.loads(reply)
    copies = [replace(loaded, result=replace(loaded.result, fragments=(n,)), first=n) for n in range(FAN_IN)]
    return pickle.dumps(merge_replies([pickle.dumps(copy) for copy in copies]))


def simulate(parts: Parts, assumed: Assumptions, keys: float, machines: int, draws: int) -> tuple[float, float]:
    """Return the median and the 95th percentile of the seconds of a group of queries.

    Args:
        parts: what was measured.
        assumed: what was not.
        keys: number of keys.
        machines: number of machines.
        draws: number of simulated queries.
    """
    draw = np.random.default_rng(0)
    workers = machines * assumed.cores
    rows = keys / workers
    missing = max(0.0, keys / machines * parts.row_bytes - assumed.memory)
    read = missing / assumed.store
    scan = max(parts.fixed + rows * parts.row, read)
    taken = []
    for _ in range(draws):
        start = assumed.latency + np.arange(1, workers + 1) * (assumed.call + parts.worker)
        own = scan * draw.lognormal(0.0, assumed.spread, workers)
        died = draw.random(workers) < assumed.deaths
        # A worker dies at any point of its scan, and its successor starts from the beginning and reads its rows.
        again = assumed.replacement + rows * parts.row_bytes * assumed.cores / assumed.store + own
        ready = start + np.where(died, draw.random(workers) * own + again, own)
        while len(ready) > FAN_IN:
            groups = math.ceil(len(ready) / FAN_IN)
            padded = np.full(groups * FAN_IN, -np.inf)
            padded[: len(ready)] = ready
            arrived = padded.reshape(groups, FAN_IN).max(axis=1)
            ready = arrived + assumed.latency + FAN_IN * parts.result / assumed.network + parts.merge + assumed.call
        taken.append(float(ready.max()) + assumed.latency + len(ready) * parts.result / assumed.network + parts.merge)
    return statistics.median(taken), float(np.quantile(taken, 0.95))


def cases(rows: int) -> list[Parts]:
    """Return the parts of three kinds of queries."""
    draw = np.random.default_rng(0)
    numbers = pa.table({"x": draw.uniform(0, 6, rows), "value": draw.standard_normal(rows)})
    width, few = 128, rows // 8
    cells = pa.array(draw.standard_normal(few * width).astype(np.float32))
    vectors = pa.table({"v": pa.FixedSizeListArray.from_arrays(cells, width), "value": draw.standard_normal(few)})
    near = draw.uniform(0, 6, 64).tolist()
    directions = draw.standard_normal((64, width)).tolist()
    one, ten = normalizers.Softmax(), normalizers.TopK(10)
    return [
        measure("one number, Softmax", numbers, "x", scores.Gaussian(0.05), one, near),
        measure("one number, Sparsemax", numbers, "x", scores.Laplace(0.001), normalizers.Sparsemax(), near),
        measure("vectors of 128, TopK(10)", vectors, "v", scores.Cosine(), ten, directions),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale_simulation", description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--draws", type=int, default=30)
    asked = parser.parse_args()
    assumed = Assumptions()
    print("assumed:", ", ".join(f"{each.name} {getattr(assumed, each.name):g}" for each in fields(assumed)))
    for parts in cases(asked.rows):
        rate = parts.queries / parts.row / 1e6
        print(
            f"measured: {parts.name}: {parts.queries} queries, {rate:.1f} M pairs of query and key per second and "
            f"core, fixed {1e3 * parts.fixed:.1f} ms, result {parts.result / 1024:.1f} KiB, merge of {FAN_IN} "
            f"{1e3 * parts.merge:.1f} ms, asking process {1e3 * parts.worker:.2f} ms per worker",
            flush=True,
        )
        for keys in (1e9, 1e10, 1e11, 1e12):
            cells = []
            for machines in (1, 10, 100, 1000):
                middle, late = simulate(parts, assumed, keys, machines, asked.draws)
                cells.append(f"{machines} machines {middle:.4g} s (95 %: {late:.4g})")
            print(f"  {keys:.0e} keys: {', '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
