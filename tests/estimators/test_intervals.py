"""Prediction intervals: coverage, the local scale against its equation, and random, small and constant tables."""

import itertools
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import OptionError
from qkv.estimators import AttentionRegressor
from qkv.estimators.interval_calibration import ErrorScale, fit_error_scale, soft_distance
from tests.effort import cases

LEVELS = (0.5, 0.8, 0.9, 0.95)


def curve(seed, rows, noise=lambda x: 0.3 + 0 * x):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, size=(rows, 2))
    return x, np.sin(2 * x[:, 0]) + noise(x[:, 0]) * rng.normal(size=rows)


def contained(model, x, y, level=0.9):
    low, high = model.predict_interval(x, level)
    return (low <= y) & (y <= high)


@pytest.mark.parametrize(("metric", "members"), [("none", 1), ("linear", 1), ("network", 2)])
def test_intervals_contain_new_values_as_often_as_their_level(metric, members):
    rows, inside = 300, {level: [] for level in LEVELS}
    for seed in range(4):
        x, y = curve(seed, rows + 500)
        model = AttentionRegressor(metric, effort="quick", n_estimators=members, max_steps=30, random_state=seed)
        model.fit(x[:rows], y[:rows])
        for level in LEVELS:
            inside[level].append(contained(model, x[rows:], y[rows:], level).mean())
    calibrating = rows if metric == "none" else members * (rows // 8)
    for level, shares in inside.items():
        # Three standard errors of the place of the quantile, and of the test rows.
        error = np.sqrt(level * (1 - level) * (1 / calibrating + 1 / 500) / len(shares))
        assert abs(np.mean(shares) - level) < 3 * error, (level, shares)


def test_intervals_are_wider_where_values_scatter_more():
    x, y = curve(0, 1600, lambda at: np.where(at > 0, 0.6, 0.05))
    model = AttentionRegressor(effort="quick", random_state=0).fit(x[:800], y[:800])
    inside = contained(model, x[800:], y[800:])
    wild = x[800:, 0] > 0
    assert 0.8 < inside[wild].mean() < 0.97
    assert 0.8 < inside[~wild].mean() < 0.99
    low, high = model.predict_interval([[1.0, 0.0], [-1.0, 0.0]])
    assert (high - low)[0] > 3 * (high - low)[1]


@pytest.mark.parametrize("metric", ["none", "linear", "network"])
def test_intervals_widen_away_from_the_rows(metric):
    x, y = curve(0, 300)
    model = AttentionRegressor(metric, effort="quick", random_state=0).fit(x, y)
    at = np.array([[0.0, 0.0], [4.0, 4.0], [8.0, 8.0], [16.0, 16.0]])
    low, high = model.predict_interval(at)
    assert (np.diff(high - low) > 0).all()
    assert (np.diff(model.predict_std(at)) > 0).all()


def test_intervals_of_a_higher_level_contain_those_of_a_lower_one():
    for rows in (5, 20, 60, 400):
        x, y = curve(rows, rows)
        model = AttentionRegressor("none").fit(x, y)
        ends = [model.predict_interval(x[:5], level) for level in (0.01, 0.5, 0.9, 0.95, 0.99, 0.9999)]
        for (low, high), (wider_low, wider_high) in itertools.pairwise(ends):
            assert (wider_low <= low).all(), rows
            assert (high <= wider_high).all(), rows
            assert np.isfinite([wider_low, wider_high]).all()


def test_an_ensemble_has_shorter_intervals_than_its_members():
    x, y = curve(0, 200, lambda at: 0.02 + 0 * at)
    model = AttentionRegressor(effort="quick", n_estimators=6, max_steps=40, random_state=0).fit(x, y)
    model.predict_interval(x[:1])
    factor = model._cached_intervals[2].outputs[0].shrinkage
    assert 6**-0.5 <= factor < 0.95


def test_the_scale_of_errors_is_its_equation():
    rng = np.random.default_rng(0)
    keys, queries, rows = (torch.from_numpy(rng.normal(size=(2, n, 3))) for n in (30, 4, 50))
    logs = torch.from_numpy(rng.normal(size=(2, 30)))
    scale = ErrorScale(keys, logs, 2.0, 0.5, np.array([0.1, 0.2]), np.array([0.7, 0.4]), -9.0, 0.3)
    squares = (queries[:, :, None] - rows[:, None]).square().sum(dim=-1)
    distance = (2 * (1 + 1 / (-squares / 2).exp().sum(dim=-1)).log()).sqrt()
    np.testing.assert_allclose(soft_distance(queries, rows), distance, rtol=1e-9)
    kernel = (-(queries[:, :, None] - keys[:, None]).square().sum(dim=-1) / (2 * 2.0**2)).exp()
    near = (kernel * logs[:, None]).sum(dim=-1) / (0.5 + kernel.sum(dim=-1))
    far = distance.log()
    wanted = 0.7 * (near - 0.1) + 0.4 * (far.clamp(max=0.3) - 0.2) + (far - 0.3).clamp(min=0)
    np.testing.assert_allclose(scale.at(queries, distance), wanted.mean(dim=0).exp(), rtol=1e-9)


@pytest.mark.thinned
@pytest.mark.parametrize("rows", [1, 2, 3, 9, 17, 40])
@pytest.mark.parametrize("effort", ["quick", "standard"])
def test_tables_of_few_rows_have_intervals_if_a_row_is_predicted_from_others(rows, effort):
    x, y = curve(0, rows)
    model = AttentionRegressor(effort=effort, max_steps=5, random_state=0).fit(x, y)
    low, high = model.predict_interval(x)
    assert low.shape == high.shape == (rows,)
    assert np.isnan(low).all() if rows == 1 else (low < high).all()
    assert np.isnan(model.predict_std(x)).all() == (rows == 1)


@given(
    rows=st.integers(2, 60),
    distinct=st.integers(1, 4),
    constant=st.booleans(),
    outputs=st.integers(1, 3),
    weighted=st.booleans(),
    seed=st.integers(0, 9),
)
@settings(max_examples=cases(15))
def test_random_tables_have_ordered_finite_intervals(rows, distinct, constant, outputs, weighted, seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, distinct, size=(rows, 2)).astype(float)
    y = np.full((rows, outputs), 3.5) if constant else rng.choice([0.0, 1.0, 1e6], size=(rows, outputs))
    weights = rng.integers(0, 3, rows) + (np.arange(rows) < 2) if weighted else None
    model = AttentionRegressor("none").fit(x, y, weights)
    low, high = model.predict_interval(np.concatenate([x, [[1e300, -1e300], [50.0, 50.0]]]))
    assert low.shape == (rows + 2, *([outputs] if outputs > 1 else []))
    assert (low <= high).all()
    assert np.isfinite(low).all()
    assert np.isfinite(high).all()


def test_intervals_have_the_unit_of_y_and_one_per_output():
    x, y = curve(0, 250)
    model = AttentionRegressor("none").fit(x, y)
    both = AttentionRegressor("none").fit(x, np.stack([y, 1000 * y - 7], axis=1))
    new = x[:9] + 0.1
    for found, wanted in zip(both.predict_interval(new), model.predict_interval(new), strict=True):
        np.testing.assert_allclose(found[:, 0], wanted, rtol=1e-4)
        np.testing.assert_allclose(found[:, 1], 1000 * wanted - 7, rtol=1e-4)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.5, 90, float("nan")])
