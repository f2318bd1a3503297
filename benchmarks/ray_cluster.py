"""A store of 8 M rows in 16 fragments, answered by two workers of Ray: equality, merge order, kills and latency.

    python -m benchmarks.ray_cluster                              # all of it, about half an hour on two cores
    python -m benchmarks.ray_cluster --rows 200000 --kills 3      # smaller
    python -m benchmarks.ray_cluster --cluster processes:2 --only kills

equality  100 queries with each normalizer, over a column of float64 and over vectors of float32, by the workers and by
          one process: the largest difference of values, standard errors, effective rows and weights, and whether the
          rows of evidence differ
orders    partial results of the fragments, merged in random orders and groupings, against one process
kills     workers are killed with −9 while queries run: every answer is compared bit by bit with one without kills
latency   what the cluster adds to a query: the time of a query over 16 fragments of 1,000 rows by the workers less that
          by one process, in pairs one after the other

Workers of Ray have a niceness of 15 by default; RAY_worker_niceness=0 gives them the priority of other programs.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from qkv import Database, normalizers, scores
from qkv.database import partials
from qkv.database.answer import Answer
from qkv.database.storage.stored import StoredDatabase
from qkv.normalizers.base import Normalizer

NORMALIZERS: tuple[Normalizer, ...] = (
    normalizers.Softmax(),
    normalizers.Sum(),
    normalizers.Mean(),
    normalizers.TopK(10),
    normalizers.Hard(),
    normalizers.Sparsemax(),
    normalizers.Entmax15(),
)
FRAGMENTS = 16
WIDTH = 4
KEYS = {"x": (scores.Gaussian(0.05), 1e-12), "vector": (scores.Gaussian(0.3), 1e-6)}
"""The score of each key column, and the largest relative difference that is allowed: float64 and float32."""


def options_of(key: str, normalizer: Normalizer) -> dict[str, object]:
    """Return the options of `ask`.

    Sum needs a score without negative logits. The weights of Sparsemax and Entmax15 are differences of logits, so that
    the rounding of |q|² − 2 q·k + |k|² limits what can be compared: with Gaussian(0.05) over 8 M rows the workers and
    one process differ by 1.3e-9. Laplace has no such products.
    """
    score = KEYS[key][0]
    if isinstance(normalizer, normalizers.Sum):
        score = scores.Dot()
    if key == "x" and isinstance(normalizer, (normalizers.Sparsemax, normalizers.Entmax15)):
        score = scores.Laplace(0.05)
    limit = {} if isinstance(score, scores.Dot) else {"max_distance": 1e9}
    return {"score": score, "normalizer": normalizer, **limit}


def table(rows: int) -> pa.Table:
    """Return a table of 64 bytes per row, so that 8 M rows are 16 files of 32 MiB."""
    draw = np.random.default_rng(0)
    x = draw.uniform(0, 6, rows)  # not negative, so that `Sum` can weigh by the product
    vectors = pa.array(np.abs(draw.standard_normal(rows * WIDTH)).astype(np.float32))
    columns = {
        "x": x,
        "vector": pa.FixedSizeListArray.from_arrays(vectors, WIDTH),
        "value": np.sin(2 * x) + 0.1 * draw.standard_normal(rows),
        "id": np.arange(rows),
    }
    return pa.table(columns | {f"other {n}": draw.standard_normal(rows) for n in range(3)})


def create(folder: Path, rows: int) -> Path:
    """Create a store of 16 fragments."""
    from qkv.store import row_files

    whole = table(rows)
    size, row_files.BYTES = row_files.BYTES, -(-whole.nbytes // FRAGMENTS)
    Database.create(folder / f"rows-{rows}", whole, "x", "value")
    row_files.BYTES = size
    return folder / f"rows-{rows}"


def queries(key: str, count: int) -> list[object]:
    """Return queries inside the range of the keys."""
    draw = np.random.default_rng(1)
    if key == "x":
        return list(draw.uniform(0, 6, count).tolist())
    return list(np.abs(draw.standard_normal((count, WIDTH))).tolist())


def difference(got: Answer, expected: Answer) -> tuple[float, int]:
    """Return the largest relative difference of the numbers of two answers, and how many rows of evidence differ."""
    largest, other = 0.0, 0
    for name in ("value", "spread", "standard_error", "effective_rows"):
        pairs = zip(getattr(got, name), getattr(expected, name), strict=True)
        for mine, theirs in pairs:
            if mine is None or theirs is None:
                largest = max(largest, 0.0 if mine is theirs else np.inf)
            elif not (np.isnan(mine) and np.isnan(theirs)):
                largest = max(largest, abs(mine - theirs) / max(1.0, abs(theirs)))
    for mine, theirs in zip(got.rows, expected.rows, strict=True):
        other += [row.index for row in mine] != [row.index for row in theirs]
        heaviest = max((abs(row.weight) for row in theirs), default=1.0)
        weights = [abs(a.weight - b.weight) / heaviest for a, b in zip(mine, theirs, strict=False)]
        largest = max([largest, *weights])
    return largest, other


def measure_equality(path: Path, cluster: str, count: int) -> None:
    """Print the largest difference between the answers of the workers and of one process."""
    for key, (_, allowed) in KEYS.items():
        one = Database.open(path, key, "value", memory="1 KiB")
        many = Database.open(path, key, "value", cluster=cluster)
        asked = queries(key, count)
        for normalizer in NORMALIZERS:
            options = options_of(key, normalizer)
            started, cpu = time.perf_counter(), time.process_time()
            expected = one.ask(asked, **options)
            alone, alone_cpu = time.perf_counter() - started, time.process_time() - cpu
            started, cpu = time.perf_counter(), time.process_time()
            got = many.ask(asked, **options)
            together, own_cpu = time.perf_counter() - started, time.process_time() - cpu
            largest, other = difference(got, expected)
            found = sum(got.found)
            print(
                f"equality: {key}, {normalizer}: {count} queries, {found} found, largest difference {largest:.1e} "
                f"(allowed {allowed:.0e}), evidence differs for {other}; one process {alone:.1f} s (CPU "
                f"{alone_cpu:.1f}), workers {together:.1f} s (CPU of the asking process {own_cpu:.2f})",
                flush=True,
            )
            assert largest <= allowed
            assert not other
        many.close()


def groupings(parts: Sequence[pa.RecordBatch], orders: int) -> Iterator[pa.RecordBatch]:
    """Yield the merge of partial results in random orders and groupings."""
    draw = np.random.default_rng(2)
    for _ in range(orders):
        left = [parts[i] for i in draw.permutation(len(parts))]
        while len(left) > 1:
            size = int(draw.integers(2, min(5, len(left)) + 1))
            chosen = set(draw.choice(len(left), size, replace=False).tolist())
            merged = partials.merge([part for i, part in enumerate(left) if i in chosen])
            left = [merged, *(part for i, part in enumerate(left) if i not in chosen)]
        yield left[0]


def _without_limit(options: dict[str, object]) -> dict[str, object]:
    return {name: each for name, each in options.items() if name != "max_distance"}


def measure_orders(path: Path, orders: int) -> None:
    """Print the largest difference between partial results in random merge orders and one process."""
    store = Database.open(path, "x", "value").store
    for key, (_, allowed) in KEYS.items():
        one, asked = Database.open(path, key, "value", memory="1 KiB"), queries(key, 10)
        for normalizer in NORMALIZERS:
            options = options_of(key, normalizer)
            parts = [
                partials.compute(asked, block.table, key, "value", **_without_limit(options), fragment=number)
                for number, block in enumerate(store.blocks([key, "value"]))
            ]
            expected = one.ask(asked, **options)
            values = [partials.finalize(merged)["value"].to_pylist() for merged in groupings(parts, orders)]
            largest = max(
                abs(a - b) / max(1.0, abs(b)) for each in values for a, b in zip(each, expected.value, strict=True)
            )
            print(f"orders: {key}, {normalizer}: {orders} merge orders, largest difference {largest:.1e}", flush=True)
            assert largest <= allowed


def worker_processes(many: StoredDatabase) -> list[int]:
    """Return the ids of the processes of the workers of a cluster on this machine."""
    assert many.cluster is not None
    return [worker.process_id for worker in many.cluster.workers if worker is not None and worker.process_id]


def measure_kills(path: Path, cluster: str, kills: int) -> None:
    """Print how many answers were wrong or lost while workers were killed."""
    many = Database.open(path, "x", "value", cluster=cluster)
    asked = queries("x", 8)
    options = [options_of("x", normalizer) for normalizer in NORMALIZERS]
    expected = [many.ask(asked, **each) for each in options]
    killed, running, finished = list[int](), threading.Event(), threading.Event()
    during = list[int]()

    def kill() -> None:
        draw = np.random.default_rng(3)
        while len(killed) < kills and not finished.is_set():
            running.wait(1.0)
            time.sleep(float(draw.uniform(0.05, 3.0)))
            processes = [process for process in worker_processes(many) if process not in killed]
            # At most three for one query: a task that ended ten workers is given up.
            if running.is_set() and processes and during.count(answers) < 3:
                killed.append(processes[int(draw.integers(len(processes)))])
                during.append(answers)
                os.kill(killed[-1], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    answers = wrong = lost = 0
    try:
        while thread.is_alive():
            number = answers % len(options)
            running.set()
            try:
                got = many.ask(asked, **options[number])
            except Exception as error:  # any error is a lost answer
                print(f"kills: lost: {type(error).__name__}: {error}")
                lost += 1
                continue
            finally:
                running.clear()
                answers += 1
            same = got.value == expected[number].value and got.rows == expected[number].rows
            wrong += not (same and got.standard_error == expected[number].standard_error)
    finally:
        finished.set()
        thread.join()
        many.close()
    print(
        f"kills: {len(killed)} workers killed with -9 while {answers} times 8 queries ran: {wrong} wrong, {lost} "
        f"lost; {many.cluster.replaced} workers replaced",
        flush=True,
    )
    assert not wrong
    assert not lost


def measure_latency(folder: Path, cluster: str, rounds: int) -> None:
    """Print what the cluster adds to a query over small fragments."""
    path = create(folder, 1000 * FRAGMENTS)
    one = Database.open(path, "x", "value", memory="1 KiB")
    many = Database.open(path, "x", "value", cluster=cluster)
    for normalizer in NORMALIZERS:
        options = options_of("x", normalizer)
        seconds: dict[str, list[float]] = {"one": [], "many": []}
        for number in range(rounds + 3):
            for name, database in (("one", one), ("many", many)):
                started = time.perf_counter()
                database.ask(0.1 + number / rounds, **options)
                seconds[name].append(time.perf_counter() - started)
        added = [1e3 * (b - a) for a, b in zip(seconds["one"][3:], seconds["many"][3:], strict=True)]
        alone, tenths = 1e3 * statistics.median(seconds["one"][3:]), statistics.quantiles(added, n=10)
        print(
            f"latency: {normalizer}: one process {alone:.1f} ms, added by the cluster {statistics.median(added):.1f} "
            f"ms (10 to 90 %: {tenths[0]:.1f} to {tenths[-1]:.1f})",
            flush=True,
        )
    many.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ray_cluster", description=__doc__)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--orders", type=int, default=20)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--cluster", default="ray:2")
    parser.add_argument("--only", choices=("equality", "orders", "kills", "latency"))
    asked = parser.parse_args()
    if asked.cluster.startswith("ray"):
        import ray

        ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False, object_store_memory=2**28)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["QKV_CACHE"] = str(folder / "cache")
        path = create(folder, asked.rows) if asked.only != "latency" else folder
        parts = {
            "latency": lambda: measure_latency(folder, asked.cluster, asked.rounds),
            "equality": lambda: measure_equality(path, asked.cluster, asked.queries),
            "orders": lambda: measure_orders(path, asked.orders),
            "kills": lambda: measure_kills(path, asked.cluster, asked.kills),
        }
        for part, measure in parts.items():
            if asked.only in (None, part):
                measure()


if __name__ == "__main__":
    main()
