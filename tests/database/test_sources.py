"""A table is a table, wherever it comes from."""

import datetime as dt
import gzip
import json
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch

from qkv.database import Database
from qkv.database.io.duckdb_file import CLOSED, _first_sentence, open_connection
from qkv.database.io.sources import describe, suggest_name
from qkv.errors import DataError, QueryError
from tests.database.databases import every_database

ROWS = {"name": ["John Doe", "Jane Roe", "Li Mu"], "income": [1000, 2000, 3000]}
TABLE = pa.table(ROWS)
CSV = "name,income\nJohn Doe,1000\nJane Roe,2000\nLi Mu,3000\n"


def json_lines():
    return "".join(json.dumps(row) + "\n" for row in TABLE.to_pylist())


def write(path, text):
    path.write_text(text, encoding="utf-8")


def ipc(path, kind):
    new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with pa.OSFile(str(path), "wb") as sink, new(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)


def zipped(path):
    ipc(path.with_suffix(""), "file")
    path.write_bytes(gzip.compress(path.with_suffix("").read_bytes()))


FILES = {
    "people.csv": lambda path: write(path, CSV),
    "people.CSV": lambda path: write(path, CSV),
    "people.txt": lambda path: write(path, CSV.replace(",", ";")),
    "people.tsv": lambda path: write(path, CSV.replace(",", "\t")),
    "people.jsonl": lambda path: write(path, json_lines()),
    "people.ndjson": lambda path: write(path, json_lines()),
    "people.json": lambda path: write(path, json.dumps(TABLE.to_pylist())),
    "people.csv.gz": lambda path: path.write_bytes(gzip.compress(CSV.encode())),
    "people.jsonl.gz": lambda path: path.write_bytes(gzip.compress(json_lines().encode())),
    "people.parquet": lambda path: pyarrow.parquet.write_table(TABLE, path),
    "people.feather": lambda path: pyarrow.feather.write_feather(TABLE, path),
    "people.arrow": lambda path: ipc(path, "file"),
    "stream.arrow": lambda path: ipc(path, "stream"),
    "people.arrow.gz": zipped,
    "odd [1]*name.csv": lambda path: write(path, CSV),
}


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_gives_the_same_answer(name, tmp_path):
    FILES[name](tmp_path / name)
    for source in (tmp_path / name, str(tmp_path / name)):
        people = Database.open(source, key="name", value="income")
        assert people.ask("Jane Roe", score="exact").value == 2000.0
        assert people.table.column_names == ["name", "income"]


