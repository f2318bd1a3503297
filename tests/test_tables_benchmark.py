"""The benchmark of tables: splits, scores against scikit-learn, continued runs, failures, ranks, and the page."""

import math
import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pandas")
pytest.importorskip("sklearn")
pytest.importorskip("torch")

from benchmarks import _table_methods, _table_page, _table_sets
from benchmarks._table_methods import METHODS, Encoded, Levels, Method, draw_parameters
from benchmarks.tables import Result, evaluate, main, read_results, score
from examples.tables import TABLES, scaled_columns
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import cases


def result(table, method, split, error, **others):
    numbers = {"rows": 100, "fit_seconds": 1.0, "predict_seconds": 0.0, "date": "2026-11-23"} | others
    return Result(table, method, numbers.pop("setting", "default"), split, numbers.pop("rows"), error, **numbers)


@settings(derandomize=True, max_examples=cases(60), deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(2, 5))
def test_scores_of_classes_are_those_of_scikit_learn(seed, rows, classes):
    from sklearn.metrics import accuracy_score, log_loss

    rng = np.random.default_rng(seed)
    found, y = rng.dirichlet(np.ones(classes), size=rows), rng.integers(classes, size=rows)
    error, loss, calibration = score(found, y)
    assert error == pytest.approx(1 - accuracy_score(y, found.argmax(axis=1)))
    clipped = np.clip(found, 1e-6, 1)
    reference = log_loss(y, clipped / clipped.sum(axis=1, keepdims=True), labels=range(classes))
    assert loss == pytest.approx(reference, abs=1e-4)
    sure, expected = found.max(axis=1), 0.0
    for low in np.arange(10) / 10:
        inside = (sure >= low) & ((sure < low + 0.1 - 1e-12) | (low == 0.9))
        if inside.any():
            expected += inside.mean() * abs((found.argmax(axis=1) == y)[inside].mean() - sure[inside].mean())
    assert calibration == pytest.approx(expected)


def test_a_class_that_was_not_fitted_is_an_error_of_probability_zero():
    error, loss, _ = score(np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([-1, 1]))
    assert error == 0.5
    assert loss == pytest.approx((-math.log(1e-6) - math.log(0.8)) / 2)


def test_folds_of_tables_without_published_splits_partition_the_rows(tmp_path):
    for table, rows in (("iris", 150), ("diabetes", 442)):
        splits = list(_table_sets.load_splits(table, tmp_path))
        tested = np.concatenate([split.X_test.index for split in splits])
        assert len(splits) == 10
        assert sorted(tested) == list(range(rows))
        assert all(not set(split.X.index) & set(split.X_test.index) for split in splits)
    assert all(np.bincount(split.y_test).tolist() == [5, 5, 5] for split in _table_sets.load_splits("iris", tmp_path))


@pytest.mark.skipif("QKV_DATA" not in os.environ, reason="the variable QKV_DATA does not name the public data")
@pytest.mark.parametrize("table", ["ethanol", "yacht", "servo", "abalone", "iris"])
def test_a_table_has_as_many_splits_as_the_page_expects(table):
    splits = list(_table_sets.load_splits(table, Path(os.environ["QKV_DATA"])))
    assert len(splits) == _table_sets.count_splits(table)
    assert all(split.X.shape[1] == split.X_test.shape[1] for split in splits)


def test_every_table_of_the_examples_is_in_the_benchmark():
    every = [*_table_sets.regression_tables(), *_table_sets.classification_tables()]
    assert set(TABLES) < set(every)
    assert len(every) == len(set(every))


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].package in ("qkv", "scikit-learn")])
@pytest.mark.parametrize("table", ["iris", "diabetes"])
def test_a_method_is_measured_on_a_split(name, table, tmp_path):
    if name.endswith(("best", "standard", "MLP", "forest")):
        pytest.skip("takes seconds")
    split = next(iter(_table_sets.load_splits(table, tmp_path)))
    found = evaluate(table, name, 0, split)
    assert not found.failure
    assert 0 <= found.error < {"iris": 0.3, "diabetes": 77}[table]
    assert found.bytes > 100
    assert found.fit_seconds > 0
    assert found.version
    assert math.isnan(found.log_loss) == (table == "diabetes")
    assert (0.6 < found.coverage <= 1) == (table == "diabetes" and name.startswith("attention"))


def test_encodings_give_unknown_levels_and_missing_cells_a_place():
    pd = pytest.importorskip("pandas")
    fitted = pd.DataFrame({"a b": [1.0, np.nan, 3.0], "c": ["x", "y", None]})
    new = pd.DataFrame({"a b": [np.nan], "c": ["z"]})
    levels = Levels(impute=True)
    levels.fit_transform(fitted)
    found = levels.transform(new)
    assert found["a_b"].tolist() == [2.0]
    assert found["c"].isna().all()
    assert list(found["c"].cat.categories) == ["x", "y"]
    text = Levels(text=True)
    assert text.fit_transform(fitted)["c"].tolist() == ["x", "y", "missing"]
    assert text.transform(new)["c"].tolist() == ["missing"]
    assert np.isnan(text.transform(new)["a_b"]).all()
    assert list(new.columns) == ["a b", "c"]


def test_a_scaled_target_is_predicted_in_its_own_units():
    pd = pytest.importorskip("pandas")
    from sklearn.linear_model import LinearRegression

    X = pd.DataFrame({"x": np.arange(20.0)})
    model = Encoded(scaled_columns(), LinearRegression(), scale_y=True).fit(X, 1000 + 5 * np.arange(20.0))
    assert model.predict(X) == pytest.approx(1000 + 5 * np.arange(20.0))


