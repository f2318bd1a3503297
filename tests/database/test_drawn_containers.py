"""Drawn tables have the answers of plain Python in every container, in files and in stores, also with a filter."""

import csv
import datetime as dt
import random
from collections import Counter

import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from qkv.database import Database
from tests.database.drawn_tables import CELLS, containers, drawn_cells
from tests.effort import LONG, cases


def number(cell):
    """Return a cell as a number: of dates and times, the seconds since 1970."""
    if isinstance(cell, dt.timedelta):
        return cell.total_seconds()
    if isinstance(cell, dt.datetime):
        return cell.replace(tzinfo=dt.UTC).timestamp()
    return cell.toordinal() * 86_400.0 if isinstance(cell, dt.date) else float(cell)


def written(cell):
    return "" if cell is None else cell.isoformat(" ") if isinstance(cell, dt.datetime) else str(cell)


def sources(columns, kinds, folder):
    """Yield every container and every file of a table."""
    found = containers(columns, kinds)
    yield from found.values()
    yield columns
    yield found["arrow"].to_pylist()
    feather.write_feather(found["arrow"], folder / "t.feather")
    parquet.write_table(found["arrow"], folder / "t.parquet", row_group_size=9)
    yield folder / "t.feather"
    yield folder / "t.parquet"
    if "duration" not in kinds.values():
        with (folder / "t.csv").open("w", newline="") as file:
            rows = zip(*(map(written, cells) for cells in columns.values()), strict=True)
            csv.writer(file).writerows([columns, *rows])
        yield folder / "t.csv"


def expected(columns, query, least):
    """Return the possible answers to a query from the rows whose key equals it."""
    rows = [row for row in zip(*columns.values(), strict=True) if None not in row[:2]]
    rows = [row for row in rows if least is None or (row[2] is not None and row[2] > least)]
    values = [value for key, value, _ in rows if key == query]
    if not values or isinstance(values[0], str | bool):
        most = max(Counter(values).values(), default=0)
        return [value for value, count in Counter(values).items() if count == most] or [None]
    return [sum(map(number, values)) / len(values)]


def assert_is_one_of(answer, wanted, where):
    if isinstance(wanted[0], str | bool) or wanted[0] is None or answer is None:
        assert answer in wanted, where
        return
    rounding = 43_201 if type(answer) is dt.date else 1e-6  # to whole days
    assert number(answer) == pytest.approx(wanted[0], rel=1e-12, abs=rounding), where


def test_a_drawn_table_has_the_answers_of_plain_python_in_every_container(tmp_path):
    for seed in range(cases(100)):
        draw = random.Random(seed)
        kinds = {"k": draw.choice([*CELLS]), "v": draw.choice([*CELLS]), "w": draw.choice(["integer", "float"])}
        missing, least = draw.choice([0.0, 0.1, 0.4]), draw.choice([None, 0])
        columns = {name: drawn_cells(draw, kind, 30, missing) for name, kind in kinds.items()}
        queries = draw.sample(sorted({cell for cell in columns["k"] if cell is not None}), 2)
        filtered = {} if least is None else {"where": f"w > {least}"}
        for place, source in enumerate(sources(columns, kinds, tmp_path)):
            if not LONG and draw.random() < 0.7:
                continue
            store = tmp_path / f"{seed} {place}"
            Database.create(store, source, "k", "v")
            for database in (Database.open(source, "k", "v"), Database.open(store, memory=1)):
                for query, answer in zip(queries, database.ask(queries, score="exact", **filtered).value, strict=True):
                    assert_is_one_of(answer, expected(columns, query, least), (seed, type(source), kinds, query))


def test_rows_that_are_appended_and_deleted_in_drawn_stores_change_answers_as_in_plain_python(tmp_path):
    for seed in range(cases(60)):
        draw = random.Random(seed)
        kinds = {"k": draw.choice([*CELLS]), "v": draw.choice([*CELLS]), "w": "integer"}
        parts = [{name: drawn_cells(draw, kind, count, 0.2) for name, kind in kinds.items()} for count in (30, 9, 14)]
        tables = [pa.table(containers(part, kinds)[draw.choice(["arrow", "polars"])]) for part in parts]
        stored, least = Database.create(tmp_path / str(seed), tables[0], "k", "v"), draw.randint(-40, 40)
        stored.append(tables[1])
        stored.delete(f"w < {least}")
        stored.append(tables[2])
        rows = [row for part in parts[:2] for row in zip(*part.values(), strict=True)]
        rows = [row for row in rows if row[2] is None or row[2] >= least] + [*zip(*parts[2].values(), strict=True)]
        columns = dict(zip(kinds, zip(*rows, strict=True), strict=True))
        queries = draw.sample(sorted({key for key, *_ in rows if key is not None}), 2)
        for database in (Database.open(tmp_path / str(seed)), Database.open(tmp_path / str(seed), memory=1)):
            for query, answer in zip(queries, database.ask(queries, score="exact").value, strict=True):
                assert_is_one_of(answer, expected(columns, query, None), (seed, kinds, query))