def test_levels_that_are_no_probabilities_are_refused(level):
    x, y = curve(0, 30)
    with pytest.raises(OptionError, match="level must be above 0 and below 1"):
        AttentionRegressor("none").fit(x, y).predict_interval(x, level)


def test_rows_that_are_added_recalibrate_the_intervals():
    x, y = curve(0, 300, lambda at: 0.01 + 0 * at)
    model = AttentionRegressor("none").fit(x[:60], y[:60])
    low, high = model.predict_interval(x[:50])
    model.partial_fit(x[60:], y[60:])
    again_low, again_high = model.predict_interval(x[:50])
    assert np.median(again_high - again_low) < np.median(high - low)


def test_intervals_are_equal_after_saving_pickling_and_cloning(tmp_path):
    x, y = curve(0, 120)
    model = AttentionRegressor(effort="quick", max_steps=20, random_state=0).fit(x, y)
    wanted = model.predict_interval(x)
    model.save(tmp_path / "model")
    for again in (AttentionRegressor.load(tmp_path / "model"), pickle.loads(pickle.dumps(model))):
        assert "_cached_intervals" not in vars(again)
        np.testing.assert_array_equal(again.predict_interval(x), wanted)


@pytest.mark.long
@pytest.mark.skipif("QKV_DATA" not in os.environ, reason="QKV_DATA does not name the folder of public data")
@pytest.mark.parametrize("effort", ["quick", "standard"])
def test_intervals_cover_public_tables(effort):
    from examples.tables import splits_of

    folder = Path(os.environ["QKV_DATA"])
    shares, errors = [], []
    for table in ("yacht", "energy", "wine-quality-red", "airfoil", "autompg", "stock", "servo", "sml", "abalone"):
        splits = [split for split, _ in zip(splits_of(table, folder), range(5), strict=False)]
        inside = []
        for split in splits:
            model = AttentionRegressor(effort=effort, random_state=0).fit(split.X, split.y)
            inside.append(contained(model, split.X_test, split.y_test))
        shares.append(np.concatenate(inside).mean())
        errors.append(np.sqrt(0.9 * 0.1 / len(np.concatenate(inside))))
    assert 0.88 <= np.mean(shares) <= 0.92, shares
    # The smallest table has 84 test rows, whose share of 0.9 has a standard error of 0.033.
    assert (abs(np.array(shares) - 0.9) <= 0.02 + 3 * np.array(errors)).all(), (shares, errors)


@pytest.mark.long
def test_intervals_of_a_linear_function_have_a_length_where_all_rows_are_equally_far_away():
    rng = np.random.default_rng(3)
    x, new = rng.normal(size=(40, 4)), rng.normal(size=(400, 4))
    y, true = x @ [1.0, 2.0, 3.0, 0.0] + rng.normal(size=40), new @ [1.0, 2.0, 3.0, 0.0] + rng.normal(size=400)
    low, high = AttentionRegressor(random_state=0).fit(x, y).predict_interval(new)
    assert 0.75 < np.mean((low <= true) & (true <= high)) <= 1
    assert 1.0 < np.median(high - low) < 8.0


def test_a_feature_without_spread_does_not_change_the_scale_of_errors():
    rng = np.random.default_rng(4)
    keys, errors = torch.from_numpy(rng.normal(size=(1, 60, 2)) * 1e-3), torch.from_numpy(rng.normal(size=(1, 60)))
    distance = torch.from_numpy(0.2 + 1e-7 * rng.normal(size=(1, 60)))
    scale, _ = fit_error_scale(keys, distance, errors)
    found = scale.at(keys[:, :3], torch.tensor([[0.1, 0.2, 0.2001]]).double())
    assert found == pytest.approx([1.0, 1.0, 1.0], abs=0.3)
