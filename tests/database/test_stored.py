"""Databases on disk: queries over rows that exceed the memory limit give the answers of rows in memory."""

import datetime as dt
import functools
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from qkv import masks, scores
from qkv import store as stores
from qkv.database import Database, choice_cache
from qkv.database.execute import block_scan, row_reader, statistics
from qkv.database.keys import choose
from qkv.errors import DataError, OptionError, QueryError, RefusedError
from qkv.store import row_files
from qkv.testing.libraries import turn
from tests.effort import sample

ROWS = 900


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Blocks of some hundred rows, tiles of 70, and several sub-tiles for several queries."""
    monkeypatch.setattr(row_files, "BYTES", 20_000)
    monkeypatch.setattr(row_reader, "TILE", 70)
    monkeypatch.setattr(block_scan, "TILE_NUMBERS", 100)


def table(missing=True, seed=0):
    draw = np.random.default_rng(seed)
    x = draw.standard_normal(ROWS)
    columns = {
        "x": x.astype(np.float32),
        "y": 1000 + 3 * draw.standard_normal(ROWS),
        "count": draw.integers(0, 40, ROWS),
        "vector": draw.standard_normal((ROWS, 6)).astype(np.float32) + np.eye(6)[0] * 2,
        "name": [f"{'abcdefghij'[i % 10] * 3} {i % 97} Straße" for i in range(ROWS)],
        "city": [f"city {i % 7}" for i in range(ROWS)],
        "day": [dt.date(2020, 1, 1) + dt.timedelta(days=int(d)) for d in draw.integers(0, 999, ROWS)],
        "flag": [bool(b) for b in draw.integers(0, 2, ROWS)],
        "value": (np.sin(3 * x) + 0.1 * draw.standard_normal(ROWS)).tolist(),
    }
    made = pa.table({n: _column(c) for n, c in columns.items()})
    made = made.set_column(5, "city", made.column("city").dictionary_encode())
    if not missing:
        return made
    absent = {name: draw.random(ROWS) < 0.02 for name in ("x", "count", "vector", "name", "day", "value")}
    for name, gone in absent.items():
        column = pa.array(
            [None if g else cell for g, cell in zip(gone, made.column(name).to_pylist(), strict=True)],
            made.column(name).type,
        )
        made = made.set_column(made.column_names.index(name), name, column)
    nan = made.column("y").to_numpy().copy()
    nan[5], nan[400] = np.nan, np.inf
    return made.set_column(1, "y", pa.array(nan))


def _column(cells):
    if isinstance(cells, np.ndarray) and cells.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(pa.array(cells.reshape(-1).astype(np.float32)), 6)
    return pa.array(cells)


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory):
    """A store in several appends, with missing cells in every block and in several columns."""
    return _made(tmp_path_factory.mktemp("stores"), table())


@pytest.fixture(scope="module", name="whole")
def _whole(tmp_path_factory):
    """The same rows without missing cells and deletions."""
    path = tmp_path_factory.mktemp("stores") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_files, "BYTES", 20_000)
        Database.create(path, table(missing=False), "x", "value")
    return path


def _made(parent, rows):
    path = parent / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_files, "BYTES", 20_000)
        made = Database.create(path, rows.slice(0, 300), "x", "value")
        made.append(rows.slice(300, 500))
        made.append(rows.slice(800))
        made.delete("count % 9 = 4")
    return path


def both(path, key, value):
    """The same rows, in memory and streamed."""
    near, far = Database.open(path, key, value), Database.open(path, key, value, memory=1)
    assert (near.streams, far.streams) == (False, True)
    return near, far


def same(path, key, value, queries, tolerance=1e-5, **how):
    near, far = (each.ask(queries, **how) for each in both(path, key, value))
    a, b = (([one] if one.single else list(one)) for one in (near, far))
    assert len(a) == len(b)
    for one, other in zip(a, b, strict=True):
        assert other.found == one.found
        assert other.reason == one.reason
        assert close(other.value, one.value, tolerance), (one, other)
        assert close(other.spread, one.spread, tolerance)
        assert close(other.perplexity, one.perplexity, tolerance)
        assert close(other.effective_rows, one.effective_rows, tolerance)
        assert close(other.standard_error, one.standard_error, tolerance)
        assert (other.prediction_interval is None) == (one.prediction_interval is None)
        for end, wanted in zip(other.prediction_interval or (), one.prediction_interval or (), strict=True):
            assert close(end, wanted, tolerance)
        assert close([row.weight for row in other.rows], [row.weight for row in one.rows], tolerance)
        assert close([row.distance for row in other.rows], [row.distance for row in one.rows], tolerance)
        weights = {row.index: row.weight for row in one.rows}
        for there, here in zip(other.rows, one.rows, strict=True):
            # Rows that are equally far, on either side of the query, may stand in either order.
            assert there.index == here.index or close(there.weight, here.weight, 1e-9)
            assert weights.get(there.index, there.weight) == pytest.approx(there.weight, rel=tolerance)
            assert str(there.record) == str(far_row(near, there.index))
        assert list(other.probabilities) == list(one.probabilities)
        assert close(list(other.probabilities.values()), list(one.probabilities.values()), tolerance)
    assert [note.split(", version")[0] for note in far.notes][1:] == list(near.notes)[1:]
    assert far.measure == near.measure
    assert "streamed over" in str(far.plan)
    return near, far


def far_row(near, index):
    return near.table.slice(index, 1).to_pylist()[0]


def close(one, other, tolerance):
    if isinstance(one, dt.timedelta):
        return abs(one - other) <= dt.timedelta(seconds=1) + tolerance * other
    if isinstance(one, list) and (not one or one[0] is None):
        return one == other
    if isinstance(one, float | list | np.ndarray):
        return np.allclose(one, other, rtol=tolerance, atol=tolerance * 1e-2)
    return one == other


QUERIES = {
    "x": [0.3, -1.5, 99.0, None],
    "y": [1000.0, 996.5],
    "x,y": [(0.1, 1001.0), (2.0, 999.0)],
    "count": [3, 39.5],
    "count,x,day": [(3, 0.5, "2021-03-04")],
    "vector": [[2.0, 0, 1, 0, 0, 0], [-1.0] * 6, [0.0] * 6],
    "name": ["aaa 12 strasse", "zzzzzz", "JJJ 9 straße"],
    "city": ["City 3", "nowhere"],
    "day": [dt.date(2021, 5, 5), "1990-01-01"],
    "flag": [True],
    "name,x": [("ccc 22 strasse", 0.5)],
    "city,x": [("city 1", 0.5), ("city 99", 0.5)],
}


@pytest.mark.thinned
@pytest.mark.parametrize("key", QUERIES)
@pytest.mark.parametrize("value", ["value", "city", "vector"])
def test_blocks_answer_as_the_same_rows_in_memory(folder, key, value):
    same(folder, key, value, QUERIES[key])


@pytest.mark.parametrize("key", ["x", "x,y", "vector", "count,x,day"])
def test_columns_without_missing_cells_answer_as_in_memory(whole, key):
    same(whole, key, "value", QUERIES[key])


@pytest.mark.parametrize("value", ["name", "day", "flag", "count", "x"])
def test_every_kind_of_value_is_aggregated_as_in_memory(folder, value):
    same(folder, "y", value, QUERIES["y"], where="count > 2")


KEYS_AND_SCORES = [("vector", "dot"), ("vector", "gaussian:2"), ("x", "laplace:0.5")]
NORMALIZERS = [
    *("softmax", "softmax:0.3", "topk:3", "topk:50:0.5", "topk:4:sparsemax", "hard"),
    *("sparsemax", "entmax15", "mean", "identity", "sigmoid"),
]


@pytest.mark.parametrize(
    ("key", "score", "normalizer"), sample([(*pair, name) for name in NORMALIZERS for pair in KEYS_AND_SCORES], 4)
)
def test_every_normalizer_gives_the_weights_of_a_table_in_memory(folder, whole, key, score, normalizer):
    stores = ((folder, "value"), (whole, "value"), (whole, "city"), (folder, "city"))
    for path, value in turn(stores, NORMALIZERS.index(normalizer), 2):
        same(path, key, value, QUERIES[key][:2], score=score, normalizer=normalizer)


@pytest.mark.parametrize("score", ["cosine", "scaled-dot", "gaussian:0.5", "gaussian:0.001"])
def test_memory_mapped_vectors_are_compared_as_in_memory(whole, score):
    near = Database.open(whole, "vector", "value")
    asked = [near.table.column("vector")[i].as_py() for i in (3, 700)]
    for normalizer in ("softmax", "topk:7"):
        same(whole, "vector", "value", asked, 1e-4, score=score, normalizer=normalizer)


CALLS = [
    *(("x", "value", [0.2, 50.0], {"score": score}) for score in ("boxcar:0.2", "epanechnikov:0.4", "triangular:0.3")),
    ("x", "value", [0.2, 50.0], {"score": "exact"}),
    ("x", "value", [0.2, -1.0], {"score": scores.SumOf((scores.Gaussian(1.0), scores.Dot()))}),
    ("x,y", "value", QUERIES["x,y"], {"score": "gaussian:2"}),
    ("city", "value", ["city 3", "city 5"], {"score": "exact", "normalizer": "sum"}),
    ("name", "city", ["aaa 10 strasse"], {"normalizer": "sum"}),
]


@pytest.mark.parametrize(("key", "value", "queries", "options"), CALLS, ids=str)
def test_kernels_that_exclude_keys_and_sums_answer_as_in_memory(folder, key, value, queries, options):
    same(folder, key, value, queries, **options)


@pytest.mark.parametrize("queries", [1, 70])
def test_one_query_and_more_than_fit_one_pass_answer_as_in_memory(folder, queries):
    asked = np.linspace(-2, 2, queries).tolist()
    _, far = same(folder, "x", "value", asked)
    assert f"{-(-queries // 64)} pass" in str(far.plan)


def test_an_empty_list_of_queries_gives_no_answer_and_a_plan(folder):
    _, far = both(folder, "x", "value")
    assert len(far.ask([])) == 0
    assert "0 queries" in str(far.ask([]).plan)


def test_a_predicate_sees_all_rows_but_no_deleted_one(folder):
    near, far = both(folder, "x", "value")
    kept = near.table.to_pylist()
    mean = np.mean([row["count"] for row in kept if row["count"] is not None])
    answer = far.ask(0.2, where="count > (select avg(count) from data)", normalizer="mean")
    wanted = [
        r["value"] for r in kept if r["count"] is not None and r["count"] > mean and None not in (r["x"], r["value"])
    ]
    assert answer.value == pytest.approx(np.mean(wanted))
    assert answer.perplexity == pytest.approx(len(wanted))
    assert not far.ask(0.2, where="count % 9 = 4").found
    assert far.ask(0.2, where="count % 9 = 4").reason == "no row satisfies the predicate"


def test_a_mask_of_rows_is_applied_and_another_mask_is_refused(folder):
    near, _ = both(folder, "x", "value")
    rows = near.table.num_rows
    allowed = np.arange(rows) % 3 == 0
    same(folder, "x", "value", [0.2, 1.0], mask=masks.AllowedKeys(allowed))
    same(folder, "x", "value", [0.2], mask=masks.AllowedKeys(allowed), where="count < 20")
    with pytest.raises(OptionError, match=r"masks\.AllowedKeys"):
        both(folder, "x", "value")[1].ask(0.2, mask=masks.Causal())


def test_swap_exchanges_key_and_value_of_a_store(folder):
    near, far = (each.swap() for each in both(folder, "x", "city"))
    assert far.streams
    assert far.ask("city 3").value == pytest.approx(near.ask("city 3").value)
    with pytest.raises(DataError, match="swap requires a single key column"):
        Database.open(folder, "x,y", "value", memory=1).swap()


def test_numbers_too_large_for_float32_are_read_in_float64(tmp_path):
    draw = np.random.default_rng(0)
    rows = {
        "far": (1e8 + np.arange(200)).astype(np.float64),
        "huge": (draw.standard_normal((200, 6)) * 1e30).astype(np.float32),
        "tiny": (draw.standard_normal((200, 6)) * 1e-30).astype(np.float32),
        "offset": (draw.standard_normal((200, 6)) + 1000).astype(np.float32),
        "value": draw.standard_normal(200),
    }
    Database.create(tmp_path / "store", {n: _column(c) for n, c in rows.items()}, "far", "value")
    same(tmp_path / "store", "far", "value", [1e8 + 17.25], score="gaussian:0.5")
    for name in ("huge", "tiny", "offset"):
        same(tmp_path / "store", name, "value", [rows[name][7].tolist()])
    same(tmp_path / "store", "offset", "value", [rows["offset"][7].tolist()], 1e-4, score="gaussian:0.1")


@pytest.mark.parametrize("normalizer", ["sample", "topk:3:sample"])
def test_a_stochastic_normalizer_is_refused_for_streamed_rows(folder, normalizer):
    near, far = both(folder, "x", "value")
    assert near.ask(0.2, normalizer=normalizer, seed=1).found
    with pytest.raises(RefusedError, match="more memory"):
        far.ask(0.2, normalizer=normalizer, seed=1)


def test_a_score_that_does_not_fit_the_key_is_refused_with_one_message(folder):
    for each in both(folder, "name", "value"):
        with pytest.raises(QueryError, match="Gaussian"):
            each.ask("aaa", score=scores.Gaussian(1.0))


def test_a_tie_of_votes_goes_to_the_row_that_comes_first(tmp_path):
    rows = {"x": [float(i // 2) for i in range(200)], "v": [["b", "a"][i % 2] for i in range(200)]}
    rows["v"][80:82] = ["a", "b"]
    Database.create(tmp_path / "store", rows, "x", "v")
    _, far = same(tmp_path / "store", "x", "v", [40.0, 50.0], normalizer="topk:2", score="gaussian:0.1")
    assert far.value == ["a", "b"]


def test_statistics_are_cached_for_each_version(tmp_path, monkeypatch):
    path = _made(tmp_path, table())
    monkeypatch.setattr(choice_cache, "_FEWEST_ROWS", 1)
    first = Database.open(path, memory=1).ask(0.3)
    seen = []
    real, real_choice = statistics._StatisticsScan.run, choose.choose_bandwidth
    monkeypatch.setattr(statistics._StatisticsScan, "run", lambda self, p: seen.append(1) or real(self, p))
    monkeypatch.setattr(choose, "choose_bandwidth", functools.wraps(real_choice)(lambda *a: seen.append(2)))
    again = Database.open(path, memory=1)
    assert again.ask(0.3).value == first.value
    assert again.ask(0.3).notes == first.notes
    assert seen == []
    again.compact()
    monkeypatch.setattr(choose, "choose_bandwidth", real_choice)
    assert again.ask(0.3).value == pytest.approx(first.value)
    assert seen == [1]


def test_cached_statistics_of_old_versions_are_removed(tmp_path):
    people = Database.create(tmp_path / "s", PEOPLE, "name", "income", memory=1)
    for i in range(20):
        people.append({"name": [f"p{i}"], "income": [i], "city": [None]})
        assert people.ask(f"p{i}", normalizer="hard").value == i
    assert len(list((tmp_path / "s" / "notes").glob("*.statistics"))) == 16


def test_damaged_cached_statistics_are_computed_again(tmp_path):
    path = _made(tmp_path, table(missing=False))
    asked = {"score": "gaussian:1"}
    first = Database.open(path, "vector", "value", memory=1).ask([0.0] * 6, **asked)
    for note in (path / "notes").iterdir():
        note.write_bytes(b"no note")
    assert Database.open(path, "vector", "value", memory=1).ask([0.0] * 6, **asked).value == first.value


# -- writing and versions -------------------------------------------------------------------------------


PEOPLE = {"name": ["John Doe", "Jane Roe", "Li Mu"], "income": [1000, 2000, None], "city": ["Oslo", "Rome", "Oslo"]}


def test_key_value_and_defaults_of_ask_are_saved(tmp_path):
    made = Database.create(
        tmp_path / "s",
        PEOPLE,
        "name",
        "income",
        fold=False,
        score="levenshtein",
        normalizer="topk:1",
        min_similarity=0.9,
    )
    back = Database.open(tmp_path / "s")
    assert repr(back) == repr(made) == "Database(s: name → income, 3 rows, version 1)"
    assert back.ask("John Doe").notes == made.ask("John Doe").notes
    assert "compared by Levenshtein()" in back.ask("John Doe").notes
    assert not back.ask("john doe").found
    other = Database.open(tmp_path / "s", "city", "name")
    assert other.ask("Rome").value == "Jane Roe"
    assert other.score is None


def test_rows_come_from_files_and_from_iterators_as_one_version(tmp_path):
    csv = tmp_path / "rows.csv"
    csv.write_text("name,income\n" + "".join(f"p{i},{i}\n" for i in range(500)))
    made = Database.create(tmp_path / "s", csv, "name", "income")
    assert (len(made), made.version) == (500, 1)
    made.append(iter([csv, {"name": ["q"], "income": [1]}]))
    assert (len(made), made.version) == (1001, 2)
    empty = Database.create(tmp_path / "empty", made.store.schema, "name", "income")
    assert (len(empty), empty.version) == (0, 1)
    with pytest.raises(DataError, match="must have at least one row"):
        empty.ask("p1")
    empty.append(csv)
    assert empty.ask("p7", normalizer="hard").value == 7.0


@pytest.mark.thinned
@pytest.mark.parametrize("first", ["", "a,\nb,\n"])
@pytest.mark.parametrize("cells", ["4.5 5.5", "7kg 8kg", "2024-01-03 2024-01-05", "true false", "x y"])
def test_a_column_without_cells_in_the_first_table_has_the_type_of_later_cells(tmp_path, monkeypatch, first, cells):
    files = [tmp_path / f"{number}.csv" for number in range(3)]
    later = dict(zip("cd", cells.split(), strict=True))
    files[0].write_text(f"name,value\n{first}")
    files[1].write_text("name,value\n" + "".join(f"{name},{cell}\n" for name, cell in later.items()))
    files[2].write_text("name,value\ne,\n")
    asked = [Database.open(list(map(str, files)), "name", "value").ask(list("cd"), normalizer="hard").value]
    for number, source in enumerate((list(map(str, files)), iter(map(str, files)))):
        made = Database.create(tmp_path / f"s{number}", source, "name", "value")
        assert f"{3 + first.count(chr(44))} rows" in repr(made)
        asked.append(made.ask(list("cd"), normalizer="hard").value)
    assert [list(map(str, values)) for values in asked[1:]] == [list(map(str, asked[0]))] * 2
    assert all(value is not None for value in asked[0])
    monkeypatch.setattr("qkv.database.storage.create._FIRST_BYTES", 0)
    if cells != "x y":
        with pytest.raises(DataError, match="'value' must have cells in the first tables"):
            Database.create(tmp_path / "s2", iter(map(str, files)), "name", "value")


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"key": "nmae"}, "Did you mean 'name'"),
        ({"value": "salary"}, "column must be one of .* got 'salary'"),
        ({"score": "cosin"}, "score must be one of .* got 'cosin'"),
        ({"score": scores.Exact()}, "score must be a name"),
        ({"backend": "paper"}, "backend must be one of arrow, lance, got 'paper'"),
        ({"memory": "much"}, "memory must be a positive amount, got 'much'"),
        ({"source": "nowhere.csv"}, "must be an existing file"),
        ({"source": {"name": ["a"], "income": [[["x"]]]}}, "must hold texts"),
    ],
)
def test_a_store_that_cannot_be_created_leaves_nothing(tmp_path, how, sentence):
    asked = {"source": PEOPLE, "key": "name", "value": "income"} | how
    with pytest.raises((DataError, OptionError), match=sentence):
        Database.create(tmp_path / "s", **asked)
    assert not (tmp_path / "s").exists()


def test_a_table_without_key_or_a_bare_store_asks_for_the_names(tmp_path):
    from qkv import store

    with pytest.raises(DataError, match="Name the key and value columns"):
        Database.open(PEOPLE)
    store.create(tmp_path / "bare", pa.schema({"a": pa.string()}))
    with pytest.raises(DataError, match="key must be the name of a column of the store"):
        Database.open(tmp_path / "bare")


def test_an_answer_stays_readable_after_its_store_changes(tmp_path):
    path = _made(tmp_path, table())
    far = Database.open(path, memory=1)
    answer, records = far.ask(0.3), [row.record for row in far.ask(0.3).rows]
    far.delete("true")
    far.compact(keep=1)
    assert [row.record for row in answer.rows] == records
    with pytest.raises(DataError, match="must have at least one row"):
        far.ask(0.3)


def test_tiles_of_the_default_size_answer_as_in_memory(tmp_path, monkeypatch):
    monkeypatch.undo()
    draw = np.random.default_rng(0)
    keys = draw.standard_normal((280_000, 4)).astype(np.float32)
    rows = {"k": keys, "v": (1000 + np.sin(keys[:, 0])).astype(np.float32), "x": keys[:, 1]}
    Database.create(tmp_path / "s", rows, "k", "v")
    asked = [[0.1, 0.2, 0.3, 0.4], [3.0, 3.0, 3.0, 3.0]]
    for key, queries, how in (
        ("k", asked, {}),
        ("k", asked, {"score": "gaussian:0.3"}),
        ("k", asked[1], {"score": "dot"}),
        ("x", 0.25, {"score": "gaussian:0.01", "max_distance": 1.0}),
    ):
        near, far = (each.ask(queries, **how) for each in both(tmp_path / "s", key, "v"))
        for one, other in zip([near] if near.single else near, [far] if far.single else far, strict=True):
            assert other.value == pytest.approx(one.value, rel=1e-7)
            assert other.spread == pytest.approx(one.spread, rel=1e-4)
            assert other.perplexity == pytest.approx(one.perplexity, rel=1e-4)
            assert other.effective_rows == pytest.approx(one.effective_rows, rel=1e-4)
            assert [row.index for row in other.rows] == [row.index for row in one.rows]


def test_memory_of_a_query_does_not_grow_with_the_rows(tmp_path, monkeypatch):
    import tracemalloc

    monkeypatch.undo()
    peaks = []
    for rows in (300_000, 900_000):
        keys = np.random.default_rng(0).standard_normal((rows, 4)).astype(np.float32)
        made = pa.table({"k": pa.FixedSizeListArray.from_arrays(pa.array(keys.reshape(-1)), 4), "v": keys[:, 0]})
        store = Database.create(tmp_path / str(rows), made, "k", "v", memory="1 MiB")
        store.ask([0.0] * 4, score="gaussian:1")
        tracemalloc.start()
        store.ask([0.1] * 4, score="gaussian:1")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


def test_every_pass_over_the_rows_reports_how_many_are_read(folder):
    told, far = [], Database.open(folder, "x", "value", memory=1)
    far.ask(0.2, progress=lambda *each: told.append(each[:3]))
    read = [each[1:] for each in told if each[0] == "reading blocks"]
    assert read[-1] == (len(far.store), len(far.store))
    assert 0 < read[0][0] < len(far.store)


def test_progress_is_reported_while_rows_are_appended(tmp_path):
    told, store = [], Database.create(tmp_path / "s", {"k": ["a"], "v": [True]}, "k", "v")
    store.append({"k": ["b", "c"], "v": [False, True]}, progress=lambda *each: told.append(each))
    assert told
    assert store.votes


@pytest.mark.parametrize(
    ("key", "query", "how"),
    [
        ("x", 99.0, {"score": "boxcar:1", "normalizer": "sparsemax"}),
        ("x", 99.0, {}),
        ("shop,x", ("b", 99.0), {"normalizer": "sparsemax"}),
    ],
)
def test_the_calls_of_a_query_without_a_match_have_the_same_bandwidth_in_memory_and_streamed(tmp_path, key, query, how):
    rng = np.random.default_rng(0)
    x, shop = rng.normal(size=80), np.repeat(["a", "b"], 40)
    table = {"x": x, "shop": shop, "v": np.where(shop == "a", np.sin(9 * x), x)}
    Database.create(tmp_path / "s", table, key, "v")
    near, far = (
        Database.open(table, key, "v").ask(query, **how),
        Database.open(tmp_path / "s", memory=1).ask(query, **how),
    )
    assert (near.found, far.found) == (False, False)
    assert near.calls == far.calls
    assert near.calls[-1].bandwidth.keys() == {"x"}


def test_times_are_not_appended_to_a_column_of_dates(tmp_path):
    day, noon = dt.datetime(2024, 5, 1), dt.datetime(2024, 5, 1, 12)
    store = Database.create(tmp_path / "store", {"name": ["a"], "day": [day.date()]}, "name", "day")
    with pytest.raises(DataError, match="cells of day have times of day instead of date32"):
        store.append({"name": ["b"], "day": [noon]})
    store.append({"name": ["b"], "day": [day]})
    assert store.ask("b").value == day.date()


@pytest.mark.parametrize(
    ("stored", "appended", "sentence"),
    [
        (pa.array([1]), pa.array(["007"]), "codes, such as '007', not int64"),
        (pa.array([1.5]), pa.array(["007"]), "codes, such as '007', not double"),
        (pa.array([1]), pa.array(["0x10"]), "codes, such as '0x10', not int64"),
        (pa.array([1.5], pa.float32()), pa.array([-1e300]), "too large for float"),
        (pa.array([[1.5]], pa.list_(pa.float32(), 1)), pa.array([[1e300]]), "too large for fixed_size_list"),
        (pa.array([Decimal("1.10")]), pa.array([2.345]), r"more digits than decimal128\(3, 2\)"),
    ],
)
def test_cells_that_a_type_changes_are_not_appended(tmp_path, stored, appended, sentence):
    store = Database.create(tmp_path / "store", pa.table({"name": ["a"], "x": stored}), "name", "x")
    with pytest.raises(DataError, match=f"cells of x are {sentence}" if "more" not in sentence else sentence):
        store.append(pa.table({"name": ["b"], "x": appended}))
    assert store.store.to_table()["x"].to_pylist() == stored.to_pylist()


@pytest.mark.parametrize("stated", [True, False])  # whether the store has the type of the categories, as older ones
@pytest.mark.parametrize("cell", [dt.date(2024, 5, 1), dt.datetime(2024, 5, 1, 3), 1.5, 2, True, "a"])
def test_cells_are_appended_to_categories_of_their_kind(tmp_path, cell, stated):
    categories = pa.table({"name": ["a"], "x": pa.array([cell]).dictionary_encode()})
    if stated:
        stores.create(tmp_path / "store", categories.schema, tables=[categories])
        store = Database.open(tmp_path / "store", "name", "x")
    else:
        store = Database.create(tmp_path / "store", categories, "name", "x")
    store.append({"name": ["b"], "x": [cell]})
    store.append(categories)
    if isinstance(cell, float):
        store.append({"name": ["c"], "x": [np.nan]})
    first, *others = store.store.to_table()["x"].to_pylist()
    assert others == [first, first, *[None] * isinstance(cell, float)]
    assert stated or store.ask("b").value == (cell if isinstance(cell, bool) else str(cell))


@pytest.mark.parametrize("stored", ["red", 1, Decimal("1.10")])
def test_nan_is_appended_as_a_missing_cell_to_columns_without_floats(tmp_path, stored):
    store = Database.create(tmp_path / "store", {"name": ["a"], "x": [stored]}, "name", "x")
    store.append({"name": ["b", "c"], "x": np.array([np.nan, 2.0])})
    assert store.store.to_table()["x"].to_pylist() == [stored, None, "2" if stored == "red" else 2]
