"""The soft join: weights with a key for no match, what labels and tables teach it, and its files."""

import datetime as dt
import os
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from qkv.core.container import write_container
from qkv.errors import DataError, OptionError
from qkv.join import SoftJoin
from qkv.join.attention_weights import attention_weights, collect_matches, solve_assignment
from qkv.join.blocking import CandidatePairs
from qkv.join.compared_columns import clean, read_columns
from qkv.join.comparison_vectors import ComparisonVectors, PairGrid, PairList
from qkv.join.labels import read_labels
from qkv.join.model import JoinModel
from qkv.join.supervised import best_threshold
from qkv.normalizers import Softmax

ROOT = Path(__file__).parents[2]
PEOPLE, GUESTS, SAME = (ROOT / "examples" / f"{name}.csv" for name in ("people", "guests", "same"))
ON = "name=guest,city=town"

FIRST = ("Anna", "Bo", "Carla", "Dmitri", "Eve", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kaya", "Liv")
LAST = ("Berg", "Costa", "Dahl", "Evans", "Fontaine", "Gruber", "Hansen", "Ito", "Jensen", "Kowalski", "Lindt")
CITY = ("Oslo", "Rome", "Kyoto", "Lagos", "Sofia")


def crowd(seed, count=60):
    """People, and a table of half of them misspelt among others; the true pairs."""
    draw = np.random.default_rng(seed)

    def one():
        return {
            "name": f"{draw.choice(FIRST)} {draw.choice(LAST)}",
            "city": str(draw.choice(CITY)),
            "phone": "".join(str(digit) for digit in draw.integers(0, 10, 8)),
            "born": int(draw.integers(1940, 2005)),
        }

    left = [one() for _ in range(count)]
    right, pairs = [], []
    for number, row in enumerate(left[: count // 2]):
        name = row["name"]
        place = int(draw.integers(1, len(name) - 1))
        misspelt = {**row, "name": name[:place] + name[place + 1 :]}
        if number % 3 == 0:
            misspelt["phone"] = None
        pairs.append((number, len(right)))
        right.append(misspelt)
    right += [one() for _ in range(count // 3)]
    return left, right, pairs


def labelled(left, right, pairs, draw):
    """The true pairs and four times as many others."""
    others = {(int(draw.integers(len(left))), int(draw.integers(len(right)))) for _ in range(4 * len(pairs))}
    rows = [{"left": i, "right": j, "match": 1} for i, j in pairs]
    return rows + [{"left": i, "right": j, "match": 0} for i, j in sorted(others - set(pairs))]


# -- weights ------------------------------------------------------------------------------------------------


def test_weights_are_the_softmax_with_a_sink_over_rows_of_any_length():
    draw = np.random.default_rng(0)
    rows = np.repeat([3, 0, 7], [4, 1, 6])
    logits = draw.normal(size=11) * 300  # far beyond what an exponential holds
    weights, nothing = attention_weights(rows, logits)
    for row in (3, 0, 7):
        own = rows == row
        np.testing.assert_allclose(weights[own], Softmax(sink=0.0).weights(logits[own][None])[0], atol=1e-12)
        np.testing.assert_allclose(weights[own].sum() + nothing[own], 1, atol=1e-12)


def test_collected_matches_have_the_weights_among_all_pairs():
    rows, keys = np.repeat([0, 1], 300), np.tile(np.arange(300), 2)
    logits = np.full(600, -9.0)
    logits[[5, 7, 301]] = [4.0, 3.0, 1.0]
    edges = collect_matches([(rows, keys, logits)], 3, 0.01, by_weight=False)
    whole, _ = attention_weights(rows, logits)
    assert list(zip(edges.rows.tolist(), edges.keys.tolist(), strict=True)) == [(0, 5), (0, 7), (1, 1)]
    np.testing.assert_allclose(edges.weights, whole[[5, 7, 301]])
    # A row without any pair has no match for certain.
    assert edges.no_match[2] == 1
    np.testing.assert_allclose(edges.no_match[0], 1 - whole[:300].sum(), atol=1e-9)


def test_a_one_to_one_pairing_has_the_largest_gain_of_all_pairings():
    from itertools import permutations

    draw = np.random.default_rng(1)
    for _ in range(30):
        gain = draw.normal(size=(4, 4))
        rows, keys = np.repeat(np.arange(4), 4), np.tile(np.arange(4), 4)
        kept = draw.random(16) < 0.6
        taken = solve_assignment(rows[kept], keys[kept], gain.ravel()[kept])
        table = np.where(kept.reshape(4, 4), gain.clip(0), 0)
        best = max(sum(table[i, p[i]] for i in range(4)) for p in permutations(range(4)))
        assert gain.ravel()[kept][taken].sum() == pytest.approx(best)
        assert len(set(rows[kept][taken])) == taken.sum() == len(set(keys[kept][taken]))


# -- measures -----------------------------------------------------------------------------------------------


def fields_of(left, right, names):
    return read_columns(pa.Table.from_pylist(left), pa.Table.from_pylist(right), names)


def test_lists_and_grids_of_pairs_have_the_same_similarities():
    left, right, _ = crowd(0, 12)
    measures = ComparisonVectors(fields_of(left, right, ("name", "city", "phone", "born")))
    grid = measures.compute(PairGrid(2, 9))
    assert grid.shape == (7, len(right), len(measures.names))
    rows, keys = np.repeat(np.arange(2, 9), len(right)), np.tile(np.arange(len(right)), 7)
    np.testing.assert_allclose(measures.compute(PairList(rows, keys)), grid.reshape(-1, grid.shape[-1]), atol=1e-6)
    assert grid.min() >= 0
    assert grid.max() <= 1 + 1e-6


def test_equal_cells_have_similarity_one_and_missing_cells_are_marked():
    row = {"name": "Anna Berg", "phone": "213/857-0034", "abv": "8.70 %", "price": 105.3, "paid": True, "note": "-"}
    other = {"name": "` anna berg '", "phone": "213 857 0034", "abv": "8.7", "price": "105,3", "paid": "true"}
    fields = fields_of([row], [other | {"note": "word"}], tuple(row))
    assert [field.kind for field in fields] == ["text", "code", "number", "text", "text", "text"]
    measures = ComparisonVectors(fields)
    found = dict(zip(measures.names, measures.compute(PairList(np.array([0]), np.array([0])))[0].tolist(), strict=True))
    for column in ("name", "phone", "abv", "price", "paid"):
        # A name without digits has similarity 0 in the measure of digits.
        own = {name: value for (col, name), value in found.items() if col == column and name != "digits"}
        assert own.pop("missing") == 0
        assert list(own.values()) == pytest.approx([1] * len(own), abs=1e-6)
    assert found["note", "missing"] == 1
    assert sum(value for (column, _), value in found.items() if column == "note") == 1


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        ([2011, 4001, 2776], "code"),
        ([20190219, 19601210, None], "code"),
        ([3, 14, 250], "number"),
        ([1.5, 2.25, 3.0], "number"),
        (["212/245-5336", "404 351 9533"], "code"),
        (["5.60 %", "-", "12 %"], "number"),
        (["1,203.5", "12"], "number"),
        (["5,3", "12,2"], "text"),
        (["12 Main Street", "3 Elm Road"], "text"),
        ([None, None], "text"),
    ],
)
def test_the_kind_of_a_column_is_inferred(cells, kind):
    table = pa.table({"a": cells})
    assert read_columns(table, table, ("a",))[0].kind == kind


def test_numbers_of_any_size_join_alike_and_unread_cells_are_counted():
    names, sizes = [row["name"] for row in crowd(3)[0]], np.random.default_rng(0).normal(size=60).round(3)
    plain, huge = (
        SoftJoin("name,size").join({"name": names, "size": cells}, {"name": names[::-1], "size": cells[::-1]})
        for cells in (sizes, sizes * 2.0**1022)
    )
    np.testing.assert_allclose(plain.table["weight"], huge.table["weight"])
    texts = [*map(str, sizes[2:]), "soon", "-"]
    joined = SoftJoin("name,size").join({"name": names, "size": texts}, {"name": names, "size": sizes})
    assert joined.notes[-1] == "1 cells of size count as missing, each no number"


def test_codes_beyond_the_digits_of_a_float_stay_different():
    codes = [2**60 + n for n in range(30)]
    (column,) = read_columns(pa.table({"id": codes}), pa.table({"id": [None, *codes]}), ("id",))
    assert column.left.tolist() == [str(code) for code in codes]
    assert column.right.tolist() == ["", *column.left]


def test_cleaning_keeps_words_of_every_script():
    assert clean("Siobhán O'Connor") == "siobhan o connor"
    assert clean("Fisherman 's Tea &amp; Bar_s") == "fishermans tea bars"
    assert clean("हिन्दी, が!") == "हिन्दी が"
    assert clean(" -- ") == ""


# -- joining ------------------------------------------------------------------------------------------------


def found_pairs(joined):
    return {(pair.left, pair.right) for pair in joined}


def check_misspelt_people_are_found_and_strangers_are_not():
    left, right, pairs = crowd(3)
    found = found_pairs(SoftJoin().join(left, right))
    assert len(found & set(pairs)) >= 0.95 * len(pairs)
    assert len(found - set(pairs)) <= 1


def test_an_unsupervised_join_finds_misspelt_people_only():
    check_misspelt_people_are_found_and_strangers_are_not()


def test_tables_without_common_people_have_no_match():
    left, _, _ = crowd(4, 80)
    assert len(SoftJoin().join(left[:40], left[40:])) == 0


def test_labels_decide_which_column_counts():
    # Names are drawn anew on the right: only the phone says who is who.
    draw = np.random.default_rng(5)
    left, right, pairs = crowd(5, 80)
    right = [{**row, "name": f"{draw.choice(FIRST)} {draw.choice(LAST)}", "city": "Bern"} for row in right]
    pairs = [(i, j) for i, j in pairs if right[j]["phone"]]
    half = len(pairs) // 2
    train, test = labelled(left, right, pairs[:half], draw), labelled(left, right, pairs[half:], draw)
    join = SoftJoin().fit(left, right, train)
    judged = join.join(left, right).evaluate(test)
    assert judged.f1 > 0.9
    assert judged.matches == len(pairs) - half


def test_a_list_of_all_matches_makes_other_pairs_non_matches():
    left, right, pairs = crowd(6)
    listed = [{"left": i, "right": j} for i, j in pairs]
    joined = SoftJoin().fit(left, right, listed).join(left, right)
    judged = joined.evaluate(listed)
    assert judged.precision > 0.95
    assert judged.recall > 0.95
    assert judged.found == len(joined)


def test_labels_that_contradict_one_another_evaluate_nothing():
    left, right, pairs = crowd(6)
    one, other = ({"left": pairs[0][0], "right": pairs[0][1], "match": match} for match in (1, 0))
    joined, alone = SoftJoin().join(left, right), SoftJoin().join(left)
    assert joined.evaluate([one, one]).pairs == 1
    with pytest.raises(DataError, match=f"got 1 and 0 for left row {one['left']} and right row {one['right']}"):
        joined.evaluate([one, other])
    with pytest.raises(DataError, match="must have one label each, got 1 and 0 for left row 2 and right row 3"):
        alone.evaluate([{"left": 2, "right": 3, "match": 1}, {"left": 3, "right": 2, "match": 0}])


def test_duplicates_of_one_table_are_found_once_each():
    left, right, pairs = crowd(7)
    people = left + right
    joined = SoftJoin().join(people)
    true = {(i, len(left) + j) for i, j in pairs}
    found = found_pairs(joined)
    assert all(i < j for i, j in found)
    assert len(found & true) >= 0.9 * len(true)
    assert joined.evaluate([{"left": j, "right": i} for i, j in true]).recall >= 0.9
    assert len(found_pairs(SoftJoin().join(people, one_to_one=True)) & true) >= 0.9 * len(true)


def test_a_table_that_is_given_twice_is_joined_as_its_copy():
    table = pa.Table.from_pylist(crowd(7)[0])
    twice, copied = SoftJoin().join(table, table), SoftJoin().join(table, table.to_pandas())
    assert found_pairs(twice) == found_pairs(copied) >= {(row, row) for row in range(len(table))}


def test_one_to_one_has_no_row_twice_and_many_may():
    left, right, _ = crowd(8)
    join = SoftJoin().fit(left, right)
    left, right = [*left, *[left[1]] * 120], [*right, *[right[1]] * 120]
    many, single = (join.join(left, right, many=several, one_to_one=not several) for several in (True, False))
    assert (np.bincount(many.rows)[60:] == 121).all()
    assert max(np.bincount(single.rows)) == max(np.bincount(single.keys)) == 1
    assert set(range(60, 180)) <= set(single.rows.tolist())


def test_weights_and_no_match_add_up_to_one_in_any_order_of_the_rows():
    left, right, _ = crowd(9)
    joined, turned = (SoftJoin().join(left[::s], right[::s], threshold=0.01) for s in (1, -1))
    np.testing.assert_allclose(joined.no_match, turned.no_match[::-1], atol=1e-9)
    total = np.bincount(joined.rows, joined.weights, len(left)) + joined.no_match
    # What is left are pairs under a hundredth.
    assert (total <= 1 + 1e-9).all()
    assert (total > 0.9).all()
    assert (joined.weights <= joined.probabilities + 1e-12).all()


def test_candidates_find_what_all_pairs_find():
    left, right, _ = crowd(10)
    whole, some = (SoftJoin().join(left, right, candidates=count) for count in (None, 10))
    assert found_pairs(some) == found_pairs(whole)
    assert "all 60 × 50 pairs compared" in whole.notes
    assert "the 10 most similar right rows" in some.notes[-1]


def test_batches_cover_every_pair_once_and_keep_rows_together(monkeypatch):
    left, right, _ = crowd(11, 20)
    measures = ComparisonVectors(fields_of(left, right, ("name", "city")))
    whole = measures.compute(PairGrid(0, 20)).reshape(-1, len(measures.names))
    monkeypatch.setattr("qkv.join.blocking._BYTES", 4 * len(measures.names) * len(right) * 3)
    strips = list(CandidatePairs(measures).batches())
    assert len(strips) == 7
    rows, keys, found = (np.concatenate(parts) for parts in zip(*strips, strict=True))
    np.testing.assert_array_equal(rows * len(right) + keys, np.arange(20 * len(right)))
    np.testing.assert_allclose(found, whole, atol=1e-6)
    monkeypatch.setattr("qkv.join.blocking._BYTES", 8 * len(measures.names) * 5 * 3)
    listed = list(CandidatePairs(measures, count=5).batches())
    assert len(listed) > 1
    seen = [set(strip[0].tolist()) for strip in listed]
    assert not any(a & b for a, b in pairwise(seen))
    assert sum(len(strip[0]) for strip in listed) == sum(
        len(strip[0]) for strip in CandidatePairs(measures, count=5).batches()
    )


@pytest.mark.parametrize("count", [None, 6])
def test_the_closest_of_some_rows_are_those_of_all(count):
    left, right, _ = crowd(15, 20)
    candidates = CandidatePairs(ComparisonVectors(fields_of(left, right, ("name", "city"))), count=count)
    rows, keys, found = candidates.top_candidates(3)
    some_rows, some_keys, some_found = candidates.top_candidates(3, np.array([17, 4]))
    own = np.isin(rows, [4, 17])
    assert set(some_rows) == {4, 17}
    np.testing.assert_array_equal(keys[own], some_keys)
    np.testing.assert_array_equal(found[own], some_found)


def test_a_sample_of_the_rows_gives_the_same_estimate(monkeypatch):
    monkeypatch.setattr("qkv.join.expectation_maximization._MAX_ROWS", 25)
    check_misspelt_people_are_found_and_strangers_are_not()


def test_progress_is_reported_to_the_end():
    left, right, pairs = crowd(16, 20)
    seen = {}

    def progress(what, done, total):
        assert seen.get(what, 0) <= done <= total
        seen[what] = done

    labels = labelled(left, right, pairs, np.random.default_rng(0))
    SoftJoin().fit(left, right, labels, progress=progress)
    assert set(seen) == {"comparing", "estimating", "learning"}
    assert seen["comparing"] == 20


@pytest.mark.parametrize("frame", [pa.Table.from_pylist, pd.DataFrame, pl.DataFrame])
def test_tables_and_frames_join_alike(frame):
    left, right, _ = crowd(12)
    joined = SoftJoin(["name", "phone"]).join(frame(left), frame(right))
    assert found_pairs(joined) == found_pairs(SoftJoin(["name", "phone"]).join(left, right))


def test_the_table_holds_both_rows_of_each_pair():
    joined = SoftJoin(ON).join(PEOPLE, GUESTS)
    table = joined.table
    assert table.column_names[:4] == ["left_row", "right_row", "weight", "probability"]
    assert table.num_rows == len(joined)
    for row in table.to_pylist():
        assert row["left.name"] == joined.left.column("name")[row["left_row"]].as_py()
        assert row["right.guest"] == joined.right.column("guest")[row["right_row"]].as_py()


@pytest.mark.parametrize(
    "tables", [([{"a": "x"}], None), ([{"a": "x"}], [{"a": "y"}]), ([{"a": None}] * 2, [{"a": "-"}])]
)
def test_the_smallest_tables_join(tables):
    assert len(SoftJoin().join(*tables)) == 0


# -- models -------------------------------------------------------------------------------------------------


def test_a_saved_model_joins_in_the_same_way(tmp_path):
    left, right, pairs = crowd(13)
    for labels in (None, labelled(left, right, pairs, np.random.default_rng(0))):
        join = SoftJoin(["name", "city", "phone", "born"]).fit(left, right, labels)
        join.save(tmp_path / "model.json")
        read = SoftJoin.load(tmp_path / "model.json")
        assert read.on == join.on
        before, after = join.join(left, right), read.join(left, right)
        np.testing.assert_array_equal(before.rows, after.rows)
        np.testing.assert_allclose(before.weights, after.weights, rtol=1e-12)
        assert after.threshold == before.threshold


def test_a_damaged_model_is_refused(tmp_path):
    path = tmp_path / "model.json"
    join = SoftJoin(ON).fit(PEOPLE, GUESTS, SAME)
    join.save(path)
    good = {"version": 3, **asdict(JoinModel.load(path))}
    for change, said in (
        ({"version": 99}, "must have version 3, got 99"),
        ({"log_odds": np.ones((1, 1))}, "must hold an intact model"),
        ({"learned": np.ones(2)}, "must hold an intact model"),
        ({"kinds": {"name": "colour", "city": "text"}}, "must hold an intact model"),
        ({"on": [["name"]]}, "must hold an intact model"),
        ({"bias": "much"}, "must hold an intact model"),
    ):
        settings = good | change
        parts = {name: settings.pop(name) for name in ("log_odds", "learned")}
        write_container(path, "a join model", settings, parts)
        with pytest.raises(DataError, match=said):
            SoftJoin.load(path)
    path.write_text("{")
    with pytest.raises(DataError, match="must be a container that qkv wrote"):
        SoftJoin.load(path)
    with pytest.raises(DataError, match="must be a readable file"):
        SoftJoin.load(tmp_path / "none.json")
    with pytest.raises(OptionError, match="must be fitted before"):
        SoftJoin().save(path)


def test_the_threshold_is_that_of_the_largest_f1():
    draw = np.random.default_rng(2)
    labels = (draw.random(60) < 0.4).astype(int)
    weights = np.where(labels == 1, draw.beta(4, 2, 60), draw.beta(2, 4, 60))
    threshold, f1 = best_threshold(labels, weights)

    def f1_at(cut):
        found = weights >= cut
        return 2 * (found & (labels == 1)).sum() / (found.sum() + labels.sum())

    assert f1_at(threshold) == pytest.approx(f1)
    assert f1 >= max(f1_at(cut) for cut in np.linspace(0.001, 1, 500)) - 1e-12


def test_no_similarity_has_a_negative_weight():
    left, right, pairs = crowd(14)
    join = SoftJoin().fit(left, right, labelled(left, right, pairs, np.random.default_rng(0)))
    assert join.model is not None
    assert join.model.learned is not None
    assert (join.model.learned >= 0).all()
    assert join.model.learned.any()


def test_labels_are_read_by_number_and_by_id():
    ids = {"x": 0, "y": 1}
    labels = read_labels([{"ltable_id": "y", "rtable_id": 0, "label": "1"}], (2, 1), (ids, None))
    assert (labels.rows.tolist(), labels.keys.tolist(), labels.match.tolist()) == ([1], [0], [1])
    assert not labels.complete


# -- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: SoftJoin("name").join(PEOPLE, GUESTS), "in guests.csv, got 'name'"),
        (lambda: SoftJoin("nmae=guest").join(PEOPLE, GUESTS), "Did you mean 'name'"),
        (lambda: SoftJoin().join(PEOPLE, GUESTS), "must have a common column name"),
        (lambda: SoftJoin(ON).join(PEOPLE, "nothing.csv"), "must be an existing file"),
        (lambda: SoftJoin("a").join({"a": []}, {"a": ["x"]}), "must have at least one row"),
        (lambda: SoftJoin("a").join({"a": [[1.0, 2.0]]}, {"a": [[1.0, 2.0]]}), "got vectors"),
        (lambda: SoftJoin(ON, id="name").join(PEOPLE, GUESTS), "in guests.csv, got 'name'"),
        (lambda: SoftJoin("a", id="i").join({"a": ["x", "y"], "i": [1, 1]}), "more than once"),
        (
            lambda: SoftJoin("a", id="i").join({"a": ["x", "y"], "i": [1, None]}),
            "no missing cells, got a missing cell in row 1",
        ),
        (lambda: SoftJoin(ON).fit(PEOPLE, GUESTS, [{"a": 1}]), "must have the columns left and right"),
        (
            lambda: SoftJoin(ON).fit(PEOPLE, GUESTS, [{"left": 99, "right": 0, "match": 1}]),
            "must be an integer from 0 to 23, got 99",
        ),
        (lambda: SoftJoin(ON).fit(PEOPLE, GUESTS, [{"left": 0, "right": 0, "match": 7}]), "must be 0 or 1, got 7"),
        (lambda: SoftJoin(ON).fit(PEOPLE, GUESTS, [{"left": 0, "right": 0, "match": 1}]), "got 1 matches among 1"),
        (lambda: SoftJoin(ON).fit(PEOPLE, GUESTS, valid=SAME), "Pass the training pairs"),
        (lambda: SoftJoin(ON).join(PEOPLE, GUESTS, threshold=0.0), "threshold must be a number above 0"),
        (lambda: SoftJoin(ON).join(PEOPLE, GUESTS, threshold="0.5"), "threshold must be a number above 0"),
        (lambda: SoftJoin(ON).join(PEOPLE, GUESTS, candidates=0), "candidates must be an integer of at least 1"),
        (lambda: SoftJoin(ON).fit(PEOPLE, GUESTS, [{"left": "²", "right": 0}]), "must be an integer from 0 to 23"),
        (lambda: SoftJoin(ON).join(PEOPLE, GUESTS, one_to_one=True, many=True), "must not both be True"),
        (lambda: SoftJoin("name,name"), "each left column at most once"),
        (lambda: SoftJoin(""), "each left column at most once"),
    ],
)
def test_unusable_arguments_are_refused(call, said):
    with pytest.raises((DataError, OptionError)) as error:
        call()
    assert said in str(error.value)


# -- public sets --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", name="sets")
def _sets(tmp_path_factory):
    if "QKV_DATA" not in os.environ:
        pytest.skip("QKV_DATA does not name the folder of public data")
    from examples.matching import prepare_duplicates, prepare_pairs

    source, out = Path(os.environ["QKV_DATA"]) / "matching", tmp_path_factory.mktemp("sets")
    for name in ("Beer", "Fodors-Zagats"):
        prepare_pairs(source / name, out / name)
    prepare_duplicates(source / "febrl1.csv.gz", out / "febrl1")
    return out


@pytest.mark.parametrize(
    ("name", "on", "least"),
    [
        # Without the column "class", which numbers the restaurants and so gives the answer away.
        ("Fodors-Zagats", "name,addr,city,phone,type", 1.0),
        pytest.param("Beer", "Beer_Name,Brew_Factory_Name,Style,ABV", 0.80, marks=pytest.mark.long),
    ],
)
def test_a_join_that_was_fitted_to_training_pairs_finds_those_of_the_test(sets, name, on, least):
    folder = sets / name
    tables = folder / "left.csv", folder / "right.csv"
    join = SoftJoin(on).fit(*tables, folder / "train.csv", valid=folder / "valid.csv")
    assert join.join(*tables).evaluate(folder / "test.csv").f1 >= least


@pytest.mark.long
def test_the_duplicates_among_a_thousand_people_are_found_without_labels(sets):
    joined = SoftJoin(id="rec_id").join(sets / "febrl1" / "people.csv")
    judged = joined.evaluate(sets / "febrl1" / "same.csv")
    assert judged.matches == 500
    assert judged.precision >= 0.95
    assert judged.recall >= 0.95


@pytest.mark.long
def test_people_without_duplicates_have_none(sets):
    from qkv.database.io.sources import read

    people = read(sets / "febrl1" / "people.csv")
    kept = [row for row, id_ in enumerate(people.column("rec_id").to_pylist()) if id_.endswith("org")]
    assert len(kept) == 500
    assert len(SoftJoin(id="rec_id").join(people.take(kept))) <= 2


def test_texts_of_dates_are_compared_with_dates_and_texts_that_are_none_are_not():
    names = ["Ann Ray", "Bo Li", "Al Fox", "Cy Kim", "Di Moe"]
    days = [dt.date(2024, 4, day) for day in (3, 4, 5, 13, 14)]
    here = {"name": names, "day": ["03/04/2024", "04/04/2024", "2024-04-05", "13/04/2024", "14/04/2024"]}
    there = {"name": [f"{name}e" for name in names], "day": days}
    for left, right in ((here, there), (there, here)):
        joined = SoftJoin("name,day").join(left, right)
        assert [(pair.left, pair.right) for pair in joined] == [(row, row) for row in range(5)]
        assert "texts of day are read as dates in the format %d/%m/%Y" in joined.notes
    texts = {**here, "day": [*here["day"][:4], "soon"]}
    assert "are read as dates" not in " ".join(SoftJoin("name,day").join(texts, there).notes)


def test_a_join_says_where_the_order_or_the_time_zone_of_dates_is_not_known():
    names = ["Ann Lee", "Bob Ray", "Cat Fox", "Dan Poe", "Eve Ash"]
    days = [dt.datetime(2020, month, month + 1) for month in range(2, 7)]
    texts = [f"{day:%d/%m/%Y}" for day in days]
    joined = SoftJoin("name,day").join({"name": names, "day": texts}, {"name": names, "day": days})
    assert "the format %d/%m/%Y, which no cell decides; the other is %m/%d/%Y" in joined.notes[-1]
    zoned = [day.replace(tzinfo=dt.UTC) for day in days]
    joined = SoftJoin("name,day").join({"name": names, "day": days}, {"name": names, "day": zoned})
    assert joined.notes[-1].startswith("day has a time zone in one table")
