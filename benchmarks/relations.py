"""`python -m benchmarks.relations`: relations of queries beside ASOF JOIN, full-text search and vss in DuckDB.

    values   a tenth of the rows of a table are queries, and the others the keys; ASOF JOIN takes the value of the last
             row at or before the query, or of the nearer of its two neighbours
    names    names in public lists are found by the queries of `benchmarks.names`; full-text search ranks by BM25
    vectors  the ten word vectors of largest cosine are found for vectors that were left out; vss uses an HNSW index

Errors are root mean squares over the queries that all methods answer, in standard deviations of the values. CPU times
are those of this process, per query and for the preparation: opening the table or building the index.
"""

from __future__ import annotations

import argparse
import gzip
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.names import KINDS, derive, lists, split
from qkv.database import Database

__all__ = ["ValueTable", "answer_values", "asof_errors", "load", "main", "name_rates", "value_tables", "vector_recalls"]

_NAMES = 40
_VECTORS = 200
_TOP = 10

_LAST = "select q.i, d.y from q asof left join d on q.g = d.g and q.x >= d.x"
_NEXT = "select q.i, d.y from q asof left join d on q.g = d.g and q.x <= d.x"
_NEAREST = """
    select q.i, case when b.x is null or a.x - q.x < q.x - b.x then a.y else b.y end as y
    from q asof left join d as b on q.g = b.g and q.x >= b.x
    join (select q.i, q.x as at, d.x, d.y from q asof left join d on q.g = d.g and q.x <= d.x) a on a.i = q.i
"""


@dataclass(frozen=True)
class ValueTable:
    """A table of values y over keys x, within groups g or in one group.

    Attributes:
        title: what the key and the value are.
        keys: the names of the key columns, `x` or `g` and `x`.
        rows: a table with the columns g, x and y.
    """

    title: str
    keys: tuple[str, ...]
    rows: pa.Table


def value_tables(folder: Path) -> list[ValueTable]:
    """Return the tables of `values` in the folder of public data, and those of `vega_datasets` if it is installed."""
    tables = folder / "tables"
    read = [
        ("mcycle: acceleration by time", f"select times as x, accel as y from '{tables}/mcycle.csv'"),
        ("ethanol: NOx by equivalence ratio", f"select E as x, NOx as y from '{tables}/ethanol.csv'"),
        ("faithful: waiting by eruption", f"select eruptions as x, waiting as y from '{tables}/faithful.csv'"),
        ("abalone: rings by length", f"select column1 as x, column8 as y from '{tables}/abalone.csv'"),
        (
            "California: house value by income",
            f"select median_income as x, median_house_value as y from '{tables}/california_housing.csv.gz'",
        ),
    ]
    out = [ValueTable(title, ("x",), _table(f"select 0 as g, x::double as x, y::double as y from ({sql})"))
           for title, sql in read]  # fmt: skip
    spec = find_spec("vega_datasets")
    if spec is None or spec.origin is None:
        print("vega_datasets is not installed, its tables are left out.", file=sys.stderr)
        return out
    data = Path(spec.origin).parent / "_data"
    out.append(
        ValueTable(
            "Seattle: temperature by date",
            ("x",),
            _table(f"select 0 as g, date as x, temp_max as y from read_csv('{data}/seattle-weather.csv')"),
        )
    )
    stocks = f"select symbol as g, strptime(date, '%b %d %Y')::date as x, price as y from '{data}/stocks.csv'"
    out.append(ValueTable("stocks: price by share and month", ("g", "x"), _table(stocks)))
    return out


