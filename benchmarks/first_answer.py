"""Claim: the first answer of a process takes little more than its imports, and later ones milliseconds.

Each table is asked by a process of its own, `python -m benchmarks.first_answer KIND ROWS IMPLEMENTATION`, which prints
the CPU seconds of the first and of later answers, the memory that the first one needed, and the answers.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks._calls import WrongError
from benchmarks._claim import AtMost, Claim, Row, Setting
from benchmarks._race import race

ROOT = Path(__file__).parent.parent
BASE = "import numpy, pyarrow, duckdb, rapidfuzz"
PEOPLE = [str(ROOT / "examples" / "people.csv"), "--key", "name", "--value", "income", "Jon Smiht"]
PROCESSES = {
    BASE: [sys.executable, "-c", BASE],
    "qkv --help": [sys.executable, "-m", "qkv", "--help"],
    "qkv ask": [sys.executable, "-m", "qkv", "ask", *PEOPLE],
}
# Kind, rows, goals of the first and of later answers in CPU seconds, and peers, the first of which finds the same.
CASES: tuple[tuple[str, int, float, float, tuple[str, ...]], ...] = (
    ("names", 10_000, 0.3, 0.002, ("rapidfuzz", "duckdb")),
    ("names", 1_000_000, 2.5, 0.03, ("rapidfuzz", "duckdb")),
    ("numbers", 10_000, 0.3, 0.05, ("numpy",)),
    ("numbers", 10_000_000, 3.0, 0.05, ("numpy",)),
    ("dates", 1_000_000, 3.0, 0.05, ("numpy",)),
)
SYLLABLES = [a + b for a in "bdfghklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "en", "in", "on", "ar", "er")]


def table(kind: str, rows: int) -> dict[str, Any]:
    """Return the columns `key` and `v` of a drawn table."""
    draw = np.random.default_rng(0)
    if kind == "names":
        words = np.array(["".join(draw.choice(SYLLABLES, 4)).capitalize() for _ in range(20_000)], object)
        first, last = draw.integers(0, len(words), (2, rows))
        return {"key": words[first] + " " + words[last], "v": draw.normal(size=rows)}
    x = draw.uniform(0, 100, rows)
    v = 10 * np.sin(x / 5) + x + draw.normal(0, 5, rows)
    seconds = np.datetime64("2020-01-01", "us") + (x * 86_400e6).astype("timedelta64[us]")
    return {"key": x if kind == "numbers" else seconds, "v": v}


def queries(kind: str, columns: dict[str, Any]) -> list[Any]:
    """Return six queries: names with a letter too many, or numbers and dates between those of the table."""
    if kind == "names":
        return [f"{columns['key'][row]}x" for row in range(6)]
    points = (42.1, 57.3, 12.5, 80.1, 99.0, 0.3)
    return [x if kind == "numbers" else np.datetime64("2020-01-01") + np.timedelta64(int(x * 24), "h") for x in points]


def ask_qkv(columns: dict[str, Any], arrow: pa.Table, kind: str) -> Callable[[Any], Any]:
    """Return a function that answers by `Database`: the name that is found, or the mean and the bandwidth."""
    from qkv import Database

    database = Database.open(arrow, key="key", value="v")

    def ask(query: Any) -> Any:
        answer = database.ask(query if kind != "dates" else query.item())
        if kind == "names":
            return columns["key"][int(answer.entries[0].rows[0])]
        return answer.value, answer.entries[0].calls[-1].bandwidth["key"]

    return ask


def ask_rapidfuzz(columns: dict[str, Any], arrow: pa.Table, kind: str) -> Callable[[Any], Any]:
    """Return a function that finds the name of largest Jaro–Winkler similarity."""
    from rapidfuzz import distance, process, utils

    names = [utils.default_process(name) for name in columns["key"]]

    def ask(query: str) -> Any:
        scorer = distance.JaroWinkler.normalized_similarity
        return columns["key"][process.extractOne(utils.default_process(query), names, scorer=scorer)[2]]

    return ask


def ask_duckdb(columns: dict[str, Any], arrow: pa.Table, kind: str) -> Callable[[Any], Any]:
    """Return a function that finds the name of largest Jaro–Winkler similarity in SQL."""
    import duckdb

    connection = duckdb.connect(config={"threads": "1"})
    connection.register("names", arrow)
    sql = "select arg_max(key, jaro_winkler_similarity(lower(key), lower(?))) from names"
    return lambda query: connection.execute(sql, [query]).fetchone()[0]


def ask_numpy(columns: dict[str, Any], arrow: pa.Table, kind: str) -> Callable[[Any], Any]:
    """Return a function of a query and a bandwidth that averages sorted rows with the weights of a Gaussian."""
    day = np.timedelta64(86_400_000_000, "us")
    key = columns["key"] if kind == "numbers" else (columns["key"] - np.datetime64("2020-01-01")) / day
    order = np.argsort(key)
    key, values = key[order], columns["v"][order]

    def ask(asked: tuple[Any, float]) -> Any:
        query, width = asked
        at = query if kind == "numbers" else (query - np.datetime64("2020-01-01")) / day
        low, high = np.searchsorted(key, [at - 11 * width, at + 11 * width])
        weights = np.exp(-0.5 * np.square((key[low:high] - at) / width))
        return weights @ values[low:high] / weights.sum()

    return ask


IMPLEMENTATIONS = {"qkv": ask_qkv, "rapidfuzz": ask_rapidfuzz, "duckdb": ask_duckdb, "numpy": ask_numpy}


def ask_all(kind: str, rows: int, name: str, widths: list[float]) -> dict[str, Any]:
    """Return the CPU seconds and the results of six answers, of which the first builds what it needs."""
    __import__({"qkv": "qkv.database"}.get(name, name))
    columns = table(kind, rows)
    arrow = pa.table(columns)
    asked = queries(kind, columns)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    ask, seconds, results = IMPLEMENTATIONS[name](columns, arrow, kind), [], []
    for number, query in enumerate(asked):
        results.append(ask((query, widths[number]) if name == "numpy" else query))
        seconds.append(time.process_time() - began)
        began = time.process_time()
    megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"first": seconds[0], "later": statistics.median(seconds[1:]), "MB": megabytes, "results": results}


def _run(kind: str, rows: int, name: str, widths: list[float]) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.first_answer", kind, str(rows), name, json.dumps(widths)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def rows(setting: Setting) -> Iterator[Row]:
    """Measure whole processes in rotation, and then each table in a process for each implementation and round."""
    with tempfile.TemporaryDirectory(prefix="qkv-bench") as compiled:
        settings = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        settings["PYTHONPYCACHEPREFIX"] = compiled
        runs = {name: _process(command, settings) for name, command in PROCESSES.items()}
        found = race(runs, max(setting.rounds, 9))
    yield found.row("qkv --help", BASE, AtMost(1.0), ours="qkv --help")
    yield found.row("qkv ask on a small table", BASE, AtMost(2.2), ours="qkv ask")
    for kind, size, first, later, peers in CASES:
        if setting.quick and size > 10_000:
            continue
        measured: dict[str, list[dict[str, Any]]] = {}
        for _ in range(3):
            own = _run(kind, size, "qkv", [])
            measured.setdefault("qkv", []).append(own)
            widths = [] if kind == "names" else [width for _, width in own["results"]]
            for peer in peers:
                measured.setdefault(peer, []).append(_run(kind, size, peer, widths))
        _check_results(kind, measured, peers[0])
        for what, goal in (("first", first), ("later", later)):
            seconds = {name: statistics.median(run[what] for run in runs) for name, runs in measured.items()}
            times = [run[what] for run in measured["qkv"]]
            memory = {name: max(run["MB"] for run in runs) for name, runs in measured.items()}
            case = f"{size:,} {kind}, {what} answer"
            spread = min(times), max(times)
            yield Row(case, "CPU time", seconds["qkv"], "s", AtMost(goal), spread, seconds=seconds, megabytes=memory)


def _process(command: list[str], settings: dict[str, str]) -> Callable[[], object]:
    return lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=settings)


def _check_results(kind: str, measured: dict[str, list[dict[str, Any]]], peer: str) -> None:
    """Raise a `WrongError` unless a peer finds the same names or means."""
    ours, theirs = measured["qkv"][0]["results"], measured[peer][0]["results"]
    same = ours == theirs if kind == "names" else np.allclose([value for value, _ in ours], theirs, rtol=1e-9)
    if not same:
        raise WrongError(f"the answers to {kind} are {ours}, and those of {peer} {theirs}")


CLAIM = Claim(
    "The first answer takes at most 2.2 × the imports for a small table, 2.5 s for a million names and 3 s for ten "
    "million numbers.",
    "at most 2.2 × the time of the imports; 2.5 and 3 s",
    (BASE, "rapidfuzz", "duckdb", "numpy"),
    rows,
)

if __name__ == "__main__":
    print(json.dumps(ask_all(sys.argv[1], int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))))
