"""A predicate sees the columns of one table under their own names, and neither files, settings nor unlimited memory."""

import contextlib
import itertools
import random
import time

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from qkv.database import Database
from qkv.database.io.predicates import PredicateProcess, matching_rows
from qkv.errors import QkvError, QueryError
from tests.effort import seeds

NAMES = [
    *("__qkv_row", "__QKV_ROW", "__qkv_present", "row_", "ROW_", "row__", "exists_", "Exists__", "rowid", "data"),
    *("x", "t", "n", "y", "cell", "texts", "value", "query", 'a"b', "a b", "select", "1", "é", "count(*)"),
    *("memory", "current_date"),
]
SOURCES = ["memory", "store", "streamed"]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def draw_names(draw: random.Random, count: int) -> list[str]:
    """Return names that differ in more than case."""
    names = draw.sample(NAMES, len(NAMES))
    return list({name.casefold(): name for name in names}.values())[:count]


@pytest.fixture(scope="module")
def process():
    process = PredicateProcess(seconds=20, memory=2**29)
    yield process
    process.close()


def kept_rows(source: str, folder, table: dict, key: str, value: str, where: str, deleted: str) -> list[object]:
    """Return the identifiers of the rows that a predicate selects, after some rows were deleted."""
    if source == "memory":
        rows = pa.table(table)
        table = rows.filter(pa.array([cell != deleted for cell in rows[key].to_pylist()]))
        database = Database.open(table, key, value)
    else:
        database = Database.create(folder, table, key, value)
        database.delete(f"{quoted(key)} = '{deleted}'")
        if source == "streamed":
            database = Database.open(folder, memory=1)
    answer = database.ask("a", where=where, normalizer="mean", score="exact", top=100)
    return sorted(row.record[value] for row in answer.rows)


@pytest.mark.parametrize("seed", seeds(12, 4))
def test_no_name_of_a_column_changes_which_rows_a_predicate_selects_or_deletes(seed, tmp_path):
    draw = random.Random(seed)
    key, value, tested = names = draw_names(draw, 3)
    numbers = [draw.randrange(9) for _ in range(30)]
    cells = dict(zip(names, (["a"] * 25 + ["b"] * 5, list(range(30)), numbers), strict=True))
    where = f"{quoted(draw.choice([tested, tested.upper()]))} > 3"
    wanted = [row for row in range(25) if numbers[row] > 3]
    for source in SOURCES:
        assert kept_rows(source, tmp_path / source, cells, key, value, where, "b") == wanted, (names, source)
    stored = Database.create(tmp_path / "deleted", cells, key, value)
    assert stored.delete(where) == sum(number > 3 for number in numbers)
    assert stored.store.to_table()[value].to_pylist() == [row for row in range(30) if numbers[row] <= 3]
    assert stored.delete(f"{quoted(tested)} = (select max({quoted(tested)}) from data)") == numbers.count(3)


def test_the_error_about_a_column_that_is_a_word_of_sql_shows_its_name_in_quotation_marks():
    database = Database.open({"at": [1, 2], "v": [1.0, 2.0]}, "at", "v")
    with pytest.raises(QueryError, match='Write SQL over the columns "at", "v"'):
        database.ask(1, where="at = 1")
    assert database.ask(1, where='"at" = 1').value == 1.0


def test_a_predicate_names_no_internal_column_and_no_column_that_another_one_hides():
    table = pa.table({"v": [5, 6, 7], "V": [1, 2, 3], "w": [0, 9, 0]})
    for where in (
        "row_ > 0",
        "exists_",
        "columns(*) > 0",
        "columns('v|row') > 1",
        "#4 > 0",
        "(select max(row_) from data) > 1",
    ):
        with pytest.raises(QueryError):
            matching_rows(table, where, np.array([True, True, False]))
    with pytest.raises(QueryError, match="v and V, of which"):
        matching_rows(table, "v > 5")
    assert matching_rows(table, "w > 1").tolist() == [False, True, False]