def asof_errors(table: ValueTable) -> list[object]:
    """Return the cells of a row of the table of values, over as many tenths of the rows as make 1,000 queries."""
    parts = np.array_split(np.random.default_rng(0).permutation(table.rows.num_rows), 10)
    needed = max(1, -(-1000 // len(parts[0])))
    found: dict[str, list[np.ndarray]] = {name: [] for name in ("truth", "last", "nearest", "ask", "lower", "upper")}
    seconds = dict.fromkeys(("last", "nearest", "open", "ask"), 0.0)
    for part in parts[:needed]:
        kept = np.sort(np.setdiff1d(np.arange(table.rows.num_rows), part))
        cells = answer_values(table.keys, table.rows.take(kept), table.rows.take(part), seconds)
        for name, column in cells.items():
            found[name].append(column)
    joined = {name: np.concatenate(columns) for name, columns in found.items()}
    truth, count = joined["truth"], len(joined["truth"])
    both = np.logical_and.reduce([np.isfinite(joined[name]) for name in ("last", "nearest", "ask")])
    scale = np.std(np.array(table.rows["y"].to_pylist(), float))
    errors = [np.sqrt(np.mean((joined[n][both] - truth[both]) ** 2)) / scale for n in ("last", "nearest", "ask")]
    known = np.isfinite(joined["lower"])
    inside = np.mean((truth[known] >= joined["lower"][known]) & (truth[known] <= joined["upper"][known]))
    each = [f"{1e3 * seconds[name] / count:.2f}" for name in ("nearest", "ask")]
    answered = f"{np.mean(np.isfinite(joined['ask'])):.1%}"
    return [table.title, f"{count:,}", *(f"{error:.3f}" for error in errors), answered, f"{inside:.0%}", *each,
            f"{seconds['open'] / min(needed, len(parts)):.2f}"]  # fmt: skip


def answer_values(keys: tuple[str, ...], d: pa.Table, q: pa.Table, seconds: dict[str, float]) -> dict[str, np.ndarray]:
    """Return the values of the queries and their answers by each method, and add the CPU times to `seconds`."""
    connection = duckdb.connect()
    connection.register("d", d)
    connection.register("q", q.drop_columns(["y"]).append_column("i", pa.array(range(q.num_rows))))
    out = {"truth": _floats(q["y"])}
    for name, sql in (("last", _LAST), ("nearest", _NEAREST)):
        start = time.process_time()
        out[name] = _floats(connection.sql(f"select y from ({sql}) order by i").to_arrow_table()["y"])
        seconds[name] += time.process_time() - start
    start = time.process_time()
    reader = Database.open(d, list(keys), "y").ask_batches(q.select([*keys]))
    opened = time.process_time()
    answers = reader.read_all()
    seconds["open"] += opened - start
    seconds["ask"] += time.process_time() - opened
    return out | {"ask": _floats(answers["value"])} | {name: _floats(answers[name]) for name in ("lower", "upper")}


def _floats(column: pa.ChunkedArray) -> np.ndarray:
    return np.array([np.nan if cell is None else cell for cell in column.to_pylist()], float)


def name_rates(names: list[str]) -> tuple[dict[str, list[list[bool]]], list[float]]:
    """Return for each kind of query whether full-text search and `ask` find the name, and their CPU times in ms.

    Raises:
        duckdb.Error: The extension fts is not available.
    """
    keys, absent = split(names)
    connection = duckdb.connect()
    load(connection, "fts")
    connection.register("given", pa.table({"id": range(len(keys)), "name": keys}))
    connection.execute("create table names as from given")
    connection.execute("pragma create_fts_index('names', 'id', 'name', stemmer = 'none', stopwords = 'none')")
    ranked = "select name, fts_main_names.match_bm25(id, ?) as s from names where s is not null order by s desc limit 2"
    database = Database.open({"name": keys, "row": range(len(keys))}, "name", "row")
    rates: dict[str, list[list[bool]]] = {}
    seconds, count = [0.0, 0.0], 0
    for kind in KINDS:
        asked = derive(kind, keys, absent, 0)[:_NAMES]
        start = time.process_time()
        found = []
        for query, _ in asked:
            rows = connection.execute(ranked, [query]).fetchall()
            tie = len(rows) > 1 and rows[0][1] == rows[1][1]
            found.append(None if tie or not rows else rows[0][0])
        middle = time.process_time()
        answers = database.ask_batches({"name": [query for query, _ in asked]}, id="name", top=1).read_all()
        own = [row["evidence"][0]["id"] if row["found"] else None for row in answers.to_pylist()]
        seconds = [seconds[0] + middle - start, seconds[1] + time.process_time() - middle]
        count += len(asked)
        truths = [truth for _, truth in asked]
        rates[kind] = [[a == b for a, b in zip(each, truths, strict=True)] for each in (found, own)]
    return rates, [1e3 * each / max(count, 1) for each in seconds]


def vector_recalls(folder: Path) -> list[list[object]]:
    """Return the rows of the table of vectors."""
    with gzip.open(folder / "vectors" / "googlenews8k_300d_f16.npy.gz") as file:
        vectors = np.load(file).astype(np.float32)
    words = (folder / "vectors" / "googlenews8k_words.txt").read_text(encoding="utf-8").split()
    chosen = np.random.default_rng(0).permutation(len(vectors))
    keys, queries = vectors[chosen[_VECTORS:]], vectors[chosen[:_VECTORS]]
    width = vectors.shape[1]
    unit = keys / np.linalg.norm(keys, axis=1, keepdims=True)
    exact = np.argsort(-(queries / np.linalg.norm(queries, axis=1, keepdims=True)) @ unit.T, axis=1)[:, :_TOP]
    table = pa.table(
        {
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(keys.ravel()), width),
            "word": [words[row] for row in chosen[_VECTORS:]],
            "row": pa.array(range(len(keys))),
        }
    )
    out = []
    for name in ("DuckDB without an index", "vss"):
        try:
            out.append(_timed(name, exact, *_nearest_in_duckdb(table, queries, index=name == "vss")))
        except duckdb.Error:
            out.append([name, "not available", "", ""])
    start = time.process_time()
    database = Database.open(table, "vector", "row")
    options = {"score": "cosine", "normalizer": f"topk:{_TOP}", "min_similarity": -1.0, "top": _TOP}  # refuses no query
    answers = database.ask_batches({"vector": queries.tolist()}, **options)
    opened = time.process_time() - start
    rows = [[each["id"] for each in row] for row in answers.read_all()["evidence"].to_pylist()]
    return [*out, _timed("`ask`", exact, rows, opened, time.process_time() - start - opened)]


def _nearest_in_duckdb(table: pa.Table, queries: np.ndarray, index: bool) -> tuple[list[list[int]], float, float]:
    """Return the nearest rows of each query, and the CPU seconds of preparation and search."""
    connection = duckdb.connect()
    if index:
        load(connection, "vss")
    start = time.process_time()
    connection.register("given", table)
    connection.execute("create table t as from given")
    if index:
        connection.execute("create index nearest on t using hnsw (vector) with (metric = 'cosine')")
    opened = time.process_time() - start
    width = queries.shape[1]
    if index:  # which joins do not use
        sql = f"select row from t order by array_cosine_distance(vector, ?::float[{width}]) limit {_TOP}"
        rows = [[row for (row,) in connection.execute(sql, [query.tolist()]).fetchall()] for query in queries]
    else:
        asked = pa.FixedSizeListArray.from_arrays(pa.array(queries.ravel()), width)
        connection.register("asked", pa.table({"i": range(len(queries)), "q": asked}))
        ordered = f"select row from t order by array_cosine_distance(vector, asked.q) limit {_TOP}"
        rows = (
            connection.sql(f"select list(row) from asked, lateral ({ordered}) group by i order by i")
            .to_arrow_table()
            .column(0)
            .to_pylist()
        )
    return rows, opened, time.process_time() - start - opened


def _timed(name: str, exact: np.ndarray, rows: Sequence[Sequence[int]], opened: float, seconds: float) -> list[object]:
    recall = np.mean([len(set(a) & set(b.tolist())) / _TOP for a, b in zip(rows, exact, strict=True)])
    return [name, f"{recall:.1%}", f"{1e3 * seconds / len(rows):.1f}", f"{opened:.2f}"]


def load(connection: duckdb.DuckDBPyConnection, extension: str) -> None:
    """Load an extension from the package `duckdb-extension-NAME`, or one that DuckDB has installed.

    Raises:
        duckdb.Error: It is not available.
    """
    spec = find_spec(f"duckdb_extension_{extension}")
    folder = Path(spec.origin).parent if spec is not None and spec.origin is not None else Path()
    files = sorted(folder.glob(f"extensions/v{duckdb.__version__}/*.duckdb_extension")) if spec is not None else []
    connection.execute(f"load '{files[0]}'" if files else f"load {extension}")


def _table(sql: str) -> pa.Table:
    with duckdb.connect() as connection:
        return connection.sql(f"from ({sql}) where x is not null and y is not null").to_arrow_table()


def _print(title: str, header: str, rows: Sequence[Sequence[object]]) -> None:
    print(f"\n**{title}**\n\n{header}\n{'|---' * (header.count('|') - 1)}|")
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")


def _print_names(folder: Path) -> None:
    results, times, titles = [], [], []
    for title, _, names in lists(folder):
        try:
            rates, milliseconds = name_rates(names)
        except duckdb.Error as error:
            print(f"\nfts is not available: {str(error).splitlines()[0]}")
            return
        results.append(rates)
        times.append(milliseconds)
        titles.append(title)
    rows: list[list[object]] = []
    for kind in KINDS:
        rows.append([kind, *(f"{100 * _mean(results, [kind], method):.0f}" for method in (0, 1))])
    rows.append(["all kinds", *(f"{100 * _mean(results, KINDS, method):.0f}" for method in (0, 1))])
    rows.append(["CPU ms per query", *(f"{np.mean([each[method] for each in times]):.1f}" for method in (0, 1))])
    _print(f"Names: right answers in percent, {len(titles)} lists", "| | full-text search | `ask` |", rows)


def _mean(results: list[dict[str, list[list[bool]]]], kinds: Sequence[str], method: int) -> float:
    return float(np.mean([np.mean([hit for rates in results for hit in rates[kind][method]]) for kind in kinds]))


def main() -> int:
    """Print the three tables."""
    parts: dict[str, Callable[[Path], None]] = {
        "values": lambda folder: _print(
            "Values: root mean square error, in standard deviations",
            "| table | queries | last row | nearest row | `ask` | answered | in the 90 % interval "
            "| ms, nearest row | ms, `ask` | s, open |",
            [asof_errors(table) for table in value_tables(folder)],
        ),
        "names": _print_names,
        "vectors": lambda folder: _print(
            "Vectors: ten nearest of 7,800 word vectors",
            "| | found | CPU ms per query | CPU s to prepare |",
            vector_recalls(folder),
        ),
    }
    parser = argparse.ArgumentParser(prog="python -m benchmarks.relations", description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=[*parts], help="one of the three tables")
    given = parser.parse_args()
    if "QKV_DATA" not in os.environ:
        parser.error("QKV_DATA must name the folder of public data. Set the variable.")
    print(f"DuckDB {duckdb.__version__}")
    for name in [given.only] if given.only else parts:
        parts[name](Path(os.environ["QKV_DATA"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
