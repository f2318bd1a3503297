"""`python -m benchmarks.coverage`: how many new values the 90 % prediction intervals of `qkv ask` contain.

    simulated    values with a known distribution around a curve, or in groups of 3 to 60 rows
    public       rows of public tables that were left out: five splits or more, each with at most 4,500 rows of the
                 table as rows to answer from, and at most 1,500 others as queries
    fifths       simulated values that scatter more the larger the key is: the coverage in each fifth of the keys

The coverage counts the queries with an interval, that is, with at least two effective rows. The width is the median of
the intervals' lengths, relative to the length between the 5 % and the 95 % quantile of all values of the table.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from qkv.database import Database

if TYPE_CHECKING:
    from qkv.database import Answer

__all__ = [
    "GROWING",
    "NOISE",
    "Coverage",
    "contained",
    "fifths",
    "markdown",
    "public",
    "simulated",
    "simulated_curve",
    "simulated_groups",
]

_ROWS = 6000
_TEST_ROWS = 1500
# At least so many splits, and so many queries: one split of a small table says little.
_SPLITS = 5
_QUERIES = 4000

# Table, names of the columns that are keys (or their indices), and the value.
_TABLES = (
    ("california", "tables/california_housing.csv.gz", ("longitude", "latitude"), "median_house_value"),
    ("california income", "tables/california_housing.csv.gz", ("median_income",), "median_house_value"),
    ("abalone length, diameter", "tables/abalone.csv", (1, 2), 4),
    ("abalone shell", "tables/abalone.csv", (7,), 4),
    ("adult age", "tables/adult-train.csv.gz", (0,), 2),
    ("adult occupation", "tables/adult-train.csv.gz", (6,), 2),
    ("airfoil", "uci-evans/airfoil/data.csv.gz", (0, 1, 2), -1),
    ("autompg", "uci-evans/autompg/data.csv.gz", (3,), -1),
    ("parkinsons", "uci-evans/parkinsons/data.csv.gz", (0, 2), -1),
    ("pol", "uci-evans/pol/data.csv.gz", (4, 5), -1),
    ("sml", "uci-evans/sml/data.csv.gz", (2, 3), -1),
    ("stock", "uci-evans/stock/data.csv.gz", (4,), -1),
    ("wine", "uci/wine-quality-red/data.txt", (10,), 8),
)

NOISE: dict[str, Callable[[np.random.Generator, np.ndarray], np.ndarray]] = {
    "normal": lambda draw, x: draw.normal(size=len(x)),
    "skewed": lambda draw, x: draw.exponential(size=len(x)),
    "heavy tails": lambda draw, x: draw.standard_t(3, size=len(x)),
    "wider to the right": lambda draw, x: draw.normal(size=len(x)) * (0.2 + 2 * x),
}
"""Functions that draw noise for numbers x from 0 to 1."""

GROWING: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]] = {
    "constant, noise 0.02 + x": (lambda x: 0 * x, lambda x: 0.02 + x),
    "line, noise x": (lambda x: 3 * x, lambda x: x),
    "line, noise exp(4x) / 10": (lambda x: x, lambda x: np.exp(4 * x) / 10),
    "sine, noise 0.1 + x": (lambda x: np.sin(6 * x), lambda x: 0.1 + x),
    "sine, noise 0.05, from 0.5 on 1": (lambda x: np.sin(6 * x), lambda x: np.where(x < 0.5, 0.05, 1.0)),
}
"""Functions of numbers x from 0 to 1, and the standard deviations of the noise around them."""


@dataclass(frozen=True)
class Coverage:
    """The share of new values that intervals contain.

    Attributes:
        name: the table or the distribution.
        rows: number of rows of the table.
        distinct: number of distinct values.
        asked: number of queries.
        known: share of the queries with an interval.
        inside: share of the values that are in their interval, of those with an interval.
        width: the median length of the intervals relative to that of 90 % of all values.
        shorter: as `inside`, if the intervals were 2 % shorter. If many values are equal, no length contains 90 %.
    """

    name: str
    rows: int
    distinct: int
    asked: int
    known: float
    inside: float
    width: float
    shorter: float


def contained(answer: Sequence[Answer] | Answer, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the answers with an interval: whether it and one that is 2 % shorter have the value, and its length."""
    ends = [one.prediction_interval or (np.nan, np.nan) for one in answer]
    low, high = np.array(ends, np.float64).reshape(-1, 2).T
    known = ~np.isnan(low)
    margin = 0.01 * (high - low)
    inside = [(low + less <= values) & (values <= high - less) for less in (0.0, margin)]
    return np.stack(inside, axis=1)[known], (high - low)[known]


