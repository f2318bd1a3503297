"""What becomes of the values under the weights, against the definition."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from qkv import scores
from qkv.database import Database
from qkv.database.execute.aggregates import Values
from qkv.database.execute.uncertainty import student_quantile
from qkv.encoders.columns import Column
from tests.database.databases import every_database

X = np.linspace(0.0, 1.0, 50)


def weights_at(query, bandwidth=0.1):
    weights = np.exp(-np.square(X - query) / (2 * bandwidth**2))
    return weights / weights.sum()


def ask(values, query=0.3):
    return Database.open({"x": X, "v": values}, key="x", value="v").ask(query, score="gaussian:0.1")


def test_one_row_of_all_the_weight_is_its_cell_to_the_last_bit_with_no_spread():
    values = np.cos(5 * X) * 1e9 + 1 / 3
    database = Database.open({"x": X, "v": values}, key="x", value="v")
    answer = database.ask(float(X[7]), score="exact")
    assert (answer.value, answer.spread) == (values[7], 0.0)


def test_dates_are_averaged_to_the_nearest_day():
    days = [dt.date(2020, 1, 1) + dt.timedelta(days=int(100 * x)) for x in X]
    answer, w = ask(days), weights_at(0.3)
    offset = np.array([(day - days[0]).days for day in days])
    assert answer.value == days[0] + dt.timedelta(days=round(w @ offset))
    expected = np.sqrt(w @ (offset - w @ offset) ** 2)
    assert answer.spread / dt.timedelta(days=1) == pytest.approx(expected, rel=1e-6)


def test_timestamps_are_averaged_to_the_microsecond():
    times = [dt.datetime(2020, 1, 1, 12, 0, 0, 10), dt.datetime(2020, 1, 1, 12, 0, 0, 30)]
    answer = Database.open({"k": [1, 1], "t": times}, key="k", value="t").ask(1, score="exact")
    assert answer.value == dt.datetime(2020, 1, 1, 12, 0, 0, 20)
    assert answer.spread == dt.timedelta(microseconds=10)


def test_vectors_are_averaged_and_spread_by_their_distance():
    vectors = np.stack([np.cos(X), np.sin(X), X], axis=1)
    answer, w = ask(vectors), weights_at(0.3)
    assert answer.value == pytest.approx(w @ vectors, rel=1e-12)
    expected = np.sqrt(w @ np.square(vectors - w @ vectors).sum(1))
    assert answer.spread == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("kind", ["text", "boolean"])
def test_texts_and_booleans_are_put_to_the_vote(kind):
    cells = np.where(X < 0.25, "low", "High ") if kind == "text" else X >= 0.25
    answer, w = ask(cells.tolist()), weights_at(0.3)
    share = w[X >= 0.25].sum()
    winner, loser = ("High ", "low") if kind == "text" else (True, False)
    assert answer.value == winner
    assert answer.probabilities == pytest.approx({winner: share, loser: 1 - share})
    # The weighted standard deviation of the one-hot vectors.
    assert answer.spread == pytest.approx(np.sqrt(1 - share**2 - (1 - share) ** 2))


def test_values_that_differ_by_case_are_different_values():
    table = {"k": ["big lambda", "small lambda"], "v": ["Λ", "λ"]}
    letters = Database.open(table, key="k", value="v")
    assert (letters.ask("SMALL LAMBDA").value, letters.ask("Big Lambda").value) == ("λ", "Λ")


def targets_of(values, complete=None):
    column = Column.from_table(pa.table({"v": values}), "v", False)
    return Values.of(column).targets(np.arange(len(values)) if complete is None else np.flatnonzero(complete))


def test_a_bandwidth_is_fitted_to_the_most_common_values_of_a_vote():
    values = [f"common {n}" for n in range(14) for _ in range(4)] + ["three"] * 3 + ["pair"] * 2 + ["single"]
    targets = targets_of(values)
    assert targets.shape == (len(values), 15)
    assert targets[:, :14].sum(axis=0).tolist() == [4.0] * 14
    assert targets[:, 14].tolist() == [float(value == "three") for value in values]
    assert targets_of(["a", "b", "b", "a", "c"], np.array([True, True, True, True, False])).tolist() == [
        [1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0],
    ]  # fmt: skip


def test_no_bandwidth_is_fitted_to_a_vote_of_mostly_different_values():
    assert targets_of(["a", "b", "c", "a"]) == "the values are nearly all different"
    assert targets_of(["a", "b", "a", "b"]).shape == (4, 2)


def test_a_bandwidth_is_fitted_to_the_elements_of_a_vector_that_vary_most():
    values = np.arange(3.0)[:, None] * np.where(np.arange(40) % 2, 1.0, 100.0)
    targets = targets_of([row.tolist() for row in values])
    assert targets.tolist() == values[:, :32:2].tolist()


@pytest.mark.parametrize("seed", range(5))
def test_statistics_are_those_of_the_weights(seed, tmp_path):
    draw = np.random.default_rng(seed)
    # Fewer rows than a calibration needs.
    x, v = draw.normal(size=39), draw.lognormal(size=39)
    query, width = float(draw.normal()), float(draw.uniform(0.2, 1.0))
    w = np.exp(-np.square(x - query) / (2 * width**2))
    w /= w.sum()
    n, spread = 1 / np.square(w).sum(), np.sqrt(w @ np.square(v - w @ v))
    for database in every_database(tmp_path / "s", {"x": x, "v": v}, "x", "v"):
        answer = database.ask(query, score=f"gaussian:{width}", max_distance=100.0)
        got = (answer.value, answer.spread, answer.effective_rows, answer.standard_error)
        assert got == pytest.approx((w @ v, spread, n, spread / np.sqrt(n - 1)), rel=1e-9)
        low, high = answer.prediction_interval
        reach = spread * np.sqrt((n + 1) / (n - 1)) * stats.t.ppf(0.95, n - 1)
        assert (low, high) == pytest.approx((w @ v - reach, w @ v + reach), rel=2e-3)


def test_one_row_has_no_standard_error_and_two_equal_values_have_one_of_0():
    table = {"k": ["a", "b", "b"], "v": [1.0, 2.0, 2.0]}
    one, two = Database.open(table, key="k", value="v").ask(["a", "b"], score="exact")
    assert (one.effective_rows, one.standard_error, one.prediction_interval) == (1.0, None, None)
    assert (two.effective_rows, two.standard_error, two.prediction_interval) == (2.0, 0.0, (2.0, 2.0))


def test_the_error_of_a_vote_is_that_of_the_share_of_its_winner(tmp_path):
    table = {"k": [1] * 10, "v": ["yes"] * 7 + ["no"] * 3}
    for database in every_database(tmp_path / "s", table, "k", "v"):
        answer = database.ask(1, score="exact")
        assert answer.standard_error == pytest.approx(np.sqrt(0.7 * 0.3 / 9))
        assert answer.prediction_interval is None


def test_weights_of_both_signs_have_no_statistics(tmp_path):
    table = {"k": [[1.0, 0.0], [2.0, 0.0], [-1.0, 0.0]], "v": [1.0, 2.0, 5.0]}
    for database in every_database(tmp_path / "s", table, "k", "v"):
        answer = database.ask([1.0, 0.0], score=scores.Dot(), normalizer="identity")
        assert answer.value == pytest.approx(1.0 + 4.0 - 5.0)
        assert (answer.spread, answer.perplexity, answer.effective_rows, answer.standard_error) == (None,) * 4


def test_quantiles_of_student_are_those_of_scipy():
    degrees = np.concatenate([np.linspace(1, 30, 500), np.geomspace(30, 1e8, 100)])
    np.testing.assert_allclose(student_quantile(degrees), stats.t.ppf(0.95, degrees), rtol=1e-3)


@pytest.mark.parametrize(("size", "known"), [(1e-200, False), (1e-100, True), (1e100, True), (1e200, False)])
def test_the_spread_of_values_of_any_size_is_right_or_unknown(size, known, tmp_path):
    values = size * np.array([1.0, 3.0, 5.0, 7.0])
    for database in every_database(tmp_path / "s", {"k": [1] * 4, "v": values}, "k", "v"):
        answer = database.ask(1, score="exact")
        assert answer.value == pytest.approx(4 * size, rel=1e-14)
        assert answer.spread == (pytest.approx(np.sqrt(5) * size, rel=1e-12) if known else None)
        assert (answer.standard_error is None) == (not known)
        assert (answer.prediction_interval is None) == (not known)


def test_a_vote_never_names_a_cell_that_is_left_out(tmp_path):
    table = {"k": ["a", "a", "a"], "v": [float("-inf"), 0.0, -0.0]}
    for database in every_database(tmp_path / "store", table, "k", "v"):
        assert database.ask("a", aggregate="vote").probabilities == {0.0: 1.0}


@pytest.mark.parametrize("size", [1e-290, 1e-170, 1e170, 1e290])
def test_numbers_of_any_size_are_compared_alike(size, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 10, 200)
    y = np.sin(x)
    expected = Database.open({"x": x, "y": y}, "x", "y").ask([5.0, 7.0])
    for database in every_database(tmp_path / "store", {"x": x * size, "y": y}, "x", "y"):
        answer = database.ask([5.0 * size, 7.0 * size])
        np.testing.assert_allclose(answer.value, expected.value, rtol=1e-9)
        np.testing.assert_allclose(answer.effective_rows, expected.effective_rows, rtol=1e-9)
    values = Database.open({"x": x, "y": y * min(size, 1e170)}, "x", "y").ask([5.0, 7.0])
    np.testing.assert_allclose(np.array(values.value) / min(size, 1e170), expected.value, rtol=1e-9)


@pytest.mark.parametrize("rows", [10, 49, 107])
def test_equal_weights_have_a_whole_number_of_effective_rows(rows):
    assert Database.open({"k": ["a"] * rows, "v": range(rows)}, "k", "v").ask("a").effective_rows == rows


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e-10, 1.0, 1e19, 1e30, 4e37])
@pytest.mark.parametrize("normalizer", ["mean", "softmax"])
def test_float32_values_of_a_store_have_the_spread_of_those_in_memory(size, normalizer, tmp_path):
    values = pa.array(np.array([1, 2, 4, 8]) * size, pa.float32())
    table = pa.table({"k": pa.array([1, 2, 3, 4], pa.float32()), "v": values})
    for database in every_database(tmp_path / "s", table, "k", "v"):
        answer = database.ask(2.0, score="gaussian:2", normalizer=normalizer)
        weights = np.exp(-np.square(np.array([-1, 0, 1, 2]) / 2) / 2) if normalizer == "softmax" else np.ones(4)
        mean = np.average([1, 2, 4, 8], weights=weights)
        spread = np.sqrt(np.average(np.square(np.array([1, 2, 4, 8]) - mean), weights=weights))
        assert answer.value / size == pytest.approx(mean, rel=1e-5)
        assert answer.spread / size == pytest.approx(spread, rel=1e-5)


@pytest.mark.parametrize("values", [[1e308, 1.5e308, 1.2e308, 1.1e308], [-1e308, 1e308, 1e308, 1.5e308]])
def test_means_of_the_largest_numbers_do_not_overflow(values, tmp_path):
    for database in every_database(tmp_path / "s", {"k": [1.0, 2.0, 3.0, 4.0], "v": values}, "k", "v"):
        answer = database.ask(2.0, score="gaussian:2", normalizer="mean")
        assert answer.value == pytest.approx(sum(value / 4 for value in values), rel=1e-12)
        assert answer.spread is None


def test_errors_of_dates_are_stated_in_days(tmp_path):
    hours = np.array([0, 24, 72, 73, 150, 171, 200, 260])
    dates = {"k": np.arange(8.0), "v": [dt.datetime(2024, 1, 1) + dt.timedelta(hours=int(each)) for each in hours]}
    days = {"k": dates["k"], "v": hours / 24}
    for aggregate in ("mean", "local-linear"):
        wanted = Database.open(days, "k", "v").ask(2.5, aggregate=aggregate).notes[2]
        for number, database in enumerate(every_database(tmp_path / aggregate, dates, "k", "v")):
            said = database.ask(2.5, aggregate=aggregate).notes[2]
            assert said.count(" days") == 2, number
            assert said.replace(" days", "") == wanted


@pytest.mark.parametrize("aggregate", ["mean", "local-linear"])
def test_keys_and_values_whose_sums_overflow_are_answered_as_smaller_ones(aggregate):
    x = np.linspace(0.1, 0.9, 60)
    answers = [
        Database.open({"x": x * size, "v": np.sin(3 * x) * size}, "x", "v").ask(0.4 * size, aggregate=aggregate)
        for size in (1.0, 1.7e308)
    ]
    assert answers[1].value / 1.7e308 == pytest.approx(answers[0].value)


@pytest.mark.parametrize("queries", [1.5, [1.5, 1.6]])
def test_a_row_without_weight_whose_square_overflows_does_not_hide_the_spread_of_a_store(tmp_path, queries):
    table = {"k": [1.0, 2.0, 3.0, 4.0], "v": [10.0, 12.0, 1e200, 14.0]}
    Database.create(tmp_path / "rows", table, key="k", value="v")
    expected = Database.open(table, key="k", value="v").ask(queries, score="boxcar:0.7")
    answer = Database.open(tmp_path / "rows", memory=1).ask(queries, score="boxcar:0.7")
    assert (answer.spread, answer.standard_error) == (expected.spread, expected.standard_error)
    assert answer[0].spread == 1.0
