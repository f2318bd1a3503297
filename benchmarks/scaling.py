"""Claim: how time and memory grow with the number of tokens or rows, beside other libraries."""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import _calls, _peers
from benchmarks._calls import WrongError, apart
from benchmarks._claim import AtLeast, AtMost, Claim, Row, Setting
from benchmarks._memory import peak
from benchmarks._race import Race, race

WIDTH = 64
ADDITIVE = (256, 512, 1024, 2048, 4096, 8192, 16384)
MOST_PAIRS = 2048
"""Most tokens of peers that store a vector for each pair: 1 GB at 2,048 tokens."""
MEMORY = (1024, 4096, 16384)
REGRESSION = (1_000, 10_000, 100_000, 1_000_000)
QUERIES, COLUMNS = 500, 8
FEW = 4
"""Queries given to statsmodels, whose time is linear in their number."""
MOST_STATSMODELS = 100_000
STORED = (10_000, 100_000, 1_000_000)
STORED_WIDTH = 16


def rows(setting: Setting) -> Iterator[Row]:
    """Measure five curves, each with the peers that do the same work."""
    yield from _additive(setting)
    yield from _memory(setting)
    yield from _regression(setting)
    yield from _stored(setting)


def _row(case: str, run: Race, *, worst: float | None = None, **more: Any) -> Row:
    """Return the speed-up over the fastest peer, or the seconds of qkv alone, with the times of all implementations."""
    seconds = {name: statistics.median(times) for name, times in run.cpu.items()}
    peers = {name: time for name, time in seconds.items() if name != "qkv"}
    if not peers:
        return Row(case, "qkv, CPU time", seconds["qkv"], "s", seconds=seconds, **more)
    nearest = min(peers, key=lambda name: peers[name])
    goal = None if worst is None else AtLeast(worst)
    return dataclasses.replace(run.row(case, nearest, goal, faster=True, **more), seconds=seconds)


def _additive(setting: Setting) -> Iterator[Row]:
    for tokens in setting.some(ADDITIVE, 4):
        call = _calls.make("additive_plain", ((1, tokens, WIDTH),) * 3)
        runs: dict[str, Callable[[], Any]] = {"qkv": call.run}
        errors = call.check()
        if tokens <= MOST_PAIRS:
            runs |= {"Keras": _peers.keras_additive(call), "PyTorch by hand": _peers.additive_by_hand(call)}
            for name in ("Keras", "PyTorch by hand"):
                errors |= call.check_against(name, runs[name]())
        last = tokens == MOST_PAIRS
        yield _row(
            f"additive, {tokens} tokens, forward",
            race(runs, setting.rounds if tokens <= MOST_PAIRS else 3),
            worst=10 if last else None,
            errors=errors,
            kernel=call.plan.kernel.name,
            plan=str(call.plan),
        )


def _memory(setting: Setting) -> Iterator[Row]:
    for tokens in setting.some(MEMORY, 3):
        shape = ((1, tokens, WIDTH),) * 3
        kinds = {
            "qkv": ("scaled_dot", "qkv"),
            "qkv, additive": ("additive_plain", "qkv"),
            "PyTorch SDPA": ("scaled_dot", "sdpa"),
            "PyTorch by hand": ("scaled_dot", "dot_by_hand"),
        }
        if tokens <= MOST_PAIRS:
            kinds["Keras, additive"] = ("additive_plain", "keras_additive")
        found = {name: peak(call, shape, who=who) for name, (call, who) in kinds.items()}
        yield Row(
            f"memory, {tokens} tokens, forward",
            "peak memory above inputs, additive scores",
            found["qkv, additive"].growth / 1e6,
            "MB",
            AtMost(64) if tokens == MEMORY[-1] else None,
            megabytes={name: each.growth / 1e6 for name, each in found.items()},
            kernel=found["qkv, additive"].kernel,
            plan=found["qkv, additive"].plan,
            note="each call runs in a fresh process; the output is included; PyTorch by hand stores the weights of all "
            "pairs, Keras a vector for each pair",
        )


def _regression(setting: Setting) -> Iterator[Row]:
    import torch

    for count in setting.some(REGRESSION, 4):
        call = _calls.make("regression", ((QUERIES, COLUMNS), (count, COLUMNS), (count, 1)))
        call.value.mul_(0.1).add_(torch.sin(call.key.sum(-1, keepdim=True)))
        setting.say(f"compiling PyKeOps's reduction, {count} rows")
        runs = {"qkv": call.run, "PyKeOps": _peers.keops_regression(call), "scikit-learn": _rbf_kernel(call)}
        errors = call.check(1e-5)
        for name in ("PyKeOps", "scikit-learn"):
            errors |= call.check_against(name, runs[name](), 1e-3)
        run = race(runs, setting.rounds if count < REGRESSION[-1] else 3)
        if count <= MOST_STATSMODELS:
            few = _statsmodels(call)
            error = apart(call.run()[0][:FEW, 0], few())
            if error > 1e-4:
                raise WrongError(f"statsmodels gives something else: {error:.2g}")
            times = race({"statsmodels": few}, 3)
            scale = QUERIES / FEW
            run.cpu["statsmodels"] = [scale * time for time in times.cpu["statsmodels"]]
            run.wall["statsmodels"] = [scale * time for time in times.wall["statsmodels"]]
        yield _row(
            f"kernel regression, {count} rows",
            run,
            worst=1 if count == REGRESSION[-1] else None,
            errors=errors,
            kernel=call.plan.kernel.name,
            plan=str(call.plan),
            note=f"{QUERIES} queries, {COLUMNS} columns; scikit-learn's rbf_kernel and two NumPy products; statsmodels "
            f"KernelReg is timed on {FEW} queries, scaled to all, and also computes slopes",
        )


