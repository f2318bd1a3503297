"""Predictions of the estimators against the dense form of their equation; weights, expected errors, columns."""

import datetime as dt
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import torch

from qkv.errors import DataError, KindError, OptionError
from qkv.estimators import AttentionClassifier, AttentionRegressor
from qkv.estimators.metric_learning import residuals

METRICS = ("none", "diagonal", "linear", "low_rank", "network")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4))
Y = X[:, 0] ** 2 + X[:, 1]
NEW = RNG.normal(size=(7, 4))


def quick(kind=AttentionRegressor, metric="network", **options):
    return kind(metric, **{"max_steps": 20, "random_state": 0, **options})


def nadaraya_watson(x, y, new, h, shares=1.0):
    """The estimate from its textbook line, in float64."""
    apart = ((new[:, None] - x[None]) ** 2).sum(axis=-1)
    if new is x:  # each from the others
        np.fill_diagonal(apart, np.inf)
    weights = shares * np.exp(-(apart - apart.min(axis=1, keepdims=True)) / (2 * h**2))
    weights = weights / weights.sum(axis=1, keepdims=True)
    return weights @ y, weights


def standardised(x, fitted):
    low, middle, high = np.quantile(fitted, (0.25, 0.5, 0.75), axis=0)
    z = (x - middle) / ((high - low) / 1.349)
    return z / np.sqrt(1 + (z / 3) ** 2)


@pytest.mark.parametrize("shares", [None, RNG.random(120) + 0.1], ids=["alike", "weighed"])
def test_without_a_metric_it_is_the_nadaraya_watson_estimate(shares):
    model = quick(metric="none", bandwidth=0.7).fit(X, Y, shares)
    weights = 1.0 if shares is None else shares
    wanted, _ = nadaraya_watson(standardised(X, X), Y, standardised(NEW, X), 0.7, weights)
    np.testing.assert_allclose(model.predict(NEW), wanted, rtol=1e-5, atol=1e-5)
    votes = quick(AttentionClassifier, "none", bandwidth=0.7).fit(X, Y > 1, shares).predict_proba(NEW)[:, 1]
    wanted, _ = nadaraya_watson(standardised(X, X), Y > 1, standardised(NEW, X), 0.7, weights)
    np.testing.assert_allclose(votes, wanted, rtol=1e-5, atol=1e-5)


def test_the_bandwidth_is_the_one_with_the_least_leave_one_out_error():
    rows = standardised(X, X)

    def error(h):
        return np.mean((nadaraya_watson(rows, Y, rows, h)[0] - Y) ** 2)

    model = quick(metric="none").fit(X, Y)
    ladder = 2.0 ** (1 - np.arange(18) / 2) * np.sqrt(4)
    errors = [error(h) for h in ladder]
    chosen = float(np.exp(model.parameters_["log_bandwidth"][0, 0]))
    assert chosen == pytest.approx(ladder[int(np.argmin(errors))], rel=1e-5)
    assert model.validation_loss_[0] == pytest.approx(min(errors) / Y.var(), rel=1e-4)


@pytest.mark.parametrize("metric", METRICS)
def test_weights_times_values_of_rows_sum_to_the_prediction(metric):
    model = quick(metric=metric).fit(X, np.stack([Y, X[:, 2]], axis=1), RNG.random(120))
    for output in (0, 1):
        seen = model.explain_rows(NEW, top=120, output=output)
        np.testing.assert_allclose(seen.weights.sum(axis=1), 1)
        np.testing.assert_allclose((seen.weights * seen.values).sum(axis=1), model.predict(NEW)[:, output])
        assert (np.diff(seen.weights, axis=1) <= 0).all()
    votes = quick(AttentionClassifier, metric).fit(X, np.digitize(Y, [0, 1]))
    seen = votes.explain_rows(NEW, top=120)
    np.testing.assert_allclose(
        (seen.weights[..., None] * seen.values).sum(axis=1), votes.predict_proba(NEW), atol=1e-12
    )


def test_without_a_trend_the_value_of_a_row_is_its_own():
    model = quick(trend="none").fit(X, Y)
    seen = model.explain_rows(NEW, top=5)
    np.testing.assert_allclose(seen.values, Y[seen.rows], atol=1e-5)


