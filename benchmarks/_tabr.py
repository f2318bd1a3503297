"""TabR of pytabkit with categories, whose encoding fails with scikit-learn 1.9.

pytabkit 1.7.3 marks missing categories by `SimpleImputer(missing_values=0, strategy="constant", fill_value=nan)`.
scikit-learn takes a fill value of NaN for a column without any observed value, and drops the column: "Found array with
0 feature(s)". With `keep_empty_features` it keeps the column, and pytabkit's next step encodes it.

The package also imports faiss and skorch, which `pip install pytabkit` does not install, and leaves its checkpoints in
the working directory unless it is given another.
"""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import pandas as pd

__all__ = ["TabR"]


class TabR:
    """TabR of pytabkit, which encodes categories with the installed scikit-learn and leaves no files behind.

    Args:
        classes: whether the target is a class.
        parameters: those of pytabkit's estimator.
    """

    def __init__(self, classes: bool, **parameters: Any) -> None:
        import faiss  # noqa: F401  # a missing package is noticed here, and not by a failed fit
        import skorch  # noqa: F401

        self.classes = classes
        self.parameters = parameters

    def fit(self, X: pd.DataFrame, y: np.ndarray) -> TabR:
        """Train the network."""
        import pytabkit
        from pytabkit.models.alg_interfaces import tabr_interface
        from sklearn.impute import SimpleImputer

        tabr_interface.SimpleImputer = lambda **options: SimpleImputer(keep_empty_features=True, **options)
        make = pytabkit.TabR_S_D_Classifier if self.classes else pytabkit.TabR_S_D_Regressor
        with tempfile.TemporaryDirectory() as folder:
            self.model_ = make(tmp_folder=folder, **self.parameters).fit(X, y)
        return self

    def predict(self, X: pd.DataFrame) -> np.ndarray:
        """Return the predicted numbers or classes."""
        return self.model_.predict(X)

    def predict_proba(self, X: pd.DataFrame) -> np.ndarray:
        """Return the probability of each class."""
        return self.model_.predict_proba(X)