def test_the_search_begins_with_the_defaults_and_is_the_same_each_time():
    for method in METHODS.values():
        assert draw_parameters(method, 3, 0) == {}
        assert draw_parameters(method, 3, 1) == draw_parameters(method, 3, 1)
        assert set(draw_parameters(method, 3, 1)) == set(method.space)
    assert draw_parameters(METHODS["XGBoost"], 3, 1) != draw_parameters(METHODS["XGBoost"], 3, 2)


@pytest.mark.parametrize("name", ["linear", pytest.param("histogram boosting", marks=pytest.mark.long)])
@pytest.mark.parametrize("table", ["iris", "diabetes"])
def test_a_tuned_method_is_measured(name, table, tmp_path):
    split = next(iter(_table_sets.load_splits(table, tmp_path)))
    found = evaluate(table, name, 0, split, steps=2)
    assert not found.failure
    assert found.setting == "tuned 2"
    assert found.fit_seconds > 0


class Broken:
    def fit(self, X, y):
        raise ValueError("no fit")


def run(monkeypatch, tmp_path, methods, *arguments):
    monkeypatch.setenv("QKV_DATA", str(tmp_path))
    for name, make in methods.items():
        monkeypatch.setitem(METHODS, name, Method("numpy", make, {}))
    path = tmp_path / "results.csv"
    main(["iris", "--results", str(path), "--methods", *methods, *arguments])
    return path


def counting(calls):
    def make(classes, X):
        calls.append(len(X))
        return _table_methods.METHODS["linear"].make(classes, X)

    return make


def test_a_run_continues_where_it_stopped_and_skips_a_line_that_was_cut_off(monkeypatch, tmp_path):
    calls = []
    path = run(monkeypatch, tmp_path, {"counted": counting(calls)}, "--splits", "2")
    assert len(calls) == 2
    text = path.read_text()
    path.write_text(text[: text.rindex("iris,") + 12])  # the second result was cut off
    assert len(read_results(path)) == 1
    run(monkeypatch, tmp_path, {"counted": counting(calls)}, "--splits", "3")
    assert len(calls) == 4
    assert [found.split for found in read_results(path)] == [0, 1, 2]


def test_a_failure_is_saved_once_and_ends_the_splits_of_its_table(monkeypatch, tmp_path, capsys):
    path = run(monkeypatch, tmp_path, {"broken": lambda classes, X: Broken()})
    (found,) = read_results(path)
    assert found.failure == "ValueError: no fit"
    assert math.isnan(found.error)
    assert "no further splits of broken" in capsys.readouterr().err


def test_a_method_without_its_package_is_left_out_and_not_saved(monkeypatch, tmp_path, capsys):
    def missing(classes, X):
        raise ModuleNotFoundError("No module named 'nowhere'")

    path = run(monkeypatch, tmp_path, {"absent": missing, "counted": counting([])}, "--splits", "2")
    assert {found.method for found in read_results(path)} == {"counted"}
    assert capsys.readouterr().err.count("absent is left out") == 1


def test_a_slow_method_stops_after_its_first_split(monkeypatch, tmp_path):
    path = run(monkeypatch, tmp_path, {"counted": counting([])}, "--seconds", "0")
    assert len(read_results(path)) == 1


class Endless:
    def fit(self, X, y):
        while True:
            pass


def test_a_fit_beyond_the_limit_of_cpu_time_is_stopped_and_saved_as_a_failure(monkeypatch, tmp_path):
    path = run(monkeypatch, tmp_path, {"endless": lambda classes, X: Endless()}, "--limit", "0.05")
    (found,) = read_results(path)
    assert found.failure == "TimeoutError: more than 0.05 s of CPU time"


def test_an_unknown_table_is_refused(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("QKV_DATA", str(tmp_path))
    with pytest.raises(SystemExit):
        main(["atlantis"])
    assert "TABLE must be one of" in capsys.readouterr().err


def test_mean_ranks_and_the_critical_difference():
    errors = {"XGBoost": (1, 1, 2, 1), "LightGBM": (2, 2, 1, 2), "CatBoost": (3, 3, 3, 3)}
    cells = {(f"t{place}", method): [result(f"t{place}", method, split, value) for split in range(10)]
             for method, values in errors.items() for place, value in enumerate(values)}  # fmt: skip
    ranks, over, difference = _table_page.mean_ranks(cells)
    assert ranks == {"XGBoost": 1.25, "LightGBM": 1.75, "CatBoost": 3.0}
    assert len(over) == 4
    assert difference == pytest.approx(2.343 * math.sqrt(3 * 4 / (6 * 4)), abs=1e-2)  # Demšar (2006), table 5a
    del cells["t0", "CatBoost"], cells["t1", "CatBoost"]
    assert set(_table_page.mean_ranks(cells)[0]) == {"XGBoost", "LightGBM"}
    cells["t3", "XGBoost"].pop()  # a table whose splits are not all there is not ranked
    assert _table_page.mean_ranks(cells)[1] == ["t0", "t1", "t2"]


def test_the_section_of_the_documentation_is_what_the_results_say():
    text = _table_page.PAGE.read_text(encoding="utf-8")
    section = text.split(_table_page.BEGIN)[1].split(_table_page.END)[0].strip()
    assert section == _table_page.page_text(read_results()), "run python -m benchmarks.tables --page"
    assert _table_page.TABLE.read_text(encoding="utf-8") == _table_page.table_text(read_results())


def test_the_picture_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    _table_page.draw(read_results(), tmp_path / "tables.png")
    assert (tmp_path / "tables.png").read_bytes().startswith(b"\x89PNG")