@pytest.mark.parametrize("metric", ["diagonal", "linear", "low_rank", "network"])
def test_a_learned_metric_predicts_better_than_none_where_most_columns_are_noise(metric):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 12))  # ten of twelve columns are noise
    y = np.sin(2 * x[:, 0]) + x[:, 1]
    fit, test = slice(0, 200), slice(200, None)
    plain, learned = (
        AttentionRegressor(each, random_state=0, max_steps=100, n_estimators=1, trend="none")
        .fit(x[fit], y[fit])
        .score(x[test], y[test])
        for each in ("none", metric)
    )
    assert learned > plain + 0.2, (plain, learned)


def test_predict_std_is_near_the_errors_of_predictions():
    rng = np.random.default_rng(2)
    x = rng.uniform(-2, 2, size=(400, 1))
    y = np.sin(2 * x[:, 0]) + np.where(x[:, 0] > 0, 0.4, 0.05) * rng.normal(size=400)
    model = AttentionRegressor(random_state=0, max_steps=60, n_estimators=4).fit(x, y)
    calm, wild = model.predict_std([[-1.0], [1.0]])
    assert 0.03 < calm < 0.15
    assert 0.25 < wild < 0.6


@pytest.mark.parametrize("metric", ["none", pytest.param("network", marks=pytest.mark.long)])
def test_predict_std_has_the_unit_of_y(metric):
    std = quick(metric=metric).fit(X, Y).predict_std(NEW)
    scaled = quick(metric=metric).fit(X, 1000 * Y - 7).predict_std(NEW)
    np.testing.assert_allclose(scaled, 1000 * std, rtol=1e-3)
    outputs = quick(metric=metric).fit(X, np.stack([Y, 1000 * Y - 7], axis=1)).predict_std(NEW)
    # The trends of the outputs start at different random numbers.
    np.testing.assert_allclose(outputs[:, 1], 1000 * outputs[:, 0], rtol=0.5)


def test_rows_added_by_partial_fit_are_predicted_from_exactly():
    model = quick(metric="none", bandwidth=0.7).fit(X[:80], Y[:80]).partial_fit(X[80:], Y[80:])
    fitted = standardised(X, X[:80]), standardised(NEW, X[:80])
    wanted, _ = nadaraya_watson(fitted[0], Y, fitted[1], 0.7)
    np.testing.assert_allclose(model.predict(NEW), wanted, rtol=1e-5, atol=1e-5)
    assert model.explain_rows(X[[100]], top=1).rows == 100


def test_partial_fit_accepts_later_classes_only_if_declared():
    model = quick(AttentionClassifier, "none", bandwidth=0.2).partial_fit(X[:60], np.zeros(60), classes=[0, 1])
    model.partial_fit(X[60:], np.ones(60))
    assert set(model.predict(np.concatenate([X[:3], X[-3:]]))) == {0, 1}
    with pytest.raises(DataError, match=r"the classes \[0, 1\], got 2"):
        model.partial_fit(X[:1], [2])


# -- columns --------------------------------------------------------------------------------------------


def mixed(rows=90):
    rng = np.random.default_rng(3)
    size, colour = rng.normal(size=rows), rng.choice(["red", "green", "blue"], size=rows)
    y = size + 3 * (colour == "red")
    cells = [None if row % 10 == 0 else each for row, each in enumerate(size.tolist())]
    days = [dt.datetime(2020, 1, 1) + dt.timedelta(days=row) for row in range(rows)]
    return {"size": cells, "colour": colour.tolist(), "old": [bool(row % 2) for row in range(rows)], "day": days}, y


def frames(table):
    found = {}
    try:
        import pandas

        found["pandas"] = pandas.DataFrame(table)
        found["pandas categories"] = found["pandas"].astype({"colour": "category", "size": "Float64"})
    except ImportError:
        pass
    try:
        import polars

        found["polars"] = polars.DataFrame(table)
        found["polars lazy"] = polars.LazyFrame(table)
        found["polars categories"] = found["polars"].with_columns(polars.col("colour").cast(polars.Categorical))
    except ImportError:
        pass
    import pyarrow

    found["pyarrow"] = pyarrow.table(table)
    return found


