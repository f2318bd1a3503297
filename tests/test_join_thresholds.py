"""The benchmark of thresholds of joins."""

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("pyarrow")

from benchmarks.join_thresholds import ROWS, f1

from qkv.join.labels import Labels


def test_the_f1_is_that_of_scikit_learn():
    from sklearn.metrics import f1_score

    rng = np.random.default_rng(0)
    weights, match = rng.random(50), rng.integers(0, 2, size=50)
    labels = Labels(np.arange(50), np.arange(50), match, False)
    for threshold in (0.0, 0.3, 0.7):
        assert f1(labels, weights, threshold) == pytest.approx(f1_score(match, weights >= threshold))
    assert f1(Labels(np.arange(2), np.arange(2), np.zeros(2, int), False), np.zeros(2), 0.5) == 0


def test_all_rows_compare_several_columns():
    assert len(ROWS) == 8
    assert all("," in on for _, on in ROWS)
