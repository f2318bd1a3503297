"""Estimators with the interface of scikit-learn that predict or rank by attention with learned parameters."""

from qkv.core.extras import lazy_attributes

_HOMES = {
    "AttentionClassifier": "classifier",
    "AttentionRanker": "ranker",
    "AttentionRegressor": "regressor",
    "RowExplanation": "fitted_rows",
}

__all__ = ["AttentionClassifier", "AttentionRanker", "AttentionRegressor", "RowExplanation"]

__getattr__ = lazy_attributes(__name__, _HOMES, "estimators need", "search,torch", "sklearn", "torch")
