"""The linear part of the trend in the units of the columns."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from qkv.core.container import read_container, write_container
from qkv.estimators import AttentionRegressor
from qkv.estimators.analytic_gradient import EncodedRows
from qkv.estimators.features import encode_columns, encoding_sizes, fit_encoding
from qkv.estimators.metric_learning import fit_linear_part

QUICK = {"effort": "quick", "random_state": 0, "max_steps": 30}


def heavy_table(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return columns over three orders of magnitude, and a linear function of them."""
    x = np.exp(2 * np.random.default_rng(seed).normal(size=(rows, 3)))
    return x, x @ np.array([1.0, -2.0, 0.5])


@pytest.mark.parametrize("rows", [60, 300])
def test_a_linear_function_of_columns_with_heavy_tails_is_extrapolated(rows):
    (x, y), (new, wanted) = heavy_table(rows), heavy_table(100, seed=1)
    predicted = AttentionRegressor(**QUICK).fit(x, y).predict(new)
    inside = ((new < x.max(axis=0)) & (new > x.min(axis=0))).all(axis=1)
    assert np.sqrt(np.mean((predicted - wanted)[inside] ** 2)) < 0.02 * y.std()


def test_each_output_has_a_linear_part_of_its_own():
    x, y = heavy_table(200)
    both = np.stack([y, np.sin(3 * np.log(x[:, 0]))], axis=1)
    slopes = AttentionRegressor(**QUICK).fit(x, both).parameters_["slopes"]
    assert (slopes[..., 0] != 0).all()
    assert (slopes[..., 1] == 0).all()


def test_values_that_are_a_local_function_of_the_columns_have_no_linear_part():
    x = np.random.default_rng(2).uniform(-2, 2, size=(300, 1))
    assert fit(x, np.sin(3 * x)) is None
    assert fit(x, 5 * x) is not None


def test_slopes_depend_on_the_training_rows_of_the_member():
    x, y = heavy_table(80)
    y[:8] += 1000.0
    with_errors, without = fit(x, y[:, None], np.stack([np.arange(72), np.arange(8, 80)]))[..., 0]
    factor = without @ [1.0, -2.0, 0.5] / 5.25
    assert without == pytest.approx(factor * np.array([1.0, -2.0, 0.5]), rel=1e-3)
    assert np.abs(with_errors - without).max() > 1e-2


def fit(x: np.ndarray, y: np.ndarray, training: np.ndarray | None = None) -> np.ndarray | None:
    encoded = x / np.sqrt(1 + np.square(x / 3))
    training = np.arange(len(x))[None] if training is None else training
    rows = EncodedRows(encoded.astype(np.float32), np.zeros((len(x), 0), np.float32))
    return fit_linear_part(x.astype(np.float32), rows, y.astype(np.float32), None, training)


def test_numbers_of_the_linear_part_are_limited_to_a_range_beyond_the_fitted_one():
    column = np.array([0.0, 1.0, 2.0, 10.0])
    encoding = fit_encoding([column, np.full(4, 7.0)], linear=True)
    assert encoding_sizes(encoding) == (2, [])
    numbers = encode_columns(encoding, [np.array([-99.0, 11.0, 20.0, 99.0]), np.array([7.0, 8.0, 7.0, np.nan])]).numbers
    unit = np.sqrt(np.mean((column - 1.5) ** 2))
    assert numbers[:, 2] == pytest.approx((np.array([-10.0, 11.0, 20.0, 20.0]) - 1.5) / unit, rel=1e-6)
    assert (numbers[:, 3] == 0).all()


def test_weights_times_values_are_the_prediction_also_after_saving_and_adding_rows(tmp_path: Path):
    x, y = heavy_table(60)
    model = AttentionRegressor(**QUICK).fit(x, y)
    assert model.parameters_["slopes"].any()
    model.save(tmp_path / "m")
    loaded = AttentionRegressor.load(tmp_path / "m")
    for each in (model, loaded):
        each.partial_fit(x[:9] + 1.0, y[:9])
        explained = each.explain_rows(x[:5], top=69)
        assert (explained.weights * explained.values).sum(axis=1) == pytest.approx(each.predict(x[:5]), rel=1e-9)
    assert (loaded.predict(x) == model.predict(x)).all()


def test_a_file_written_without_a_linear_part_predicts_the_same(tmp_path: Path):
    x = np.random.default_rng(3).normal(size=(60, 2))
    model = AttentionRegressor(**QUICK).fit(x, np.sin(4 * x[:, 0]))
    assert not model.parameters_.pop("slopes").any()
    for name in ("ends", "deviations"):
        del model.features_[name]
    model.rows_["numbers"] = model.rows_["numbers"][:, :2]
    model.save(tmp_path / "new")
    new = read_container(tmp_path / "new", "an estimator", "")
    write_container(
        tmp_path / "m", "an estimator", {**new.settings, "version": 1}, {name: new.array(name) for name in new}
    )
    loaded = AttentionRegressor.load(tmp_path / "m")
    assert (loaded.predict(x) == model.predict(x)).all()
    assert (loaded.partial_fit(x, x[:, 0]).predict(x) == model.partial_fit(x, x[:, 0]).predict(x)).all()
