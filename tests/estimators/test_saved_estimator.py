"""Estimators are saved with checksums, and predict the same after loading."""

import datetime as dt
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from sklearn.exceptions import NotFittedError

from qkv.core.container import read_container, write_container
from qkv.errors import DamagedError, DataError
from qkv.estimators import AttentionClassifier, AttentionRanker, AttentionRegressor

DRAW = np.random.default_rng(3)
TABLE = pa.table(
    {
        "size": pa.array([None if i % 9 == 4 else float(i % 13) for i in range(70)]),
        "town": [["Oslo", "Bergen", None, "Tromsø"][i % 4] for i in range(70)],
        "day": [dt.datetime(2026, 1, 1) + dt.timedelta(days=int(i)) for i in DRAW.integers(0, 90, 70)],
        "open": [i % 3 == 0 for i in range(70)],
    }
)
VALUES = np.array([float(i % 13) + 3 * (i % 4) for i in range(70)])
QUICK = {"max_steps": 4, "n_estimators": 2, "hidden": 8, "random_state": 0}


def roundtrip(model, path: Path):  # type: ignore[no-untyped-def]
    model.save(path)
    return type(model).load(path)


@pytest.mark.parametrize("metric", ["none", "diagonal", "linear", "low_rank", "network"])
def test_a_regressor_predicts_and_explains_the_same(tmp_path: Path, metric: str) -> None:
    model = AttentionRegressor(metric=metric, trend="linear" if metric == "diagonal" else "auto", **QUICK)
    model.fit(TABLE, VALUES, sample_weight=DRAW.uniform(0.5, 2, 70))
    loaded = roundtrip(model, tmp_path / "m")
    assert loaded.get_params() == model.get_params()
    assert set(vars(loaded)) == set(vars(model))
    assert (loaded.predict(TABLE) == model.predict(TABLE)).all()
    for one, other in zip(loaded.explain_rows(TABLE, 3), model.explain_rows(TABLE, 3), strict=True):
        assert (one == other).all()
    assert (loaded.partial_fit(TABLE, VALUES).predict(TABLE) == model.partial_fit(TABLE, VALUES).predict(TABLE)).all()


def test_several_outputs_are_saved(tmp_path: Path) -> None:
    model = AttentionRegressor("none", bandwidth=0.5).fit(VALUES[:, None], np.stack([VALUES, -VALUES], axis=1))
    loaded = roundtrip(model, tmp_path / "m")
    assert (loaded.predict(VALUES[:, None]) == model.predict(VALUES[:, None])).all()


@pytest.mark.parametrize(
    "classes",
    [
        np.array(["under", "über", "middle"]),
        np.array(["a", "b", "c"], object),
        np.array([3, -1, 2**40]),
        np.array([True, False, True]),
        np.array(["2024-01-01", "2023-05-05", "2025-01-01"], "datetime64[D]"),
    ],
    ids=["texts", "objects", "integers", "booleans", "dates"],
)
def test_a_classifier_has_its_classes(tmp_path: Path, classes: np.ndarray) -> None:
    y = classes[np.arange(70) % 3]
    model = AttentionClassifier("none").fit(TABLE, y)
    loaded = roundtrip(model, tmp_path / "m")
    assert loaded.classes_.dtype == model.classes_.dtype
    assert loaded.predict(TABLE).tolist() == model.predict(TABLE).tolist()
    assert (loaded.predict_proba(TABLE) == model.predict_proba(TABLE)).all()


def test_a_ranker_ranks_the_same(tmp_path: Path) -> None:
    points = DRAW.normal(size=(12, 3))
    model = AttentionRanker(steps=3).fit(points, points, relevant=[[(i + 1) % 12] for i in range(12)])
    loaded = roundtrip(model, tmp_path / "m")
    assert (loaded.rank(points, 4).documents == model.rank(points, 4).documents).all()
    assert (loaded.rank(points, 4).weights == model.rank(points, 4).weights).all()


def test_what_cannot_be_saved_is_named_and_leaves_the_old_file(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        AttentionRegressor().save(tmp_path / "m")
    model = AttentionRegressor("none", random_state=np.random.RandomState(1)).fit(VALUES[:, None], VALUES)
    with pytest.raises(DataError, match=r"random_state must be a number.*set_params\(random_state=…\)"):
        model.save(tmp_path / "m")
    assert [*tmp_path.iterdir()] == []
    assert roundtrip(model.set_params(random_state=1), tmp_path / "m").random_state == 1


def test_files_with_former_names_of_parameters_are_read(tmp_path: Path) -> None:
    model = AttentionRegressor("linear", n_components=3, n_estimators=1, max_steps=1).fit(VALUES[:, None], VALUES)
    model.save(tmp_path / "new")
    saved = read_container(tmp_path / "new", "an estimator", "")
    former = {"n_components": "width", "n_estimators": "members"}
    parameters = {former.get(name, name): value for name, value in saved.settings["parameters"].items()}
    parts = {name: saved.array(name) for name in saved}
    write_container(tmp_path / "old", "an estimator", {**saved.settings, "version": 3, "parameters": parameters}, parts)
    read = AttentionRegressor.load(tmp_path / "old")
    assert (read.n_components, read.n_estimators) == (3, 1)
    np.testing.assert_array_equal(read.predict(VALUES[:, None]), model.predict(VALUES[:, None]))


def test_an_estimator_of_another_class_a_newer_one_and_a_foreign_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m"
    AttentionRegressor("none").fit(VALUES[:, None], VALUES).save(path)
    with pytest.raises(DamagedError, match="must hold a fitted AttentionClassifier, got 'AttentionRegressor'"):
        AttentionClassifier.load(path)
    old = read_container(path, "an estimator", "")
    parts = {name: old.array(name) for name in old}
    write_container(tmp_path / "newer", "an estimator", {**old.settings, "version": 5}, parts)
    with pytest.raises(DataError, match="newer version of qkv"):
        AttentionRegressor.load(tmp_path / "newer")
    write_container(path, "a search index", {}, {})
    with pytest.raises(DamagedError, match="must hold an estimator"):
        AttentionRegressor.load(path)
    with pytest.raises(DataError, match="must be a readable file"):
        AttentionRegressor.load(tmp_path / "none")


@pytest.mark.parametrize(
    "state",
    [
        {"predict": 1},
        {"__class__": 1},
        {"keys_": {"array": "missing"}},
        {"keys_": None},
        {"n_features_in_": 9},
        {"rows_": {"dict": {}}},
        {"y_mean_": {"list": [1.0]}},
    ],
    ids=str,
)
def test_crafted_attributes_are_refused(tmp_path: Path, state: dict[str, object]) -> None:
    path = tmp_path / "m"
    AttentionRegressor("none").fit(VALUES[:, None], VALUES).save(path)
    old = read_container(path, "an estimator", "")
    settings = {**old.settings, "state": {**old.fields().record("state"), **state}}
    write_container(path, "an estimator", settings, {name: old.array(name) for name in old})
    with pytest.raises(DamagedError):
        AttentionRegressor.load(path)
