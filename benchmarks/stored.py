"""Claim: a query of a database on disk takes at most twice as long as reading its keys; writes are fast too."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks._calls import WrongError
from benchmarks._claim import AtLeast, AtMost, Claim, Row, Setting
from benchmarks._race import race
from qkv import Database
from qkv import store as stores

BATCH = 500_000
APPENDED = 10_000
ASKED = (
    ("default (cosine, top 10)", {}),
    ("dot product, softmax over all rows", {"score": "dot"}),
    ("Gaussian, softmax over all rows", {"score": "gaussian:2"}),
)


def rows(setting: Setting) -> Iterator[Row]:
    """Measure one query over 10M × 16, a scan of 10M × 128, and an append of 10,000 rows."""
    count = 200_000 if setting.quick else 10_000_000
    with tempfile.TemporaryDirectory(prefix="qkv-stored") as folder:
        yield from _asked(Path(folder) / "narrow", count, setting)
    with tempfile.TemporaryDirectory(prefix="qkv-stored") as folder:
        yield from _scanned(Path(folder) / "wide", count, setting)


def _tables(count: int, width: int) -> Iterator[Any]:
    draw = np.random.default_rng(0)
    for start in range(0, count, BATCH):
        size = min(BATCH, count - start)
        keys = draw.standard_normal((size, width), dtype=np.float32)
        yield pa.table(
            {
                "key": pa.FixedSizeListArray.from_arrays(pa.array(keys.reshape(-1)), width),
                "value": draw.standard_normal(size, dtype=np.float32),
            }
        )


def _vectors(store: Any) -> Iterator[Any]:
    for block in store.blocks(["key"]):
        (chunk,) = block.table.column("key").chunks
        yield np.frombuffer(chunk.values.buffers()[1], np.float32)


def _asked(path: Path, count: int, setting: Setting) -> Iterator[Row]:
    setting.say(f"writing {count:,} × 16")
    database = Database.create(path, _tables(count, 16), "key", "value", memory="64 MiB")
    query = np.random.default_rng(1).standard_normal(16).tolist()

    def summed() -> float:
        return sum(float(vectors.sum()) for vectors in _vectors(database.store))

    for name, how in ASKED:

        def ask(how: Any = how) -> Any:
            return database.ask(query, **how)

        errors = {"oracle, value": _checked(ask(), database.store, query, how)}
        tracemalloc.start()
        answer = ask()
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        yield race({"qkv": ask, "sum of the keys": summed}, setting.rounds).row(
            f"one query, 10M × 16, {name}",
            "sum of the keys",
            AtMost(2.0),
            errors=errors,
            megabytes={"qkv": held / 1e6},
            kernel="streamed over blocks",
            plan=str(answer.plan),
            note="the files are memory-mapped and in the page cache; an answer includes the value, its spread, "
            "the support and ten rows of evidence",
        )


def _checked(answer: Any, store: Any, query: Any, how: Any) -> float:
    """Return the difference of the value from the equation in float64."""
    q = np.array(query)
    logits, values = [], []
    for block in store.blocks():
        (chunk,) = block.table.column("key").chunks
        keys = np.frombuffer(chunk.values.buffers()[1], np.float32).reshape(-1, len(q)).astype(float)
        if not how:
            logits.append(keys @ q / np.linalg.norm(keys, axis=1) / np.linalg.norm(q) / 0.05)
        elif how["score"] == "dot":
            logits.append(keys @ q)
        else:
            logits.append(-np.square(keys - q).sum(axis=1) / (2 * 2.0**2))
        values.append(block.table.column("value").to_numpy().astype(float))
    logit, value = np.concatenate(logits), np.concatenate(values)
    if not how:
        best = np.argpartition(-logit, 10)[:10]
        logit, value = logit[best], value[best]
    weights = np.exp(logit - logit.max())
    error = abs(answer.value - float(weights @ value / weights.sum()))
    if error > 1e-4:
        raise WrongError(f"the streamed answer is {error:.2g} from the float64 equation")
    return error


def _scanned(path: Path, count: int, setting: Setting) -> Iterator[Row]:
    setting.say(f"writing {count:,} × 128")
    schema = next(_tables(1, 128)).schema
    store = stores.create(path, schema)
    store.append(_tables(count, 128))
    maps = [np.memmap(file, np.uint8, "r") for file in sorted((path / "rows").glob("*.arrow"))]

    def scanned() -> float:
        return sum(float(vectors.sum()) for vectors in _vectors(stores.open(path)))

    def mapped() -> float:
        return sum(float(x[: len(x) // 4 * 4].view(np.uint32).view(np.float32).sum()) for x in maps)

    with np.errstate(all="ignore"):
        run = race({"qkv": scanned, "np.memmap of the same files": mapped}, setting.rounds)
    yield run.row(
        "scan of 10M × 128, including opening the store",
        "np.memmap of the same files",
        AtLeast(0.7),
        faster=True,
        note="the sum of all vectors, block by block, is compared with the sum of the files' bytes read as float32",
    )
    part = next(_tables(APPENDED, 16))
    small = stores.create(path.with_name("small"), part.schema)
    walls = []
    for _ in range(3 * setting.rounds):
        start = time.perf_counter()
        small.append(part)
        walls.append(1000 * (time.perf_counter() - start))
    yield Row(
        "append of 10,000 rows of 16 numbers and a value, synced",
        "median wall time",
        statistics.median(walls),
        "ms",
        AtMost(50),
        spread=(min(walls), max(walls)),
        note=f"an append syncs two files and two folders; measured on {os.uname().sysname}",
    )


CLAIM = Claim(
    "One query over 10M rows on disk takes at most twice as long as summing their keys, a store is "
    "scanned at 0.7 of the rate of np.memmap or more, and appending 10,000 rows takes at most 50 ms.",
    "query at most 2 × the time of summing the keys; scan at least 0.7 of the rate of np.memmap; append at most 50 ms",
    ("NumPy's sum of the same keys", "np.memmap"),
    rows,
)