def simulated_curve(noise: str, rows: int, tables: int, **options: str) -> Coverage:
    """Return the coverage for values around sin 6x with noise.

    Args:
        noise: the name of the distribution.
        rows: number of rows of each table.
        tables: number of tables, each asked for 1,000 new values.
        options: more arguments of `Database.ask`.
    """
    covered, widths, values = [], [], np.zeros(0)
    for seed in range(tables):
        draw = np.random.default_rng(seed)
        x, new = draw.random(rows), draw.random(1000)
        y = np.sin(6 * x) + NOISE[noise](draw, x)
        answer = Database.open({"x": x, "y": y}, "x", "y").ask(new.tolist(), top=1, **options)
        inside, width = contained(answer, np.sin(6 * new) + NOISE[noise](draw, new))
        covered.append(inside)
        widths.append(width)
        values = np.concatenate([values, y])
    return _coverage(f"curve, {noise}", rows, tables * 1000, covered, widths, values)


def fifths(name: str, rows: int, tables: int, **options: str) -> list[float]:
    """Return the coverage in each fifth of the keys, for values whose noise grows with the key.

    Args:
        name: the name of the function and its noise, a key of `GROWING`.
        rows: number of rows of each table.
        tables: number of tables, each asked for 2,000 new values.
        options: more arguments of `Database.ask`.
    """
    center, scale = GROWING[name]
    inside: list[list[np.ndarray]] = [[] for _ in range(5)]
    for seed in range(tables):
        draw = np.random.default_rng(seed)
        x, new = draw.random(rows), np.sort(draw.random(2000))
        y, wanted = (center(at) + scale(at) * draw.normal(size=len(at)) for at in (x, new))
        answer = Database.open({"x": x, "y": y}, "x", "y").ask(new.tolist(), top=1, **options)
        answers = list(answer)
        for number in range(5):
            some = slice(400 * number, 400 * number + 400)
            inside[number].append(contained(answers[some], wanted[some])[0][:, 0])
    return [float(np.concatenate(each).mean()) for each in inside]


