"""A predicate filters the rows before anything is chosen from them: the answer is that of the table filtered first."""

import datetime as dt
import itertools

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from qkv.database import Database
from qkv.database.execute import statistics
from qkv.database.keys import row_sample
from tests.effort import LONG, seeds

PREDICATES = (
    "shop = 'Oslo'",
    "shop <> 'Oslo' and size > 2",
    "size > (select avg(size) from data)",
    "day >= date '2024-03-01'",
    "share is not null and share < 0.3",
    "size = 3 or name like 'a%'",
    "size > 1000",
)
KEYS = ("share", "day", "name", "shop", "share,size", "shop,share", "name,day", "ok", "shop,ok", "ok,share")
VALUES = ("price", "shop", "day", "ok")


def random_table(rng: np.random.Generator) -> pa.Table:
    """Return a table whose shops differ in scale, with missing cells and with values out of range elsewhere."""
    n = int(rng.integers(2, 120))
    shop = rng.choice(["Oslo", "Rome", "Lima"], n)
    factor = np.array([{"Oslo": 1.0, "Rome": 3.0, "Lima": 50.0}[each] for each in shop])
    share = [None if rng.random() < 0.1 else float(x) for x in rng.random(n)]
    return pa.table(
        {
            "shop": pa.array(shop.tolist()).dictionary_encode(),
            "name": [str(rng.choice(["anna", "anne", "bob", "carl", "carla"])) for _ in range(n)],
            "share": share,
            "size": rng.integers(0, 6, n),
            "day": [dt.date(2024, 1, 1) + dt.timedelta(int(d)) for d in rng.integers(0, 120, n)],
            "ok": rng.random(n) < 0.5,
            "price": [None if rng.random() < 0.1 else float(x) for x in factor * (1 + rng.random(n))],
        }
    )


def draw_query(rng: np.random.Generator, key: str) -> object:
    draws = {
        "share": lambda: float(rng.random()),
        "size": lambda: int(rng.integers(0, 6)),
        "day": lambda: dt.date(2024, 1, 1) + dt.timedelta(int(rng.integers(0, 120))),
        "name": lambda: str(rng.choice(["anna", "ann", "bbo", "karl"])),
        "shop": lambda: str(rng.choice(["Oslo", "Rome", "Lima"])),
        "ok": lambda: bool(rng.random() < 0.5),
    }
    cells = tuple(draws[name]() for name in key.split(","))
    return cells if len(cells) > 1 else cells[0]


def filtered(table: pa.Table, predicate: str) -> pa.Table:
    with duckdb.connect() as connection:
        connection.register("data", table)
        return connection.sql(f"select * from data where {predicate}").to_arrow_table().cast(table.schema)


def number(value: object) -> float:
    if isinstance(value, dt.timedelta):
        return value / dt.timedelta(days=1)
    return dt.datetime.combine(value, dt.time()).timestamp() if isinstance(value, dt.date) else float(value)


def heavy_rows(answer: object) -> list[str]:
    """Return the listed rows that are clearly heavier than the lightest one, in an order that ignores rounding."""
    least = answer.rows[-1].weight * (1 + 1e-6) + 1e-9
    listed = [(-round(row.weight, 6), str(row.record)) for row in answer.rows if row.weight > least]
    return [record for _, record in sorted(listed)]


def assert_same(got: object, wanted: object) -> None:
    assert (got.found, got.reason) == (wanted.found, wanted.reason)
    if not wanted.found:
        return
    if wanted.probabilities:
        for label in {*got.probabilities, *wanted.probabilities}:
            assert got.probabilities.get(label, 0) == pytest.approx(wanted.probabilities.get(label, 0), abs=1e-9)
        shares = [*wanted.probabilities.values(), 0.0]
        # Rounding decides between values of equal weight.
        assert got.value == wanted.value or shares[0] - shares[1] < 1e-9
    elif isinstance(wanted.value, dt.date):
        assert got.value == wanted.value
    else:
        assert number(got.value) == pytest.approx(number(wanted.value), rel=1e-9)
    assert number(got.spread) == pytest.approx(number(wanted.spread), rel=1e-6, abs=1e-6)
    assert got.perplexity == pytest.approx(wanted.perplexity, rel=1e-9)
    # Rows with equal weights can be exchanged by rounding, also with a row that is not listed.
    weights = [row.weight for row in wanted.rows]
    assert [row.weight for row in got.rows] == pytest.approx(weights, rel=1e-9, abs=1e-12)
    assert heavy_rows(got) == heavy_rows(wanted)


@pytest.mark.parametrize("seed", seeds(10, 1))
def test_where_gives_the_answer_of_the_table_filtered_beforehand(seed, tmp_path):
    rng = np.random.default_rng(seed)
    compared, tables = 0, 20 if LONG else 12
    for case in range(tables):
        table, predicate = random_table(rng), PREDICATES[rng.integers(len(PREDICATES))]
        key, value = KEYS[rng.integers(len(KEYS))], VALUES[rng.integers(len(VALUES))]
        queries = [draw_query(rng, key) for _ in range(3)]
        few = filtered(table, predicate)
        complete = [all(row[name] is not None for name in {*key.split(","), value}) for row in table.to_pylist()]
        if not any(complete):
            continue
        whole = Database.open(table, key, value)
        Database.create(tmp_path / str(case), table, key, value)
        streamed = Database.open(tmp_path / str(case), memory=1)
        assert streamed.streams
        remaining = [all(row[name] is not None for name in {*key.split(","), value}) for row in few.to_pylist()]
        if not any(remaining):
            for each in (whole, streamed):
                none = each.ask(queries[0], where=predicate)
                keys = [all(row[name] is not None for name in key.split(",")) for row in few.to_pylist()]
                assert not none.found
                assert any(keys) or none.reason == "no row satisfies the predicate"
            continue
        wanted = Database.open(few, key, value)
        for query, each in itertools.product(queries, (whole, streamed)):
            assert_same(each.ask(query, where=predicate), wanted.ask(query))
            compared += 1
    assert compared > 2 * tables


