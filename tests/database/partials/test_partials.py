"""Partial results of queries over fragments: any split and any order of merges gives the answers of one process."""

import datetime as dt
import itertools
import json

import numpy as np
import pyarrow as pa
import pytest

import qkv
from qkv import normalizers, scores
from qkv.database.partials import compute, finalize, merge
from qkv.database.partials.arrow_format import from_batch, to_batch
from qkv.errors import DamagedError, DataError, KindError, OptionError, RefusedError

NORMALIZERS = [
    normalizers.Softmax(),
    normalizers.Softmax(temperature=0.3, sink=0.5),
    normalizers.Sum(),
    normalizers.Mean(),
    normalizers.Sigmoid(),
    normalizers.TopK(7),
    normalizers.TopK(4, normalizer=normalizers.Softmax(temperature=0.1)),
    normalizers.Hard(),
    normalizers.Sparsemax(),
    normalizers.Entmax15(),
    normalizers.Entmax(1.3),
]
ROWS = 230
KEYS = {
    "number": (["x"], lambda draw: draw.standard_normal(3).tolist(), scores.Gaussian(0.4)),
    "numbers": (["x", "y"], lambda draw: [tuple(row) for row in draw.standard_normal((3, 2)).tolist()], scores.Dot()),
    "vector": (["vector"], lambda draw: draw.standard_normal((3, 4)).tolist(), scores.Cosine(0.1)),
    "float32": (["vector32"], lambda draw: draw.standard_normal((3, 4)).tolist(), scores.Gaussian(0.7)),
    "text": (["name"], lambda draw: ["anna bell", "Bo", "cy dunn"], scores.Spelling()),
    "time": (["day"], lambda draw: [dt.date(2020, 3, 1), dt.date(2021, 1, 1)], scores.Laplace(30.0)),
}


def make_table(seed, rows=ROWS, missing=0.05):
    """Return a table with missing, NaN and infinite cells."""
    draw = np.random.default_rng(seed)
    numbers = {name: np.where(draw.random(rows) < missing / 2, np.nan, draw.standard_normal(rows)) for name in "xyv"}
    numbers["x"] = np.where(draw.random(rows) < missing / 2, np.inf, numbers["x"])
    numbers["v"] = np.where(draw.random(rows) < missing / 2, -np.inf, 10.0 + numbers["v"])
    vectors = draw.standard_normal((rows, 4))
    vectors[draw.random(rows) < missing / 2, 1] = np.nan
    names = np.array(["Anna Bell", "bo", "Cyd Dunn", "Cy Dun", "Bob"])[draw.integers(0, 5, rows)]
    city = np.array(["Oslo", "Rome", "Lima"])[draw.integers(0, 3, rows)]
    absent = draw.random(rows) < missing
    days = (np.datetime64("2020-01-01") + draw.integers(0, 500, rows)).astype("datetime64[D]")
    return pa.table(
        {
            **numbers,
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 4),
            "vector32": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1).astype(np.float32)), 4),
            "name": pa.array(names.tolist(), mask=absent),
            "city": pa.array(city.tolist(), mask=draw.random(rows) < missing),
            "day": pa.array(days, mask=draw.random(rows) < missing),
        }
    )


def split(table, draw, most=9):
    """Return random slices of a table, some of them empty."""
    cuts = np.sort(draw.integers(0, table.num_rows + 1, draw.integers(0, most)))
    bounds = [0, *cuts.tolist(), table.num_rows]
    return [table.slice(start, stop - start) for start, stop in itertools.pairwise(bounds)]


def merge_randomly(parts, draw):
    """Merge partial results in random groups and orders."""
    parts = list(parts)
    while len(parts) > 1:
        draw.shuffle(parts)
        count = int(draw.integers(2, len(parts) + 1))
        parts = [merge(parts[:count]), *parts[count:]]
    return parts[0]


def assert_same(got, expected, tolerance, starts=None):
    for name in ("value", "standard_error", "spread", "effective_rows"):
        for mine, theirs in zip(got[name].to_pylist(), expected[name].to_pylist(), strict=True):
            if isinstance(theirs, (float, list)):
                np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance, err_msg=name)
            elif isinstance(theirs, dt.timedelta):
                assert abs(mine - theirs) <= dt.timedelta(microseconds=10), name
            else:
                assert mine == theirs, name
    assert got["found"].to_pylist() == expected["found"].to_pylist()
    for mine, theirs in zip(got["evidence"].to_pylist(), expected["evidence"].to_pylist(), strict=True):
        weights = [row["weight"] for row in mine], [row["weight"] for row in theirs]
        np.testing.assert_allclose(*weights, rtol=max(tolerance, 1e-11), atol=tolerance)
        if starts is not None:
            assert [starts[row["fragment"]] + row["row"] for row in mine] == [row["row"] for row in theirs]