def _rbf_kernel(call: Any) -> Callable[[], tuple[Any, ...]]:
    rbf_kernel = _peers.peer("sklearn.metrics.pairwise").rbf_kernel
    query, key, value = (x.numpy() for x in (call.query, call.key, call.value))
    gamma = 0.5 / float(call.options["score"].bandwidth) ** 2

    def run() -> tuple[Any, ...]:
        weights = rbf_kernel(query, key, gamma)
        return (weights @ value / weights.sum(axis=1, keepdims=True),)

    return run


def _statsmodels(call: Any) -> Callable[[], Any]:
    regression = _peers.peer("statsmodels.nonparametric.kernel_regression").KernelReg
    bandwidth = [float(call.options["score"].bandwidth)] * COLUMNS
    value, key = call.value[:, 0].double().numpy(), call.key.double().numpy()
    model = regression(value, key, "c" * COLUMNS, "lc", bw=bandwidth)
    few = call.query[:FEW].double().numpy()
    return lambda: model.fit(few)[0]


def _stored(setting: Setting) -> Iterator[Row]:
    for count in setting.some(STORED, 3):
        with tempfile.TemporaryDirectory(prefix="qkv-scaling") as folder:
            setting.say(f"writing {count:,} rows of {STORED_WIDTH} numbers in four formats")
            yield from _asked(Path(folder), count, setting)


def _asked(folder: Path, count: int, setting: Setting) -> Iterator[Row]:
    from qkv import Database

    duckdb, lance = _peers.peer("duckdb"), _peers.peer("lance")
    draw = np.random.default_rng(0)
    keys = draw.standard_normal((count, STORED_WIDTH), dtype=np.float32)
    values = draw.standard_normal(count, dtype=np.float32)
    table = pa.table(
        {"key": pa.FixedSizeListArray.from_arrays(pa.array(keys.reshape(-1)), STORED_WIDTH), "value": values}
    )
    query = draw.standard_normal(STORED_WIDTH).astype(np.float32)
    database = Database.create(folder / "store", table, "key", "value")
    for name, array in (("keys", keys), ("values", values)):
        np.save(folder / f"{name}.npy", array)
    key_map, value_map = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("keys", "values"))
    connection = duckdb.connect(str(folder / "table.duckdb"), config={"threads": 1})
    connection.execute(f'create table t as select key::float[{STORED_WIDTH}] as key, value from "table"')
    connection.execute("checkpoint")
    lance.write_dataset(table, str(folder / "table.lance"))
    dataset = lance.dataset(str(folder / "table.lance"))

    def by_numpy() -> float:
        logits = key_map @ query
        weights = np.exp(logits - logits.max())
        return float(weights @ value_map / weights.sum())

    softmax = f"""
        with scored as (select array_inner_product(key, $1::float[{STORED_WIDTH}]) as s, value from t),
        top as (select max(s) as m from scored)
        select sum(exp(s - m) * value) / sum(exp(s - m)) from scored, top"""
    nearest = f"select value from t order by array_cosine_distance(key, $1::float[{STORED_WIDTH}]) limit 10"

    all_rows = {
        "qkv": lambda: database.ask(query.tolist(), score="dot").value,
        "NumPy, memory-mapped": by_numpy,
        "DuckDB": lambda: connection.execute(softmax, [query.tolist()]).fetchall()[0][0],
    }
    ten_rows = {
        "qkv": lambda: [row.index for row in database.ask(query.tolist()).rows],
        "DuckDB": lambda: connection.execute(nearest, [query.tolist()]).fetchall(),
        "Lance": lambda: dataset.to_table(
            columns=["value", "_distance"],
            nearest={"column": "key", "q": query, "k": 10, "metric": "cosine", "use_index": False},
        )["value"],
    }
    exact = by_numpy()
    errors = {name: abs(run() - exact) for name, run in all_rows.items() if name != "NumPy, memory-mapped"}
    if max(errors.values()) > 1e-4:
        raise WrongError(f"the answers differ: {errors}")
    cosine = keys @ query / np.linalg.norm(keys, axis=1)
    best = set(np.argpartition(-cosine, 10)[:10].tolist())
    wanted = {float(values[row]) for row in best}
    found = {float(value) for value in ten_rows["Lance"]().to_pylist()}
    if set(ten_rows["qkv"]()) != best or found != wanted or {v for (v,) in ten_rows["DuckDB"]()} != wanted:
        raise WrongError("the ten nearest rows differ")
    last = count == STORED[-1]
    note = f"rows of {STORED_WIDTH} numbers in files that are in the page cache; DuckDB runs on one thread"
    yield _row(
        f"store, softmax over {count} rows",
        race(all_rows, setting.rounds),
        worst=0.5 if last else None,
        errors=errors,
        note=note,
    )
    yield _row(
        f"store, ten nearest of {count} rows", race(ten_rows, setting.rounds), worst=1 if last else None, note=note
    )
    connection.close()


CLAIM = Claim(
    "Additive scores, kernel regression and the ten nearest rows of a store take less time than in other libraries at "
    "the largest size that these reach, a softmax over a store takes at most twice the time of NumPy, and memory is "
    "linear in the tokens.",
    "at the largest size that a peer reaches: additive at least 10 × faster, kernel regression and ten nearest rows "
    "faster, a softmax over a store at least 0.5 of the speed of NumPy; at most 64 MB at 16,384 tokens",
    (
        *("Keras AdditiveAttention", "PyTorch by hand and SDPA", "PyKeOps", "scikit-learn rbf_kernel"),
        *("statsmodels KernelReg", "NumPy", "DuckDB", "Lance"),
    ),
    rows,
)
