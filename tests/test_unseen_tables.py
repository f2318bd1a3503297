"""Tables drawn at random: which columns can be targets, and the comparison of methods."""

import numpy as np
import pytest

pytest.importorskip("pandas")
pytest.importorskip("sklearn")

import pandas as pd
from benchmarks.tables import Result
from benchmarks.unseen_tables import METHODS, _is_class, _is_number, _with_target, compare


def test_counts_and_measurements_can_be_targets_and_constants_cannot():
    numbers = pd.Series(np.arange(40.0))
    assert _is_number(numbers)
    assert not _is_class(numbers)
    assert not _is_number(pd.Series(np.arange(40) % 3))
    assert _is_class(pd.Series(np.arange(40) % 3))
    assert not _is_number(pd.Series([np.inf, *range(39)]))
    assert not _is_class(pd.Series(["same"] * 40))
    assert not _is_class(pd.Series(["a"] * 38 + ["b"] * 2))


def test_rows_without_a_target_are_left_out():
    frame = pd.DataFrame({"x": range(40), "y": [None, None, *range(38)]})
    tables = [_with_target("some/table", frame, False, np.random.default_rng(seed)) for seed in range(20)]
    found = {table.name: table for table in tables}
    assert set(found) == {"some/table: x", "some/table: y"}
    assert len(found["some/table: y"].y) == len(found["some/table: y"].columns) == 38
    splits = list(found["some/table: y"].splits(2))
    assert [len(split.y_test) for split in splits] == [8, 8]
    assert set(splits[0].y_test) != set(splits[1].y_test)


def test_each_method_is_compared_with_the_best_of_the_others():
    errors = dict.fromkeys(METHODS, 2.0) | {"attention, standard": 1.0, "linear": 4.0}
    results = [Result("one", method, "default", 0, 50, error, coverage=0.9) for method, error in errors.items()]
    lines = compare([*results, Result("one", "CatBoost", "default", 1, 50, failure="ValueError: no")]).splitlines()
    assert "| attention, standard | 0.500 | 1 of 1 | 0 |" in lines
    assert "| linear | 2.000 | 0 of 1 | 1 |" in lines
    assert lines[-1] == "Failed: one, CatBoost: ValueError: no"
