"""Estimators for scikit-learn that predict by attention over the rows of a table, with a learned metric."""

from qkv.core.extras import lazy_attributes

_HOMES = {
    "AttentionClassifier": "classifier",
    "AttentionRanker": "ranker",
    "AttentionRegressor": "regressor",
    "RowExplanation": "fitted_rows",
}

__all__ = ["AttentionClassifier", "AttentionRanker", "AttentionRegressor", "RowExplanation"]

__getattr__ = lazy_attributes(__name__, _HOMES, "estimators need", "learn", "sklearn", "torch")