@pytest.mark.thinned
@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=str)
@pytest.mark.parametrize("key", KEYS)
def test_any_split_and_order_of_merges_gives_the_answers_over_all_rows(key, normalizer):
    for seed in range(2):
        draw = np.random.default_rng(seed)
        names, make_queries, score = KEYS[key]
        if type(normalizer) is normalizers.Sum and key not in ("text",):
            score = scores.Exact()
        table, queries = make_table(seed), make_queries(draw)
        options = {"score": score, "normalizer": normalizer, "top": 6}
        value = "city" if seed else "v"
        whole = finalize(compute(queries, table, names, value, fragment=0, **options))
        parts = split(table, draw)
        starts = np.concatenate([[0], np.cumsum([part.num_rows for part in parts])])
        made = [compute(queries, part, names, value, fragment=n, **options) for n, part in enumerate(parts)]
        assert_same(finalize(merge_randomly(made, draw)), whole, 1e-12, starts)
        repeated = [*made, *made[:2]]
        assert merge(repeated).equals(merge(repeated[::-1]), check_metadata=True)


@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=str)
def test_the_answers_are_those_of_attention_and_of_a_table_in_memory(normalizer):
    table = make_table(3, missing=0)
    key, value = np.stack([table["x"], table["y"]], axis=1), table["v"].to_numpy()
    queries = np.random.default_rng(1).standard_normal((4, 2))
    linear = type(normalizer) is normalizers.Sum
    score = scores.Custom(lambda q, k: np.abs(q @ k.T)) if linear else scores.Gaussian(0.5)
    got = finalize(
        merge(
            compute(queries.tolist(), part, "x,y", "v", score=score, normalizer=normalizer, fragment=n)
            for n, part in enumerate(split(table, np.random.default_rng(2)))
        )
    )
    output = qkv.attend(queries, key, value[:, None], score=score, normalizer=normalizer)
    np.testing.assert_allclose(got["value"].to_pylist(), output[:, 0], rtol=1e-12)
    answer = qkv.Database.open(table, "x,y", "v").ask(
        queries.tolist(), score=score, normalizer=normalizer, max_distance=None if linear else 1e9, aggregate="mean"
    )
    np.testing.assert_allclose(got["value"].to_pylist(), answer.value, rtol=1e-12)
    for name in ("spread", "effective_rows", "standard_error"):
        expected = [np.nan if each is None else each for each in getattr(answer, name)]
        mine = [np.nan if each is None else each for each in got[name].to_pylist()]
        np.testing.assert_allclose(mine, expected, rtol=1e-8, err_msg=name)
    for mine, theirs in zip(got["evidence"].to_pylist(), answer.rows, strict=True):
        np.testing.assert_allclose([row["weight"] for row in mine], [row.weight for row in theirs], rtol=1e-11)
        assert [row["v"] for row in mine] == [row.record["v"] for row in theirs]


@pytest.mark.thinned
@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=str)
@pytest.mark.parametrize("value", ["v", "vector", "city", "day"])
def test_fragments_without_rows_and_tables_without_rows_have_answers(normalizer, value):
    table = make_table(5)
    score = scores.Custom(lambda q, k: np.exp(-np.square(q - k.T)))
    options = {"score": score, "normalizer": normalizer}
    parts = [table.slice(0, 0), table, table.slice(0, 0)]
    if value == "day" and not normalizer.sums_to_one:
        with pytest.raises(OptionError, match="must give weights that sum to 1"):
            finalize(compute([0.1, 2.0], table, "x", value, fragment=1, **options))
        return
    made = [compute([0.1, 2.0], part, "x", value, fragment=n, **options) for n, part in enumerate(parts)]
    whole = finalize(compute([0.1, 2.0], table, "x", value, fragment=1, **options))
    assert_same(finalize(merge(made)), whole, 1e-12)
    empty = finalize(merge([made[0], made[2]]))
    assert empty["found"].to_pylist() == [False, False]
    assert empty["value"].to_pylist() == [None, None]
    assert empty["evidence"].to_pylist() == [[], []]