OBJECTS = {
    "dict of lists": lambda: ROWS,
    "dict of arrays": lambda: {name: np.array(cells) for name, cells in ROWS.items()},
    "list of records": lambda: TABLE.to_pylist(),
    "pyarrow table": lambda: TABLE,
    "pyarrow batch": lambda: TABLE.to_batches()[0],
    "pandas frame": lambda: pd.DataFrame(ROWS),
    "pandas frame with a named index": lambda: pd.DataFrame(ROWS).set_index("name"),
    "pandas frame of objects": lambda: pd.DataFrame(ROWS).astype({"income": float}).astype(object),
    "polars frame": lambda: pl.DataFrame(ROWS),
    "dict of polars series": lambda: {name: pl.Series(cells) for name, cells in ROWS.items()},
    "dict with a tensor": lambda: ROWS | {"income": torch.tensor([1000.0, 2000.0, 3000.0], requires_grad=True)},
    "dict with an array of another byte order": lambda: ROWS | {"income": np.array(ROWS["income"], ">f8")},
    "pandas series with a named index": lambda: pd.DataFrame(ROWS).set_index("name")["income"],
    "pandas frame with a sparse column": lambda: pd.DataFrame(ROWS).astype({"income": pd.SparseDtype(float)}),
    "polars lazy frame": lambda: pl.LazyFrame(ROWS),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_every_kind_of_object_gives_the_same_answer(name):
    people = Database.open(OBJECTS[name](), key="name", value="income")
    assert people.ask("Jane Roe", score="exact").value == 2000.0


NOON = dt.datetime(2024, 1, 2, 12)
MIXED_TIMES = {
    "lists": lambda cells: {"day": cells, "value": [1.0, 2.0]},
    "records, the second with more names": lambda cells: [{"value": 1.0}, {"value": 2.0, "day": cells[1]}],
    "objects in a frame": lambda cells: pd.DataFrame({"day": pd.Series(cells, dtype=object), "value": [1.0, 2.0]}),
}


@pytest.mark.parametrize("form", MIXED_TIMES)
def test_a_timestamp_after_a_date_keeps_its_time(form):
    days = Database.open(MIXED_TIMES[form]([dt.date(2024, 1, 1), NOON]), "day", "value")
    assert days.table.column("day").to_pylist()[1] == NOON


@pytest.mark.parametrize("form", ["lists", "objects in a frame"])
def test_timestamps_with_and_without_a_time_zone_are_refused(form):
    source = MIXED_TIMES[form]([NOON, NOON.replace(tzinfo=dt.UTC)])
    with pytest.raises(DataError, match="must all have a time zone or all have none, got 1 with one among 2"):
        Database.open(source, "day", "value")


OTHER_KINDS = [(NOON.date(), 5), (NOON, 5), (NOON.time(), 5), (dt.timedelta(1), 5), (2.5, True), (b"a", "a"), (1, "1")]


@pytest.mark.parametrize("form", ["lists", "objects in a frame"])
@pytest.mark.parametrize("cells", [*OTHER_KINDS, (NOON.time(), NOON.time().replace(tzinfo=dt.UTC))], ids=str)
def test_cells_of_two_kinds_are_refused_in_either_order(cells, form):
    for each in (cells, cells[::-1]):
        with pytest.raises(DataError, match=r"of one kind, got|must have no time zone"):
            Database.open(MIXED_TIMES[form](list(each)), "day", "value")


DAY, MIDNIGHT, LATE = NOON.date(), NOON.replace(hour=0), pd.Timestamp(1)
KEPT = {
    "nanoseconds": ([LATE, NOON], [LATE, NOON]),
    "nanoseconds in a zone": ([LATE.tz_localize("Europe/Oslo"), None], [LATE.tz_localize("Europe/Oslo"), None]),
    "nanoseconds of durations": ([pd.Timedelta(1), dt.timedelta(1)], [pd.Timedelta(1), dt.timedelta(1)]),
    "lists": ([[DAY, NOON], None], [[MIDNIGHT, NOON], None]),
    "records": (
        [{"from": DAY}, {"from": NOON, "to": LATE}],
        [{"from": MIDNIGHT, "to": None}, {"from": NOON, "to": LATE}],
    ),
}


@pytest.mark.parametrize("form", ["lists", "objects in a frame"])
@pytest.mark.parametrize("name", KEPT)
def test_objects_keep_nanoseconds_and_the_times_in_lists_and_records(name, form):
    given, kept = KEPT[name]
    assert Database.open(MIXED_TIMES[form](given), "value", "value").table["day"].to_pylist() == kept


@pytest.mark.parametrize("missing", [float("nan"), pd.NaT, pd.NA, None], ids=repr)
@pytest.mark.parametrize("cell", ["text", 5, True, NOON, NOON.date(), NOON.time()], ids=repr)
def test_a_missing_cell_of_any_spelling_is_null_in_lists_of_any_kind(cell, missing):
    for cells in ([missing, cell], [cell, missing]):
        table = Database.open({"key": ["a", "b"], "other": cells, "value": [1.0, 2.0]}, "key", "value").table
        assert [each for each in table["other"].to_pylist() if each is not None and each == each] == [cell]


def test_sql_reads_files_and_given_tables(tmp_path):
    write(tmp_path / "people.csv", CSV)
    query = f"select name, income * factor as pay from '{tmp_path / 'people.csv'}' join rates using (name)"
    rates = {"name": ["John Doe", "Jane Roe"], "factor": [2, 3]}
    people = Database.sql(query, key="name", value="pay", tables={"rates": rates})
    assert len(people) == 2
    assert people.ask("Jane Roe", score="exact").value == 6000.0


def test_a_header_of_texts_over_texts_is_a_header(tmp_path):
    write(tmp_path / "t.csv", "last,first\nLi,Mu\nHu,Rachel\n")
    assert Database.open(tmp_path / "t.csv", key="last", value="first").ask("Hu").value == "Rachel"


@pytest.mark.parametrize("name", ["a,b", " c ", 'c "d"', "c\nd"])
def test_a_column_of_any_name_can_be_the_key(tmp_path, name):
    table = {name: [1.0, 2.0, 3.0], "b": [1, 2, 3], "value": [1, 2, 3]}
    quoted = '"' + name.replace('"', '""') + '"'
    for key in (name, [name], f"{quoted}, b"):
        assert Database.open(table, key=key, value="value").key[0] == name
    pd.DataFrame(table).to_csv(tmp_path / "t.csv", index=False)
    assert Database.open(tmp_path / "t.csv", key=f"{quoted},b", value="value").key == (name.strip(), "b")
    if name == "a,b":
        assert Database.open(tmp_path / "t.csv", key=name, value="value").ask(2, score="exact").value == 2.0
        assert Database.create(tmp_path / "s", tmp_path / "t.csv", name, "value").key == (name,)


BAD_OBJECTS = {
    "a number": (3, "source must be"),
    "no records": ([], "source must be"),
    "unequal columns": ({"name": ["a"], "income": [1, 2]}, "equal length"),
    "a bare text": ({"name": "abc", "income": [1]}, "must be a list or an array"),
    "a cube": ({"name": ["a"], "income": np.zeros((1, 1, 1))}, "3 axes"),
    "mixed cells": ({"name": ["a", 3], "income": [1, 2]}, "column 'name' must be of one kind, got 3 .number. and 'a'"),
    "a struct": ({"name": [{"x": 1}], "income": [1]}, "column 'name' must hold texts"),
    "ragged vectors": ({"name": [[1.0], [1.0, 2.0]], "income": [1, 2]}, "lists of 1 to 2 numbers"),
    "nothing filled": (
        {"name": ["a", None], "income": [None, 1]},
        "the dict must have at least one row with a value in each of",
    ),
    "no rows": ({"name": [], "income": []}, "must have at least one row"),
    "repeated names": (pa.Table.from_arrays([[1], [2], [3]], ["name", "name", "income"]), "more than once"),
    "repeated names in a frame": (pd.DataFrame([[1, 2]], columns=["name", "name"]), "unique, got name more than once"),
    "an index named as a column": (pd.DataFrame(ROWS).set_index("name", drop=False), "unique, got name more than once"),
    "a number and its text as names": (
        {1: [1], "1": [2], "name": ["a"], "income": [1]},
        "unique, got 1 more than once",
    ),
}


@pytest.mark.parametrize("name", BAD_OBJECTS)
def test_an_object_that_cannot_be_used_is_one_sentence(name):
    source, said = BAD_OBJECTS[name]
    with pytest.raises(DataError, match=said) as error:
        Database.open(source, key="name", value="income")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["", [], ["name", "name"], [3], 3])
