"""Leave-one-out errors equal their definition, in linear memory, and are deterministic."""

import tracemalloc

import numpy as np
import pytest

from qkv.database import Database
from qkv.estimators.regression import bandwidth, bandwidth_errors
from qkv.estimators.regression.bandwidth import choose_bandwidth, scott
from qkv.estimators.regression.neighbor_blocks import nearest_distances
from tests.effort import sample, seeds


def by_definition(points, values, width):
    """The error of leave-one-out in float64 with the whole matrix of pairs."""
    squared = np.square(points[:, None] - points[None]).sum(-1)
    kernel = np.exp(-squared / (2 * width**2))
    kernel[kernel < np.exp(-34.5)] = 0  # out of reach: alone, a row is predicted by the mean
    np.fill_diagonal(kernel, 0.0)
    mass = kernel.sum(1, keepdims=True)
    reached = mass > 0
    predicted = np.where(reached, kernel @ values / np.where(reached, mass, 1.0), values.mean(axis=0))
    return float(np.square(predicted - values).sum(1).mean())


@pytest.mark.parametrize(
    ("rows", "width", "outputs"),
    [(40, 1, 1), pytest.param(1300, 2, 1, marks=pytest.mark.long), (1300, 2, 3), (700, 6, 1), (1025, 3, 2)],
)
def test_every_error_on_the_ladder_is_that_of_the_definition(rows, width, outputs):
    draw = np.random.default_rng(rows + width)
    points = draw.normal(size=(rows, width))
    values = np.stack([np.sin(3 * points[:, 0] + i) for i in range(outputs)], axis=1) * 50 + 1000
    values += draw.normal(size=values.shape) * 5
    found = choose_bandwidth(points, values)
    edge = nearest_distances(points).max() / 8.2
    compared = 0
    for width, error in found.tried:
        if width > edge:  # below, a row has no neighbors, or rounding decides whether it has one
            assert error == pytest.approx(by_definition(points, values, width), rel=2e-4)
            compared += 1
    assert compared >= 5
    best = min(found.tried, key=lambda pair: pair[1])
    assert (found.value, found.error) == best
    assert found.error < 0.8 * found.baseline


def test_the_ladder_descends_by_the_root_of_two():
    found = choose_bandwidth(np.linspace(-2, 2, 300)[:, None], np.linspace(-2, 2, 300)[:, None] ** 2)
    widths = np.array([width for width, _ in found.tried])
    assert widths[:-1] / widths[1:] == pytest.approx(np.sqrt(2))


def test_the_bandwidth_is_the_same_every_time():
    draw = np.random.default_rng(5)
    points, values = draw.normal(size=(3000, 2)), draw.normal(size=(3000, 1))
    assert choose_bandwidth(points, values) == choose_bandwidth(points, values)


def test_large_nearly_equal_values_do_not_cancel():
    points = np.linspace(-2, 2, 500)[:, None]
    values = np.sin(4 * points) + 0.3 * np.random.default_rng(0).normal(size=(500, 1))
    assert choose_bandwidth(points, values + 1e9).value == choose_bandwidth(points, values).value


def test_values_independent_of_the_key_get_a_wide_kernel():
    draw = np.random.default_rng(0)
    points, values = draw.normal(size=(2000, 1)), draw.normal(size=(2000, 1))
    assert choose_bandwidth(points, values).value > 0.5


@pytest.mark.parametrize("seed", seeds(8, 3))
def test_noise_that_grows_with_the_key_does_not_get_a_kernel_without_neighbors(seed):
    draw = np.random.default_rng(seed)
    points = draw.random((300, 1))
    values = draw.normal(size=(300, 1)) * points**3
    assert choose_bandwidth((points - points.mean()) / points.std(), values).value > 0.01


@pytest.mark.parametrize("frequency", sample([0.5, 4, 25], 2))
def test_a_sample_of_predicted_rows_chooses_the_bandwidth_of_all_rows(frequency, monkeypatch):
    draw = np.random.default_rng(0)
    points = draw.normal(size=(6000, 1))
    values = np.sin(frequency * points) + draw.normal(size=(6000, 1))
    monkeypatch.setattr(bandwidth, "_MOST_PAIRS", 10**7)
    some = choose_bandwidth(points, values)
    monkeypatch.setattr(bandwidth, "_ALL_TARGETS", 12_000)
    every = choose_bandwidth(points, values)
    assert some.tried != every.tried
    errors = {round(np.log2(width), 3): error for width, error in every.tried}
    assert errors[round(np.log2(some.value), 3)] < 1.002 * every.error
    assert 0.7 < some.value / every.value < 1.5


def test_rows_of_a_large_table_are_compared_with_some_of_the_others(monkeypatch):
    draw = np.random.default_rng(0)
    points = draw.normal(size=(20_000, 1))
    seen, real = [], bandwidth_errors.squared_distances
    monkeypatch.setattr(bandwidth_errors, "squared_distances", lambda *a: seen.append(a[2].size) or real(*a))
    monkeypatch.setattr(bandwidth, "_MOST_PAIRS", 10**7)
    choose_bandwidth(points, np.sin(3 * points) + draw.normal(size=(20_000, 1)))
    assert 1e7 < sum(seen) < 20_000**2 / 10


@pytest.mark.parametrize("whole", [False, True])
def test_rows_near_each_other_are_compared_at_their_mean_with_the_errors_of_the_definition(whole, monkeypatch):
    draw = np.random.default_rng(0)
    points = draw.integers(-30, 30, (2000, 1)) / 17 if whole else draw.normal(size=(2000, 1))
    values = 50 * np.sin(3 * points) + 1000 + 5 * draw.normal(size=(2000, 1))
    seen, real = [], bandwidth_errors.squared_distances
    monkeypatch.setattr(bandwidth_errors, "squared_distances", lambda *a: seen.append(a[2].size) or real(*a))
    tried = choose_bandwidth(points, values).tried[:12]
    assert sum(seen) < (0.2 if whole else 2.0) * 2000**2
    for width, error in tried:
        assert error == pytest.approx(by_definition(points, values, width), rel=1e-3)