REFUSED = [
    "error(current_setting('memory_limit')) is null",
    "current_setting('temp_directory') <> ''",
    "getvariable('x') is null",
    "(select content from read_text('.tmp/notes.txt')) <> ''",
    "(select content from '.tmp/notes.txt') <> ''",
    "n > (select count(*) from read_csv('/etc/hosts'))",
    "n > (select count(*) from duckdb_settings())",
    "n > (select count(*) from information_schema.tables)",
    "n > (select count(*) from data a, data b, data c)",
    "n > (select count(*) from data a join data b on true)",
    "n > (with recursive r as (select 1 union all select 1 from r) select count(*) from r)",
    "n in (select 1 union select 2)",
    "n > (select count(*) from range(100000000000))",
    "len(list_transform(range(100000000), lambda y: y)) > 0",
    "len(generate_series(1, 100000000)) > 0",
    "len(list_reduce(['a', 'a', 'a'], lambda a, b: a || a)) > 0",
    "len(list_transform(l, lambda a: list_transform(l, lambda b: l))) > 0",
    "len(repeat(s, 1000000000)) > 0",
    "len(rpad(s, 1000000000, 'x')) > 0",
    "len(lpad(s, n * 100000000, 'x')) > 0",
    "len(printf('%1000000000d', n)) > 0",
    "len(list_resize(l, 1000000000)) > 0",
    "pg_sleep(100) is null",
    "write_log('x') is null",
    "nextval('x') > 1",
    "json_serialize_sql('select 1') <> ''",
    "sum(n) over () > 1",
    "unnest(l) > 1",
    "$1 > 1",
    "n > 1; select 1",
    "n > 1) or (true",
    "table is null",
    "(" * 2000 + "n" + ")" * 2000 + " > 1",
    "not " * 900 + "true",
    "s = '\ud800'",
    "",
    "n = ",
]
ACCEPTED = [
    "s like 'a%' and n between 1 and 2",
    "s in ('ab', 'cd') or s is null",
    "lower(trim(s)) = 'ab' or regexp_matches(s, '^c')",
    "n > (select avg(n) from data)",
    "n in (select n from data where s <> 'ab' order by n limit 3)",
    "exists (select 1 from data other where other.n = n + 1)",
    "n = (select max(n) from (select n from data where n < 5))",
    "case when n > 2 then s else 'x' end = 'x'",
    "d >= date '2024-02-01' and year(d) = 2024 and d < date '2024-03-01' + interval 3 days",
    "extract(month from d) = 2 or date_trunc('month', d) = date '2024-01-01'",
    "list_contains(l, 2) or len(list_filter(l, lambda e: e > n)) > 0",
    "l[1] = 1 or l[-1:] = [3]",
    "lpad(n::varchar, 3, '0') = '002'",
    "try_cast(s as integer) is null and n::double / 3 > .4",
    "s is not distinct from 'ab' or not (n % 2 = 0)",
    "coalesce(s, 'none') = 'none' or s similar to 'c.'",
    "r.a = 1 and r.b = 'x'",
    "struct_extract(r, 'a') = 2 or (n, s) = (2, 'cd')",
    "(select count(*) from data) > 3 and n > 0",
    "s collate nocase = 'AB' or s ~ 'c.*' or s glob 'e*'",
    "  n > 1 -- a comment",
]


def table() -> pa.Table:
    rows = 12
    return pa.table(
        {
            "n": [i % 7 for i in range(rows)],
            "s": [[None, "ab", "cd", "ef"][i % 4] for i in range(rows)],
            "d": pa.array([19_700 + 11 * i for i in range(rows)], pa.int32()).cast(pa.date32()),
            "l": [[i % 3, i % 4] for i in range(rows)],
            "r": [{"a": i % 3, "b": "xy"[i % 2]} for i in range(rows)],
        }
    )