@pytest.mark.thinned
@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_logit_that_is_not_a_number_or_infinite_reaches_the_answer_from_any_fragment(normalizer, bad):
    table = make_table(7, rows=90, missing=0)

    def logits(query, key):
        found = np.exp(-np.square(query - key.T))
        found[0, (key == table["x"][40].as_py())[:, 0]] = bad
        return found

    options = {"score": scores.Custom(logits), "normalizer": normalizer}
    whole = finalize(compute([0.1, 0.5], table, "x", "v", fragment=0, **options))
    parts = [table.slice(0, 30), table.slice(30, 30), table.slice(60)]
    made = [compute([0.1, 0.5], part, "x", "v", fragment=n, **options) for n, part in enumerate(parts)]
    got = finalize(merge([made[2], made[1], made[0]]))
    np.testing.assert_allclose(got["value"].to_pylist(), whole["value"].to_pylist(), rtol=1e-12)
    reference = qkv.attend(
        np.array([[0.1], [0.5]]), table["x"].to_numpy()[:, None], table["v"].to_numpy()[:, None], **options
    )
    np.testing.assert_allclose(got["value"].to_pylist(), reference[:, 0], rtol=1e-12)


def test_ties_go_to_the_first_row_of_the_first_fragment():
    rows = {"x": [1.0, 1.0], "v": [1.0, 2.0]}
    later = {"x": [1.0, 1.0], "v": [3.0, 4.0]}
    made = [
        compute(1.0, each, "x", "v", score="gaussian:1", normalizer="hard", fragment=n)
        for n, each in ((2, later), (1, rows))
    ]
    assert finalize(merge(made))["value"].to_pylist() == [1.0]
    words = [{"x": [1.0], "v": [word]} for word in "bac"]
    made = [compute(1.0, each, "x", "v", score="gaussian:1", fragment=n) for n, each in enumerate(words)]
    assert finalize(merge(made[::-1]))["value"].to_pylist() == ["b"]


@pytest.mark.parametrize("normalizer", [normalizers.Sparsemax(), normalizers.Entmax15(), normalizers.TopK(9)], ids=str)
def test_a_partial_result_of_a_sparse_normalizer_has_as_many_rows_as_can_have_weight(normalizer):
    table = make_table(1, rows=5000, missing=0)
    made = compute([0.0], table, "x", "v", score=scores.Gaussian(0.05), normalizer=normalizer, fragment=0)
    weights = np.asarray(normalizer.weights(-np.square(table["x"].to_numpy()[None]) / 2 / 0.05**2))
    weighted = int((weights > 0).sum())
    assert weighted <= len(made["rows"][0]) <= weighted + 20


def test_a_fragment_that_is_computed_again_replaces_and_is_not_added():
    table = make_table(2)
    first, second = table.slice(0, 100), table.slice(100)
    made = [
        compute(0.0, each, "x", "v", score="gaussian:1", fragment=f"part-{n}") for n, each in enumerate((first, second))
    ]
    once, merged = finalize(merge(made)), merge(made)
    assert finalize(merge([*made, made[0], made[1], made[0]])).equals(once)
    assert finalize(merge([merged, made[1]])).equals(once)
    assert finalize(merge([made[0], merged, merged])).equals(once)
    third = compute(0.0, first, "x", "v", score="gaussian:1", fragment="part-2")
    with pytest.raises(OptionError, match="share the fragment part-1"):
        merge([merged, merge([made[1], third])])


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"queries": [0.5]}, "queries"),
        ({"score": "gaussian:2"}, "score"),
        ({"score": scores.Projected(scores.Dot(), np.eye(1), np.eye(1))}, "score"),
        ({"version": 2}, "version"),
        ({"normalizer": "topk:3"}, "normalizer"),
        ({"value": "y"}, "value"),
        ({"key": "y"}, "key"),
        ({"top": 3}, "number of rows of evidence"),
        ({"queries": [0.0, 1.0]}, "queries"),
    ],
    ids=str,
)
def test_partial_results_of_different_queries_scores_or_versions_are_refused(change, name):
    arguments = {"queries": [0.0], "rows": make_table(0), "key": "x", "value": "v", "score": "gaussian:1", "version": 1}
    one = compute(**arguments, fragment=0)
    with pytest.raises(OptionError, match=f"partials must have the same {name}"):
        merge([one, compute(**{**arguments, **change}, fragment=1)])


def test_scores_with_different_arrays_are_told_apart():
    arguments = {"queries": [0.0], "rows": make_table(0), "key": "x", "value": "v"}
    score = [scores.Projected(scores.Dot(), np.eye(1) * size, np.eye(1)) for size in (1.0, 2.0)]
    with pytest.raises(OptionError, match="same score"):
        merge([compute(**arguments, score=each, fragment=n) for n, each in enumerate(score)])


