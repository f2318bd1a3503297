"""Tests of missing values among the targets of estimators."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from qkv.errors import DataError
from qkv.estimators import AttentionClassifier, AttentionRegressor

ROWS = np.linspace(-1, 1, 12)[:, None]
MISSING = {"pd.NA": pd.NA, "pd.NaT": pd.NaT, "None": None, "NaN": float("nan"), "NaT of NumPy": np.datetime64("NaT")}
LABELS = {"texts": ["a", "b"], "whole numbers": [1, 2], "booleans": [True, False], "mixed": ["a", 1]}


def _forms(values: list[object]) -> list[object]:
    return [values, np.array(values, dtype=object), pd.Series(values, dtype=object)]


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("estimator", [AttentionClassifier, AttentionRegressor])
def test_a_missing_target_is_an_error_that_names_its_index(estimator, labels, missing):
    targets = LABELS[labels] * 6
    targets[7] = MISSING[missing]
    for form in _forms(targets):
        with pytest.raises(DataError, match=r"y must have no missing values, got 1, the first at index 7"):
            estimator(metric="none").fit(ROWS, form)


@pytest.mark.parametrize(
    "targets",
    [
        pd.Series(["a", pd.NA] * 6, dtype="string"),
        pd.Series([True, pd.NA] * 6, dtype="boolean"),
        pd.Series([1, pd.NA] * 6, dtype="Int64"),
        pd.Series(["a", None] * 6, dtype="category"),
        pd.Series([pd.Timestamp("2024-01-01"), pd.NaT] * 6),
        np.array([1.0, np.nan] * 6),
    ],
    ids=str,
)
@pytest.mark.parametrize("estimator", [AttentionClassifier, AttentionRegressor])
def test_missing_targets_of_typed_columns_are_an_error(estimator, targets):
    with pytest.raises(ValueError, match=r"y must have no missing values|Input y contains NaN|got categories"):
        estimator(metric="none").fit(ROWS, targets)


@pytest.mark.parametrize(
    "categories", [pd.Series([1, 2] * 6, dtype="category"), pa.array([1, 2] * 6).dictionary_encode()]
)
def test_categories_of_numbers_are_classes_and_no_numbers(categories):
    assert AttentionClassifier(metric="none").fit(ROWS, categories).classes_.tolist() == [1, 2]
    with pytest.raises(DataError, match="y must hold numbers, got categories"):
        AttentionRegressor(metric="none").fit(ROWS, categories)


def test_labels_of_texts_and_numbers_are_an_error():
    with pytest.raises(DataError, match=r"y must hold values of one kind, got number and text"):
        AttentionClassifier(metric="none").fit(ROWS, np.array(LABELS["mixed"] * 6, object))
    with pytest.raises(DataError, match=r"y must hold values of one kind, got number and text"):
        AttentionClassifier(metric="none").fit(ROWS, LABELS["mixed"] * 6)


def test_missing_labels_of_further_rows_and_missing_classes_are_an_error():
    model = AttentionClassifier(metric="none").fit(ROWS, ["a", "b"] * 6)
    with pytest.raises(DataError, match="y must have no missing values"):
        model.partial_fit(ROWS[:2], np.array(["a", pd.NA], object))
    with pytest.raises(DataError, match="classes must have no missing values"):
        AttentionClassifier(metric="none").partial_fit(ROWS, ["a", "b"] * 6, classes=["a", "b", pd.NA])


@pytest.mark.parametrize("dtype", ["Int64", "boolean"])
def test_labels_of_pandas_that_can_be_missing_are_no_floats(dtype):
    labels = pd.Series([2**53, 2**53 + 1] * 6 if dtype == "Int64" else [True, False] * 6, dtype=dtype)
    assert AttentionClassifier(metric="none").fit(ROWS, labels).classes_.tolist() == sorted(set(labels))


def test_targets_that_are_dates_or_durations_are_refused_by_a_regressor():
    days = np.arange("2024-01-01", "2024-01-13", dtype="datetime64[D]")
    for targets in (days, days - days[0], days.tolist(), pd.Series(days)):
        with pytest.raises(DataError, match="y must hold numbers, got dates or times"):
            AttentionRegressor(metric="none").fit(ROWS, targets)


@pytest.mark.parametrize("cell", [dt.date(2024, 1, 1), pd.Timestamp("2024-01-01", tz="UTC"), Decimal(1)])
def test_classes_of_other_kinds_are_refused_with_the_remedy(cell):
    with pytest.raises(DataError, match=f"got objects of type {type(cell).__name__}. .*to texts"):
        AttentionClassifier(metric="none").fit(ROWS, [cell] * 12)