def test_memory_is_linear_in_the_rows():
    draw = np.random.default_rng(0)
    points = draw.normal(size=(8000, 2))
    tracemalloc.start()
    choose_bandwidth(points, points[:, :1])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.2 * 8000 * 8000 * 4


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_rows_fall_back_on_the_rule_of_thumb(count):
    assert "Scott" in choose_bandwidth(np.zeros((count, 1)), np.zeros((count, 1))).method


def test_scott_narrows_with_the_rows_and_widens_with_the_width():
    assert scott(10_000, 1, "").value == pytest.approx(10_000 ** (-1 / 5))
    assert scott(10_000, 6, "").value > scott(100_000, 6, "").value


def test_progress_rises_to_its_end():
    seen = []
    draw = np.random.default_rng(0)
    points = draw.normal(size=(3000, 2))
    choose_bandwidth(points, points[:, :1], lambda what, done, total: seen.append((what, done, total)))
    assert {what for what, _, _ in seen} == {"choosing a bandwidth"}
    assert all(0 < done <= total for _, done, total in seen)


@pytest.mark.parametrize("width", [1, 2, 5])
def test_nearest_distances_are_those_of_all_pairs(width):
    points = np.random.default_rng(width).normal(size=(1400, width))
    squared = np.square(points[:, None] - points[None]).sum(-1) + np.diag(np.full(1400, np.inf))
    expected = np.sqrt(squared.min(1))
    assert np.sort(nearest_distances(points)) == pytest.approx(np.sort(expected), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("unit", [2.0**-70, 2.0**70])
def test_nearest_distances_of_points_of_any_unit_are_those_of_the_same_points(unit):
    points = np.random.default_rng(0).normal(size=(50, 2))
    np.testing.assert_allclose(nearest_distances(points * unit), nearest_distances(points) * unit, rtol=1e-6)


def test_nearest_distances_of_drawn_points_are_those_among_all_points():
    points = np.random.default_rng(1).normal(size=(1400, 2))
    squared = np.square(points[:, None] - points[None]).sum(-1) + np.diag(np.full(1400, np.inf))
    found = nearest_distances(points, most=200)
    assert len(found) == 200
    assert np.abs(found[:, None] - np.sqrt(squared.min(1))).min(1).max() < 1e-4


# -- on a database


def test_a_database_chooses_its_bandwidth_once():
    x = np.linspace(0, 6, 400)
    database = Database.open({"x": x, "y": np.sin(3 * x)}, key="x", value="y")
    calls = []
    database.ask(1.0, progress=lambda what, done, total: calls.append(what))
    assert "choosing a bandwidth" in calls
    calls.clear()
    database.ask([2.0, 3.0], progress=lambda what, done, total: calls.append(what))
    assert set(calls) == {"answering"}


def test_a_value_without_numbers_takes_the_rule_of_thumb_and_says_so():
    table = {"x": np.arange(30.0), "who": [f"person {i}" for i in range(30)]}
    answer = Database.open(table, key="x", value="who").ask(4.0)
    assert "Scott's rule (the values are nearly all different)" in " ".join(answer.notes)


@pytest.mark.parametrize("whole_days", [False, True])
def test_a_table_with_every_row_twice_answers_like_the_table(whole_days):
    draw = np.random.default_rng(3)
    day = draw.integers(0, 200, 400).astype(float) if whole_days else draw.uniform(0, 200, 400)
    price = day / 10 + draw.normal(0, 2, 400)
    once, twice = (
        Database.open({"day": np.tile(day, n), "price": np.tile(price, n)}, key="day", value="price").ask([50.3, 120.0])
        for n in (1, 2)
    )
    np.testing.assert_allclose(twice.value, once.value, rtol=1e-9)
    assert "without 400 copies of rows over 400 rows" in " ".join(twice.notes)
    assert "copies of rows count in effective rows and standard errors as other rows do" in twice.notes
    assert "copies" not in " ".join(once.notes)


def test_numbers_so_coarse_that_some_repeat_are_no_copies():
    draw = np.random.default_rng(4)
    age = draw.integers(18, 78, 2000).astype(float)
    answer = Database.open({"age": age, "children": draw.poisson(1 + age / 40)}, key="age", value="children").ask(40.0)
    assert "leave-one-out over 2,000 rows" in " ".join(answer.notes)


def test_categories_are_predicted_by_their_brier_score():
    x = np.linspace(0, 1, 300)
    table = {"x": x, "side": np.where(x < 0.5, "left", "right")}
    answer = Database.open(table, key="x", value="side").ask([0.1, 0.9])
    assert "leave-one-out over 300 rows" in " ".join(answer.notes)
    assert answer.value == ["left", "right"]
    assert min(next(iter(p.values())) for p in answer.probabilities) > 0.99


def test_a_sample_of_half_of_the_rows_narrows_the_bandwidth_by_scotts_factor():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(300, 2))
    values = np.stack([np.sin(points[:, 0]), 3 * points[:, 1]], axis=1)
    whole, half = choose_bandwidth(points, values), choose_bandwidth(points, values, total=600)
    assert half.value == pytest.approx(whole.value * 2 ** (-1 / 6))
    assert (half.rows, half.total) == (300, 600)
    assert whole.baseline == pytest.approx(np.square(values - values.mean(axis=0)).sum(axis=1).mean())


def test_no_points_have_no_nearest_distances():
    assert nearest_distances(np.zeros((0, 2))).shape == (0,)
