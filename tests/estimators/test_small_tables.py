"""Small tables: the closed-form start of the trend, members that stop together, and columns without any cell."""

import warnings

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from qkv.estimators import AttentionClassifier, AttentionRegressor
from qkv.estimators.effort import EFFORTS, SMALL_TABLE
from qkv.estimators.metric_learning import _stop_together
from qkv.estimators.ridge import fit_ridge


@pytest.mark.parametrize(("rows", "columns"), [(40, 6), (12, 30), (300, 7)])
def test_the_ridge_regression_is_that_of_scikit_learn(rows, columns):
    from sklearn.linear_model import RidgeCV

    rng = np.random.default_rng(rows)
    x = rng.normal(size=(rows, columns))
    y = x @ rng.normal(size=(columns, 2)) + rng.normal(size=(rows, 2))
    reference = RidgeCV(rows * 10.0 ** np.arange(-6, 3.5, 0.5), alpha_per_target=True).fit(x, y)
    assert fit_ridge(x, y).slopes == pytest.approx(reference.coef_.T, abs=1e-5)


def test_rows_of_weight_two_count_as_much_as_two_rows_in_the_ridge_regression():
    from sklearn.linear_model import LinearRegression

    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 3))
    y = x @ np.array([[1.0], [-2.0], [0.5]]) + 0.1 * rng.normal(size=(30, 1))
    x = np.concatenate([x, x[:10]])
    y = np.concatenate([y, y[:10]])
    weights = np.r_[np.full(10, 2.0), np.ones(20)][:, None]
    heavy = fit_ridge(x[:30], y[:30], weights).slopes
    fitted = LinearRegression().fit(x, y).coef_.T
    assert heavy == pytest.approx(fitted, abs=0.01)


@pytest.mark.parametrize("effort", ["quick", pytest.param("standard", marks=pytest.mark.long)])
def test_a_linear_function_of_few_rows_is_extrapolated(effort):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(30, 4))
    y = x @ np.array([3.0, -2.0, 1.0, 0.0]) + 0.01 * rng.normal(size=30)
    new = rng.normal(size=(200, 4))
    error = AttentionRegressor(effort=effort, random_state=0).fit(x, y).predict(new) - new @ [3.0, -2.0, 1.0, 0.0]
    assert np.sqrt(np.mean(error**2)) < 0.2 * y.std()


def test_members_of_a_small_table_hold_out_most_rows_and_no_row_twice():
    x = np.random.default_rng(2).normal(size=(40, 2))
    model = AttentionRegressor(random_state=0, max_steps=5).fit(x, x[:, 0])
    held_out = model.out_of_bag_rows_.ravel()
    assert len(model.keys_) == EFFORTS["standard"].small_members
    assert len(set(held_out)) == len(held_out) == 40
    large = AttentionRegressor(random_state=0, max_steps=5).fit(np.resize(x, (SMALL_TABLE, 2)), np.arange(SMALL_TABLE))
    assert len(large.keys_) <= EFFORTS["standard"].members


def test_members_stop_at_the_step_of_the_smallest_mean_loss():
    traces = [[({"name": np.array([step])}, loss) for step, loss in enumerate(losses)] for losses in
              ([3.0, 1.0, 2.0], [4.0, 3.0, 0.0], [1.0, 1.5, 1.0, 0.0])]  # fmt: skip
    parameters, losses = _stop_together(traces)
    assert [each["name"].tolist() for each in parameters] == [[2], [2], [2]]
    assert losses == [2.0, 0.0, 1.0]


def test_a_small_table_obeys_its_time_limit_and_the_number_of_steps():
    x = np.random.default_rng(3).normal(size=(60, 2))
    short = AttentionRegressor(max_seconds=1e-3, random_state=0).fit(x, x[:, 0])
    assert short.n_steps_ < EFFORTS["standard"].small_steps
    assert AttentionRegressor(max_steps=7, random_state=0).fit(x, x[:, 0]).n_steps_ == 7


@pytest.mark.long
def test_noise_is_predicted_by_the_mean():
    rng = np.random.default_rng(4)
    x, y, new = rng.normal(size=(60, 5)), rng.normal(size=60), rng.normal(size=(100, 5))
    assert AttentionRegressor(random_state=0).fit(x, y).predict(new).std() < 0.6 * y.std()


@pytest.mark.parametrize("estimator", [AttentionRegressor, AttentionClassifier])
def test_a_column_without_any_cell_may_hold_text_later(estimator):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"x": np.arange(20.0), "empty": pd.array([None] * 20, dtype=object)})
    model = estimator(max_steps=3, random_state=0).fit(frame, np.arange(20) % 2)
    new = pd.DataFrame({"x": [3.0, 4.0], "empty": ["text", "5"]})
    alike = pd.DataFrame({"x": [3.0, 4.0], "empty": [None, None]})
    numbers = pd.DataFrame({"x": [3.0, 4.0], "empty": [1e9, np.nan]})
    assert (model.predict(new) == model.predict(alike)).all()
    assert (model.predict(numbers) == model.predict(alike)).all()


@pytest.mark.parametrize("unit", [1e250, 1e-250])
def test_values_whose_squares_overflow_are_predicted_in_their_unit(unit):
    x = np.random.default_rng(5).normal(size=(40, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = AttentionRegressor(random_state=0, max_steps=20).fit(x, x[:, 0] * unit).predict(x)
    assert np.corrcoef(found / unit, x[:, 0])[0, 1] > 0.9