def simulated_groups(noise: str, kind: str) -> Coverage:
    """Return the coverage for groups of 3 to 60 values, whose scales differ by up to 1e12.

    Args:
        noise: the name of the distribution.
        kind: the kind of the key: "category" or "text".
    """
    covered, widths, news, rows = [], [], [], 0
    for seed in range(4):
        draw = np.random.default_rng(seed)
        size = draw.integers(3, 60, 150)
        scale = 10.0 ** draw.uniform(-6, 6, 150)
        group = np.repeat(np.arange(150), size)
        value = scale[group] * NOISE[noise](draw, group / 150)
        name = [f"group {n:03}" for n in group]
        names = pa.array(name).dictionary_encode() if kind == "category" else name
        answer = Database.open(pa.table({"name": names, "value": value}), "name", "value").ask(sorted(set(name)), top=1)
        asked = np.repeat(np.arange(150), 20)
        new = NOISE[noise](draw, asked / 150)
        inside, width = contained([answer[n] for n in asked], scale[asked] * new)
        covered.append(inside)
        widths.append(width / scale[asked])
        news.append(new)
        rows += len(value)
    return _coverage(f"groups ({kind}), {noise}", rows // 4, 4 * 3000, covered, widths, np.concatenate(news))


def simulated() -> Iterator[Coverage]:
    """Yield the coverage for each kind of simulated table."""
    for noise in NOISE:
        for rows in (300, 1500):
            yield simulated_curve(noise, rows, 9000 // rows)
    for noise in ("normal", "skewed", "heavy tails"):
        yield simulated_groups(noise, "category")


def public(folder: Path, **options: str) -> Iterator[Coverage]:
    """Yield the coverage for each public table.

    Args:
        folder: the folder of public data.
        options: more arguments of `Database.ask`.
    """
    for name, columns, keys in _tables(folder):
        covered, widths, asked_rows = [], [], 0
        cells = {each: pa.array(column) for each, column in columns.items()}
        table = pa.table({n: c.dictionary_encode() if pa.types.is_string(c.type) else c for n, c in cells.items()})
        rows = min(_ROWS, table.num_rows)
        count = min(_TEST_ROWS, rows // 4)
        for seed in range(max(_SPLITS, -(-_QUERIES // count))):
            order = np.random.default_rng(seed).permutation(table.num_rows)[:rows]
            asked = table.take(order[:count])
            database = Database.open(table.take(np.sort(order[count:])), keys, "value")
            queries = [tuple(row[key] for key in keys) for row in asked.to_pylist()]
            answer = database.ask(queries if len(keys) > 1 else [query for (query,) in queries], top=1, **options)
            inside, width = contained(answer, np.array(asked.column("value").to_pylist()))
            covered.append(inside)
            widths.append(width)
            asked_rows += count
        yield _coverage(name, table.num_rows, asked_rows, covered, widths, np.array(columns["value"], np.float64))


def markdown(found: Sequence[Coverage]) -> str:
    """Return a table with one line for each coverage."""
    lines = ["| | rows | queries | with interval | coverage | width |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {one.name} | {one.rows:,} | {one.asked:,} | {one.known:.1%} | {one.inside:.1%} | {one.width:.2f} |"
        for one in found
    ]
    return "\n".join(lines)


def _coverage(
    name: str, rows: int, asked: int, covered: list[np.ndarray], widths: list[np.ndarray], values: np.ndarray
) -> Coverage:
    inside, width = np.concatenate(covered), np.concatenate(widths)
    middle = float(np.subtract(*np.quantile(values, [0.95, 0.05])))
    distinct = len(np.unique(values))
    share, shorter = inside.mean(axis=0).tolist()
    return Coverage(name, rows, distinct, asked, len(inside) / asked, share, np.median(width) / middle, shorter)


def _tables(folder: Path) -> Iterator[tuple[str, dict[str, list[object]], list[str]]]:
    """Yield the name, the columns and the key of each table; the value is in the column `value`."""
    for name, file, keys, value in _TABLES:
        rows = _read(folder / file)
        header = None
        if isinstance(value, str):
            header, rows = rows[0], rows[1:]
        columns = [header.index(key) if header else key for key in (*keys, value)]
        rows = [row for row in rows if len(row) > 1 and all(row[column].strip() for column in columns)]
        names = [f"key{n}" for n in range(len(keys))]
        table = {each: _cells([row[c] for row in rows]) for each, c in zip((*names, "value"), columns, strict=True)}
        yield name, table, names


def _read(path: Path) -> list[list[str]]:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    lines = text.splitlines()
    return [line.split() for line in lines] if path.suffix == ".txt" else list(csv.reader(lines))


def _cells(texts: list[str]) -> list[object]:
    try:
        return np.array(texts, float).tolist()
    except ValueError:
        return [text.strip() for text in texts]


def main() -> int:
    """Print the coverage of prediction intervals for simulated and for public tables."""
    argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__.splitlines()[0]).parse_args()
    print("Simulated tables:\n")
    print(markdown(list(simulated())))
    print("\nNoise that grows with the key, by fifth of the keys:\n")
    print("| | rows | 1 | 2 | 3 | 4 | 5 |\n|---|---|---|---|---|---|---|")
    for name in GROWING:
        for rows in (300, 1500):
            shares = " | ".join(f"{share:.1%}" for share in fifths(name, rows, 9000 // rows))
            print(f"| {name} | {rows:,} | {shares} |", flush=True)
    if "QKV_DATA" not in os.environ:
        print("QKV_DATA does not name the folder of public data: public tables are left out.", file=sys.stderr)
        return 0
    print("\nPublic tables:\n")
    print(markdown(list(public(Path(os.environ["QKV_DATA"])))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