def test_a_key_that_names_no_columns_is_refused(key):
    with pytest.raises(DataError):
        Database.open(ROWS, key=key, value="income")


def test_sql_fetches_no_extension():
    with pytest.raises(QueryError):
        Database.sql("select * from st_read('x')", key="name", value="income")
    with pytest.raises(QueryError):
        Database.sql("select * from 'https://example.invalid/x.parquet'", key="name", value="income")


@pytest.mark.parametrize(
    ("name", "choices", "text"),
    [
        ("incme", ["name", "income"], " Did you mean 'income'?"),
        ("INCOME", ["Income", "x"], " Did you mean 'Income'?"),
        ("zzz", ["name", "income"], ""),
        ("name", [], ""),
    ],
)
def test_the_most_similar_name_is_suggested_as_it_is_written(name, choices, text):
    assert suggest_name(name, choices, "") == text


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("Parser Error: syntax error at x!\nLINE 1: x", "syntax error at x"),
        ("  Conversion Error: Could not convert: \n", "Could not convert"),
        ("no class. ", "no class"),
        ("a very long head that is no name of an error at all Error: kept", None),
    ],
)
def test_an_error_of_duckdb_is_cut_to_its_first_sentence(message, sentence):
    assert _first_sentence(Exception(message)) == (message if sentence is None else sentence)


def test_sql_takes_several_tables_key_columns_and_the_folding_of_names():
    pay, bonus = {"id": [1, 2], "name": ["EVA", "Li"], "pay": [10.0, 20.0]}, {"id": [2, 1], "bonus": [1.0, 2.0]}
    query = "select name, id, pay + bonus as total from pay join bonus using (id) order by id"
    both = Database.sql(query, key="name,id", value="total", tables={"pay": pay, "bonus": bonus})
    assert (both.key, both.value, both.name, len(both)) == (("name", "id"), "total", "the SQL result", 2)
    folded, exact = (
        Database.sql(query, key="name", value="total", tables={"pay": pay, "bonus": bonus}, fold=fold)
        for fold in (True, False)
    )
    assert folded.ask("eva", normalizer="hard").rows[0].similarity == 1.0
    assert not any(row.similarity == 1.0 for row in exact.ask("eva", normalizer="hard").rows)


