"""Estimators with scikit-learn's contract: attention over the rows of a table, with a learned metric."""

from importlib import import_module
from typing import Any

from qkv.core.extras import require_packages

_HOMES = {
    "AttentionClassifier": "qkv.estimators.classifier",
    "AttentionRanker": "qkv.estimators.ranker",
    "AttentionRegressor": "qkv.estimators.regressor",
    "RowExplanation": "qkv.estimators.fitted_rows",
}

__all__ = ["AttentionClassifier", "AttentionRanker", "AttentionRegressor", "RowExplanation"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_packages("estimators need", "learn", "sklearn", "torch")
    return getattr(import_module(_HOMES[name]), name)