@pytest.mark.parametrize("where", REFUSED)
def test_a_predicate_that_could_read_files_or_settings_or_grow_without_bound_is_refused(where, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".tmp").mkdir()
    (tmp_path / ".tmp" / "notes.txt").write_text("secret")
    started = time.process_time()
    with pytest.raises(QueryError) as error:
        matching_rows(table(), where)
    assert time.process_time() - started < 20
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("where", ACCEPTED)
def test_a_predicate_selects_the_rows_of_sql_in_this_process_and_in_another_one(where, process):
    rows = table()
    with duckdb.connect() as connection:
        connection.register("data", rows.append_column("number", pa.array(range(12))))
        wanted = {number for (number,) in connection.sql(f"select number from data where ({where}\n)").fetchall()}
    found = matching_rows(rows, where)
    assert set(np.flatnonzero(found).tolist()) == wanted
    present = np.arange(12) % 5 > 0
    with process.used():
        assert matching_rows(rows, where).tolist() == found.tolist()
        apart = matching_rows(rows, where, present)
    assert apart.tolist() == matching_rows(rows, where, present).tolist()
    assert not apart[~present].any()


def test_errors_of_another_process_are_those_of_this_one(process):
    rows = table()
    for where in [*REFUSED[::4], "s::integer > 1", "nope = 1", "n + s"]:
        with pytest.raises(QueryError) as here:
            matching_rows(rows, where)
        with process.used(), pytest.raises(QueryError) as there:
            matching_rows(rows, where)
        assert str(here.value) == str(there.value)


def test_a_predicate_of_others_that_needs_too_much_ends_and_the_next_one_is_evaluated(process):
    rows = pa.table({"s": ["a" * 100_000, "b"]})
    grown = "s"
    for _ in range(4):
        grown = f"replace({grown}, 'a', s)"  # 100,000 times as long each time
    started = time.process_time()
    with process.used():
        with pytest.raises(QueryError):
            matching_rows(rows, f"length({grown}) > 0")
        assert matching_rows(rows, "s = 'b'").tolist() == [False, True]
    assert time.process_time() - started < 5
    short = PredicateProcess(seconds=0.4)
    endless = ["(" * 9000, "(select count(*) from data a where (select count(*) from data b where b.x < a.x) > 1) > 1"]
    many = pa.table({"x": np.random.default_rng(0).random(60_000)})
    for where in endless:
        with short.used(), pytest.raises(QueryError):
            matching_rows(many, where)
    short.close()


def test_a_predicate_in_this_process_ends_after_its_time(monkeypatch):
    from qkv.database.io import predicates

    monkeypatch.setattr(predicates, "_SECONDS", 0.05)
    many = pa.table({"x": np.arange(300_000) % 1009})
    slow = "(select count(*) from data a where (select count(*) from data b where b.x < a.x) > 1) > 1"
    with pytest.raises(QueryError, match=r"at most 0\.05 seconds"):
        matching_rows(many, slow)


def test_equal_columns_of_case_alone_are_refused_by_name_only():
    cells = {"Name": ["a", "b"], "name": ["c", "d"], "v": [1.0, 2.0]}
    database = Database.open(cells, "Name", "v")
    assert database.ask("a", where="v < 2").value == 1.0
    with pytest.raises(QkvError, match="differ in more than case"):
        database.ask("a", where="name = 'c'")


def test_what_is_sent_to_another_process_are_the_columns_that_are_named(process, monkeypatch):
    sent = []
    evaluate = PredicateProcess.evaluate

    def recorded(self, table, *arguments):
        sent.append((table.column_names, table.num_rows))
        return evaluate(self, table, *arguments)

    monkeypatch.setattr(PredicateProcess, "evaluate", recorded)
    rows = table()
    with process.used():
        for where in ("n > 1", "r.a = 1 and S = 'ab'", "true", "n > (select count(columns(*)) from data limit 1)"):
            with contextlib.suppress(QueryError):
                matching_rows(rows, where)
    names = [columns for columns, count in sent if count]
    assert names[:3] == [["n"], ["s", "r"], ["n"]]
    assert list(itertools.chain(*names[3:])) in ([], rows.column_names)