def test_duckdb_prints_no_progress_of_slow_reads_into_answers():
    setting = "current_setting('enable_progress_bar')"
    answer = Database.sql(f"select 1 as x, {setting}::varchar as v", key="x", value="v").ask(1)
    assert answer.value == "false"
    with open_connection(CLOSED, QueryError, "it failed", "") as connection:
        assert connection.execute(f"select {setting}").fetchall() == [(False,)]
        with pytest.raises(Exception, match="locked"):
            connection.execute("set threads = 2")


def test_texts_within_lists_and_records_of_polars_are_texts_of_which_rows_can_be_taken():
    frame = pl.DataFrame({"k": ["a", "b"], "v": [1, 2], "tags": [["x"], None], "more": [{"t": ["y"]}, {"t": None}]})
    table = Database.open(frame, "k", "v").table
    assert table.take([1, 0]).to_pylist() == frame.to_dicts()[::-1]


def test_masked_elements_of_a_matrix_are_missing():
    keys = np.ma.masked_array([[1.0, 2.0], [3.0, 4.0]], [[False, True], [False, False]])
    assert Database.open({"k": keys, "v": [1, 2]}, "k", "v").missing_cells == {"k": 1}


def test_a_predicate_reads_tables_with_columns_of_float16(tmp_path):
    half = pa.array(np.array([0.1, 0.2, 0.3], np.float16))
    pairs = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(6, dtype=np.float16)), 2)
    table = pa.table({"key": half, "pairs": pairs, "amount": [1.0, 2.0, 4.0]})
    store = Database.create(tmp_path / "store", table, "key", "amount")
    for database in (Database.open(table, "key", "amount"), store):
        answer = database.ask(half[1].as_py(), score="boxcar:1", where="key > 0.15")
        assert (answer.value, answer.rows[0].record["pairs"]) == (3.0, [2.0, 3.0])
    assert store.delete("amount > 3") == 1


LONG = pa.array([Decimal("1.5"), Decimal("2.5")], pa.decimal256(50, 1))


@pytest.mark.parametrize("where", ["n > 2", "d > 2"])
@pytest.mark.parametrize("cells", [LONG, pa.array([{"d": cell} for cell in LONG], pa.struct([("d", LONG.type)]))])
def test_a_predicate_reads_tables_with_decimals_of_more_than_38_digits(where, cells, tmp_path):
    table = pa.table({"name": ["a", "b"], "n": [1, 3], "d": cells})
    database = Database.open(table, "name", "n")
    if where == "n > 2" or cells is LONG:
        assert database.ask("b", where=where).value == 3
        assert Database.create(tmp_path / "s", table, "name", "n").delete(where) == 1
        return
    with pytest.raises(QueryError, match="Decimal"):
        database.ask("b", where=where)


@pytest.mark.parametrize("view", [pa.list_view(pa.float64()), pa.large_list_view(pa.float64())], ids=str)
def test_list_views_are_lists(view, tmp_path):
    cells = [[1.0, 2.0], None, [3.0, 4.0]]
    table = pa.table({"at": pa.array(cells, view), "v": [1, 2, 3], "shown": pa.array([cells] * 3, pa.list_(view))})
    for database in (Database.open(table, "at", "v"), Database.create(tmp_path / "s", table, "at", "v")):
        (row,) = database.ask([3, 4], score="exact").rows
        assert (row.index, row.record) == (2, {"at": [3.0, 4.0], "v": 3, "shown": cells})