def test_the_order_of_the_rows_does_not_change_the_sample(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 50, 3000) / 10  # many equal rows
    y = np.sin(x) + rng.normal(size=3000)
    monkeypatch.setattr(row_sample, "MOST_ROWS", 500)
    order = rng.permutation(3000)
    first = Database.open({"x": x, "y": y}, "x", "y").ask(2.0)
    second = Database.open({"x": x[order], "y": y[order]}, "x", "y").ask(2.0)
    assert first.value == pytest.approx(second.value, rel=1e-12)
    assert first.notes == second.notes
    assert "sample of 500 of 3,000 rows" in " ".join(first.notes)


def test_memory_and_store_draw_the_same_sample_of_the_selected_rows(monkeypatch, tmp_path):
    monkeypatch.setattr(row_sample, "MOST_ROWS", 300)
    monkeypatch.setattr(statistics, "MOST_ROWS", 300)
    rng = np.random.default_rng(1)
    table = {"x": rng.normal(size=2000), "y": rng.normal(size=2000), "g": rng.integers(0, 3, 2000)}
    Database.create(tmp_path / "s", table, "x", "y")
    near = Database.open(table, "x", "y").ask(0.1, where="g = 1")
    far = Database.open(tmp_path / "s", memory=1).ask(0.1, where="g = 1")
    assert near.notes[2] == far.notes[2]
    assert "sample of 300 of" in near.notes[2]
    assert near.value == pytest.approx(far.value, rel=1e-9)


def test_a_sample_of_many_equal_rows_holds_each_content_in_proportion():
    from qkv.encoders.columns import Column

    table = pa.table({"x": np.repeat([0.0, 1.0, 2.0], [50_000, 40_000, 10_000])})
    column = Column.from_table(table, "x")
    rows = row_sample.sample_rows((column,), np.ones(100_000, bool), 5000)
    assert len(rows) == len(set(rows.tolist())) == 5000
    shares = np.bincount(column.cells[rows].astype(int)) / 5000
    assert shares == pytest.approx([0.5, 0.4, 0.1], abs=0.02)


def test_a_filter_that_selects_no_row_or_one_is_stated_in_one_sentence(tmp_path):
    table = {"x": [1.0, 2.0, 3.0], "v": [1.0, 2.0, 3.0]}
    for database in (Database.open(table, "x", "v"), Database.create(tmp_path / "s", table, "x", "v")):
        empty = database.ask(1.0, where="v > 9")
        assert (empty.found, empty.reason) == (False, "no row satisfies the predicate")
        (note,) = empty.notes
        assert note.startswith("3 rows of ")
        assert note.endswith("; 0 rows satisfy the predicate")
        one = database.ask(1.0, where="v = 1")
        assert one.notes[0].endswith("; 1 row satisfies the predicate")
        assert not any("1 rows" in text for text in one.notes)


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York", "+05:30", "UTC"])
def test_days_in_a_predicate_are_those_of_the_time_zone_of_the_column(zone, tmp_path):
    hours = pa.array(np.arange(200) * 3_600, pa.timestamp("s", zone))
    table = pa.table({"hour": np.arange(200), "moment": hours, "other": hours.cast(pa.timestamp("s", "Asia/Kolkata"))})
    second = np.flatnonzero(pc.day(hours).to_numpy() == 2).tolist()
    memory, store = Database.open(table, "hour", "hour"), Database.create(tmp_path / "s", table, "hour", "hour")
    for database in (memory, store):
        rows = database.ask(30, score="boxcar:1000", where="day(moment) = 2", top=200).rows
        assert sorted(row.index for row in rows) == second


UNDECIDED = "is read in the format %d/%m/%Y, day first, as no cell decides; --date-format %m/%d/%Y (in Python: "


@pytest.mark.parametrize(
    ("cells", "where", "note"),
    [
        (("03/04/2024", "02/11/2024"), "day > date '2024-05-01'", f"day {UNDECIDED}date_format) reads the month first"),
        (("03/04/2024", "02/11/2024"), "day > date '2025-05-01'", f"day {UNDECIDED}date_format) reads the month first"),
        (("13.04.2024", "n/a"), "Day > '2024-04-06'", "day holds texts that look like dates, such as '13.04.2024'"),
        (("9", "10", "n/a"), "day > '5'", "day holds texts, although 2 of 3 cells are numbers"),
        (("Monday", "Friday"), "day > 'K'", ""),
        (("13.04.2024", "n/a"), "name <> 'x'", ""),
    ],
)
def test_an_answer_says_how_a_predicate_reads_columns_that_are_neither_key_nor_value(tmp_path, cells, where, note):
    path = tmp_path / "t.csv"
    path.write_text("name,v,day\n" + "".join(f"Ann,{n},{cell}\n" for n, cell in enumerate(cells)))
    store = Database.create(tmp_path / "s", path, "name", "v")
    for database in (Database.open(path, "name", "v"), store, Database.open(tmp_path / "s", memory=1)):
        notes = database.ask("Ann", where=where).notes
        assert [text[: len(note)] for text in notes if text.startswith("day ")] == [note] * bool(note)
    store.delete(where)
    assert [text[: len(note)] for text in store.cell_notes] == [note] * bool(note)