def test_what_cannot_be_merged_is_refused_with_what_to_do():
    arguments = {"queries": [0.0], "rows": make_table(0), "key": "x", "value": "v", "fragment": 0}
    with pytest.raises(RefusedError, match="partial results that merge"):
        compute(**arguments, score="gaussian:1", normalizer=normalizers.Sample())
    with pytest.raises(OptionError, match=r"gaussian:0\.5"):
        compute(**arguments, score="gaussian")
    with pytest.raises(DataError, match="got 'w'"):
        compute(**{**arguments, "value": "w"}, score="gaussian:1")
    with pytest.raises(OptionError, match="fragment must be an integer or a text"):
        compute(**{**arguments, "fragment": 1.5}, score="gaussian:1")
    with pytest.raises(OptionError, match="at least one element"):
        merge([])
    with pytest.raises(KindError, match="RecordBatch"):
        merge([3])
    with pytest.raises(OptionError, match="all integers or all texts"):
        merge([compute(**{**arguments, "fragment": name}, score="gaussian:1") for name in (1, "1")])


def test_a_partial_result_survives_an_arrow_stream_and_a_damaged_one_is_refused():
    batch = compute([0.0, 1.0], make_table(0), "x", "city", score="gaussian:1", fragment="a")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    assert finalize(sink.getvalue().to_pybytes()).equals(finalize(batch))
    assert to_batch(from_batch(batch)).equals(batch, check_metadata=True)
    metadata = json.loads(batch.schema.metadata[b"qkv.partial"])
    assert metadata["score"] == "Gaussian(1)"
    assert (metadata["version"], metadata["fragments"], metadata["format"]) == ("0", ["a"], 1)
    for key, wrong in [
        ("format", 2),
        ("fragments", ["a", "a"]),
        ("fragments", [["a"]]),
        ("fragments", []),
        ("normalizer", {"class": "Part"}),
        ("normalizer", {"class": "Softmax", "temperature": -1}),
        ("normalizer", {"class": "TopK", "k": {"class": "Softmax"}}),
        ("count", 3),
        ("value_type", "AAAA"),
        ("top", 0),
    ]:
        changed = batch.replace_schema_metadata({b"qkv.partial": json.dumps({**metadata, key: wrong}).encode()})
        with pytest.raises(DamagedError):
            finalize(changed)
    with pytest.raises(DamagedError, match="no metadata"):
        finalize(batch.replace_schema_metadata(None))
    with pytest.raises(DamagedError):
        finalize(sink.getvalue().to_pybytes()[:200])


@pytest.mark.parametrize("normalizer", [n for n in NORMALIZERS if not n.sums_to_one], ids=str)
def test_times_are_averaged_only_by_weights_that_sum_to_one(normalizer):
    score, table = scores.Custom(lambda q, k: np.exp(-np.square(q - k.T))), make_table(1)
    with pytest.raises(OptionError, match="weights that sum to 1 for the value day"):
        compute(0.5, table, "x", "day", score=score, normalizer=normalizer, fragment=0)
    with pytest.raises(OptionError, match="weights that sum to 1 for the value day"):
        qkv.Database.open(table, key="x", value="day").ask(0.5, score=score, normalizer=normalizer)


@pytest.mark.long
def test_random_tables_splits_and_orders():
    for seed in range(40):
        for normalizer in NORMALIZERS:
            draw = np.random.default_rng(seed)
            table = make_table(seed, rows=int(draw.integers(0, 3000)), missing=float(draw.choice([0, 0.1, 1])))
            score = scores.Custom(lambda q, k: np.exp(-np.square(q - k.T)))
            options = {"score": score, "normalizer": normalizer, "top": int(draw.integers(1, 20))}
            value = str(draw.choice(["v", "city", "vector", "day"]))
            queries = draw.standard_normal(int(draw.integers(1, 70))).tolist()
            if value == "day" and not normalizer.sums_to_one:
                continue  # see test_times_are_averaged_only_by_weights_that_sum_to_one
            whole = finalize(compute(queries, table, "x", value, fragment=0, **options))
            parts = split(table, draw, 30)
            made = [compute(queries, part, "x", value, fragment=n, **options) for n, part in enumerate(parts)]
            assert_same(finalize(merge_randomly(made, draw)), whole, 1e-12)