def test_frames_of_every_library_are_read_alike():
    table, y = mixed()
    answers = {}
    for name, frame in frames(table).items():
        model = quick().fit(frame, y)
        answers[name] = model.predict(frame)
        assert model.n_features_in_ == 4
        assert list(model.feature_names_in_) == list(table), name
    for name, found in answers.items():
        np.testing.assert_allclose(found, answers["pyarrow"], rtol=1e-6, err_msg=name)
    assert np.corrcoef(answers["pyarrow"], y)[0, 1] > 0.8


def test_arrays_of_objects_are_read_by_what_they_hold():
    table, y = mixed()
    cells = np.array([[size, colour] for size, colour in zip(table["size"], table["colour"], strict=True)], object)
    model = quick().fit(cells, y)
    assert len(model.features_["categories"]) == 1
    assert np.isfinite(model.predict(cells.tolist())).all()
    with pytest.raises(KindError, match="argument must be a string or a number"):
        quick().fit(np.array([[1.0, {}], [2.0, {}]], object), [1, 2])
    with pytest.raises(KindError, match="argument must be a string or a number"):
        quick().fit(pa.table({"x": [1.0, 2.0]}).to_pandas().assign(z=[1j, 2.0]), [1, 2])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"metric": "magic"}, "none, diagonal, linear, low_rank, network"),
        ({"effort": "fast"}, "effort must be one of"),
        ({"max_seconds": 0}, "max_seconds must be a positive number or None, got 0"),
        ({"trend": "up"}, "auto, none, linear, network"),
        ({"n_components": 0}, "n_components must be an integer of at least 1, got 0"),
        ({"n_estimators": "many"}, "n_estimators must be an integer of at least 1, got 'many'"),
        ({"dropout": 1.0}, "dropout must be a number in"),
        ({"bandwidth": -1.0}, "bandwidth must be a positive number"),
    ],
)
def test_options_that_are_not_allowed_are_refused(options, says):
    with pytest.raises(OptionError, match=says):
        AttentionRegressor(**options).fit(X, Y)


def test_a_progress_bar_is_shown_if_verbose_or_on_a_terminal(capsys):
    quick().fit(X, Y)
    assert capsys.readouterr().err == ""
    quick(verbose=True).fit(X, Y)
    assert "metric learning (network, standard)" in capsys.readouterr().err
    quick(verbose=False).fit(X, Y)
    assert capsys.readouterr().err == ""


def test_without_pytorch_the_error_names_the_extra_to_install():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "try:\n    from qkv.estimators import AttentionRegressor\n"
        "except ImportError as error:\n    print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("MissingPackageError")
    assert 'pip install "qkv[search,torch]"' in done.stdout


@pytest.mark.long
@pytest.mark.skipif("QKV_DATA" not in os.environ, reason="QKV_DATA does not name the folder of public data")
@pytest.mark.parametrize("table", ["yacht", "energy", "wine-quality-red"])
def test_defaults_reach_the_documented_errors_on_two_splits(table):
    from examples.tables import GOALS, measure, splits_of

    splits = splits_of(table, Path(os.environ["QKV_DATA"]))
    figures = [measure(AttentionRegressor(random_state=0), next(splits)) for _ in range(2)]
    assert np.mean(figures) <= GOALS[table]


def test_without_out_of_bag_rows_the_deviation_of_a_prediction_is_not_a_number():
    model = AttentionRegressor(metric="none").fit([[0.0], [1.0], [2.0]], [1.0, 2.0, 4.0])
    model.out_of_bag_rows_ = model.out_of_bag_rows_[:, :0]
    assert np.isnan(model.predict_std([[0.5], [1.5]])).tolist() == [True, True]


def test_a_residual_is_the_value_less_the_trend_of_each_member():
    values, trends = np.array([[1.0], [2.0]]), torch.tensor([[[0.5], [0.5]], [[1.0], [3.0]]])
    assert residuals(values, None).tolist() == [values.tolist()]
    assert residuals(values, trends).tolist() == [[[0.5], [1.5]], [[0.0], [-1.0]]]


def test_votes_below_zero_have_probability_zero(monkeypatch):
    model = AttentionClassifier(metric="none").fit([[0.0], [1.0], [2.0]], ["a", "b", "b"])
    monkeypatch.setattr(model, "_predict", lambda _: np.array([[-0.2, 1.2], [0.25, 0.75]]))
    assert model.predict_proba([[0.0], [1.0]]).tolist() == [[0.0, 1.0], [0.25, 0.75]]