def test_a_type_that_a_store_cannot_hold_is_refused_and_leaves_no_store(tmp_path):
    union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])])
    with pytest.raises(DataError, match="types that a store holds, got sparse_union"):
        Database.create(tmp_path / "s", pa.table({"k": ["a", "b"], "v": [1, 2], "u": union}), "k", "v")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("unit", ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns"])
def test_dates_and_durations_of_numpy_are_read_in_any_unit(unit):
    days = np.array(["2020-01-02", "NaT", "2021-03-04", "2022-05-06"], f"M8[{unit}]")
    exact = days.astype("M8[s]").tolist()
    for cells in (days, days[::-1][::-1], list(days), pd.Series(list(days), dtype=object)):
        for key, value, query in (("t", "n", days[2]), ("n", "t", 2)):
            answer = Database.open({"t": cells, "n": range(4)}, key, value).ask(query, score="exact")
            assert pd.Timestamp(answer.rows[0].record["t"]) == exact[2]
        assert Database.open({"t": cells, "n": range(4)}, "t", "n").ask(days, score="exact").value == [0, None, 2, 3]
    lengths = (days - days[0])[[0, 2]]
    if unit in "YM":
        with pytest.raises(DataError, match="timedelta64"):
            Database.open({"t": lengths, "n": [0, 1]}, "t", "n")
        return
    for cells in (lengths, list(lengths)):
        answer = Database.open({"t": cells, "n": [0, 1]}, "t", "n").ask(lengths[1], score="exact")
        assert answer.rows[0].record["t"] == exact[2] - exact[0]
        assert repr(answer).startswith(f"{(exact[2] - exact[0]).days} → 1")
        assert Database.open({"t": cells, "n": [0, 1]}, "t", "n").ask(lengths, score="exact").value == [0, 1]


def test_series_with_different_indexes_are_refused():
    key, value = pd.Series([1.0, 2.0, 3.0]), pd.Series([10.0, 20.0, 30.0], index=[2, 1, 0])
    with pytest.raises(DataError, match=r"got different ones for 'k' and 'v'\. Pass a DataFrame"):
        Database.open({"k": key, "v": value}, "k", "v")
    for table, expected in (
        (pd.DataFrame({"k": key, "v": value}), 30),
        ({"k": key, "v": value.to_numpy()}, 10),
        ({"k": key[1:], "v": value.loc[[1, 0]].set_axis([1, 2])}, None),
    ):
        assert Database.open(table, "k", "v").ask(1, score="exact").value == expected


@pytest.mark.parametrize("cells", [{0: 1.0, 1: 2.0}, {1.0, 2.0}, frozenset({1.0, 2.0})])
def test_columns_whose_elements_are_no_ordered_cells_are_refused(cells):
    for table in ({"key": cells, "amount": [3.0, 4.0]}, {"key": [3.0, 4.0], "amount": cells}):
        with pytest.raises(DataError, match=f"must be a list or an array, got a {type(cells).__name__}"):
            Database.open(table, "key", "amount")
    with pytest.raises(DataError, match="orient='list'"):
        Database.open(pd.DataFrame({"key": [1.0, 2.0], "amount": [3.0, 4.0]}).to_dict(), "key", "amount")


def test_files_that_do_not_exist_are_named_by_their_names():
    assert describe(["none/a.csv", "none/b.csv", "none/c.csv"]) == "3 files (a.csv … c.csv)"
    assert describe("none/a.csv") == "a.csv"
    assert describe("none/*.csv") == "*.csv"


def routes(folder, frame):
    """Yield the ways in which a frame of pandas comes to a database."""
    frame.to_parquet(folder / "t.parquet")
    pa.feather.write_feather(frame, folder / "t.feather")
    yield from (frame, pa.Table.from_pandas(frame), folder / "t.parquet", folder / "t.feather")


def test_categories_vote_and_are_compared_by_equality_on_every_way_also_if_they_are_no_texts(tmp_path):
    cells = {"text": ["ab c", "ab d", "ab c", "x"], "number": [1, 2, 2, 3], "missing": [1.5, 2.5, None, 1.5]}
    cells |= {"day": [pd.Timestamp(2024, 5, day) for day in (1, 2, 2, 3)]}
    frame = pd.DataFrame({name: pd.Categorical(each) for name, each in cells.items()} | {"v": [1.0, 2.0, 3.0, 4.0]})
    asked = {("text", "v"): ("ab c", 2.0), ("text", "number"): ("ab c", "1"), ("number", "v"): (2, 2.5)}
    asked |= {("missing", "v"): (1.5, 2.5), ("number", "missing"): ("2", "2.5"), ("missing", "number"): ("2.5", "2")}
    asked |= {("text", "day"): ("ab c", "2024-05-01"), ("day", "v"): (dt.date(2024, 5, 2), 2.5)}
    for number, source in enumerate(routes(tmp_path, frame)):
        for (key, value), (query, wanted) in asked.items():
            folder = tmp_path / f"{number} {key} {value}"
            for database in every_database(folder, source, key, value):
                answer = database.ask(query)
                assert answer.value == wanted, (type(source), key, value)
                said = [note for note in answer.notes if "holds categories, whose " in note]
                assert len(said) == len({key, value} - {"text", "v"})
    assert Database.open(frame, "text", "v").ask("ab c", where="number = 2").value == 3.0


def test_integers_of_128_bits_and_indexes_of_pandas_are_read():
    wide = pl.DataFrame({"k": pl.Series([2**70, 1], dtype=pl.Int128), "v": [1.0, 2.0]})
    assert Database.open(wide, "k", "v").ask(2**70, score="exact").value == 1.0
    days = pd.to_datetime(["2020-01-01", "2020-01-02"])
    assert Database.open({"day": days, "v": [1.0, 2.0]}, "day", "v").ask("2020-01-02", score="exact").value == 2.0


@pytest.mark.parametrize("form", ["array", "frame", "arrow"])
def test_a_key_of_float16_equals_the_number_that_was_rounded_to_it(form, tmp_path):
    cells = np.array([0.1, 0.2, 1000.5], np.float16)
    table = {"k": cells, "v": [1.0, 2.0, 3.0]}
    source = {"array": table, "frame": pd.DataFrame(table), "arrow": pa.table(table)}[form]
    for database in every_database(tmp_path / "s", source, "k", "v"):
        assert database.ask([0.1, "0.2", cells[2], 0.3], score="exact").value == [1.0, 2.0, 3.0, None]


def test_a_text_that_is_a_category_in_some_of_several_files_is_a_text(tmp_path):
    for number, type_ in enumerate(("category", "str", "category")):
        frame = pd.DataFrame({"k": pd.Series(["ab c", f"ab {number}"], dtype=type_), "v": [1.0 * number, 9.0]})
        frame.to_parquet(tmp_path / f"{number}.parquet")
    database = Database.open(tmp_path, "k", "v")
    assert database.ask("ab c").value == 1.0
    assert database.table.schema.field("k").type == pa.string()
    stated = Database.open([tmp_path / "0.parquet", tmp_path / "2.parquet"], "k", "v")
    assert pa.types.is_dictionary(stated.table.schema.field("k").type)


@pytest.mark.parametrize("dense", [True, False])
def test_records_of_hundreds_of_fields_are_rows_with_a_column_each(dense, tmp_path):
    rows = [
        {"name": f"n{row}", "v": row, **{f"f{n}": n for n in range(300) if dense or n == row}} for row in range(300)
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    opened = Database.open(tmp_path / "t.jsonl", "name", "f7")
    assert len(opened.table.column_names) == 302
    assert opened.ask("n7").value == 7


@pytest.mark.parametrize(
    "cells", [["5%", "7%"], ["1.5", "2"], ["2024-01-02", "2024-01-03"], ["true", "false"], ["a", "b"]]
)
def test_a_column_without_cells_has_the_type_of_the_other_files(tmp_path, cells):
    files = [tmp_path / "full.csv", tmp_path / "empty.csv"]
    for file, given in zip(files, (cells, ["", ""]), strict=True):
        file.write_text("\n".join(["name,x", *(f"n{row},{cell}" for row, cell in enumerate(given))]) + "\n")
    expected = Database.open(files[0], "name", "x").table["x"]
    for order in (files, files[::-1]):
        found = Database.open(order, "name", "x").table["x"]
        assert found.type == expected.type
        assert found.drop_null().to_pylist() == expected.to_pylist()
        assert found.null_count == 2


@pytest.mark.parametrize(
    "records", ['{"a": 1, "v": 2}\n{"A": 3, "v": 4}', '{"A": 1, "a": 2, "v": 3}', '{"a": {"b": 1, "B": 2}, "v": 3}']
)
def test_keys_of_json_that_differ_only_in_case_are_refused_with_a_remedy(records, tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(records)
    with pytest.raises(DataError, match=r"the keys of records in .*t.jsonl' must differ in more than case.* Rename"):
        Database.open(path, "a", "v")


def test_columns_that_are_separated_by_spaces_are_named_with_a_remedy(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("name    age   pay\nann      30   100\nbob      40   200\n")
    with pytest.raises(DataError, match=r"got 'age'. Its cells are separated by spaces: convert them, as pandas"):
        Database.open(path, "age", "pay")
