"""Classes predicted by attention over the rows of a table: soft nearest neighbours with a learned metric."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from qkv.errors import DataError
from qkv.estimators.base import AttentionEstimator

# After the base: without scikit-learn that says what to install.
from sklearn.base import ClassifierMixin  # isort: skip
from sklearn.utils import assert_all_finite  # isort: skip
from sklearn.utils.multiclass import check_classification_targets  # isort: skip
from sklearn.utils.validation import column_or_1d  # isort: skip

from qkv.estimators.fitted_rows import Explained  # isort: skip

__all__ = ["AttentionClassifier"]


class AttentionClassifier(ClassifierMixin, AttentionEstimator):  # type: ignore[misc]
    """Classification by soft neighbours.

        share_c(x) = Σ_i w_i(x) [y_i = c]        w_i(x) = softmax_i(−‖k(x) − k(x_i)‖² / 2h²)

    Every row that was fitted votes in every answer. What counts as near, k, is learned: the loss is −log of
    the share that falls on a row's own class when the row itself does not vote.

    Args:
        metric, width, hidden, layers, members, max_steps, patience, batch_size, candidates, learning_rate,
            weight_decay, dropout, bandwidth, verbose, random_state: as in `AttentionRegressor`.

    Attributes:
        classes_: the classes, sorted.
        keys_, moved_, parameters_, features_, validation_loss_, n_steps_, n_features_in_, feature_names_in_:
            as in `AttentionRegressor`; the loss is −log of a share.

    Raises:
        OptionError: an option outside what is allowed (when fitted).
        MissingPackageError: PyTorch or scikit-learn is not installed (when imported).

    Source:
        Goldberger et al. (2004), Neighbourhood components analysis; Ye et al. (2025), Revisiting nearest
        neighbor for tabular data, https://arxiv.org/abs/2407.03257.

    Example:
        >>> import numpy as np
        >>> x = np.linspace(-3, 3, 40)[:, None]
        >>> model = AttentionClassifier(metric="none").fit(x, np.where(x[:, 0] > 0, "over", "under"))
        >>> model.predict([[2.5], [-2.0]])
        array(['over', 'under'], dtype='<U5')
    """

    _shares = True
    _known: np.ndarray | None

    # -- scikit-learn's verbs ---------------------------------------------------------------------------

    def predict(self, X: Any) -> np.ndarray:
        """The class with the largest share, `(queries,)`."""
        shares = self.predict_proba(X)
        return np.asarray(self.classes_[shares.argmax(axis=1)])

    def predict_proba(self, X: Any) -> np.ndarray:
        """The share of each class, `(queries, classes)`; exact over all fitted rows."""
        shares = np.clip(self._answer(X), 0.0, None)
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """The logarithm of `predict_proba`; −inf where no row votes for a class."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.predict_proba(X)))

    def explain_rows(self, X: Any, top: int = 10) -> Explained:
        """The fitted rows that vote in each answer, heaviest first.

        Returns:
            rows and weights `(queries, top)`, and values `(queries, top, classes)`: the vote of each row.
            Over all rows weights add up to 1, and weights times values to `predict_proba`.
        """
        return self._explain(X, top, 0)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Remember more rows; the metric and the bandwidth stay as the first call learned them.

        Args:
            X, y: rows and their classes.
            classes: all that will ever come; wanted in the first call where its rows lack some.

        Raises:
            DataError: a class that the first call did not know.
        """
        if not hasattr(self, "keys_"):
            return self._fit_known(X, y, classes)
        return self._partial_fit(X, y)

    # -- within -----------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn the metric from rows and their classes, and keep the rows.

        Args:
            X, sample_weight: as in `AttentionRegressor`.
            y: the class of each row: numbers, texts or booleans.

        Raises:
            OptionError: an option outside what is allowed.
            DataError: infinite numbers, or no row of positive weight.
        """
        self._known = None
        return super().fit(X, y, sample_weight)

    def _fit_known(self, X: Any, y: Any, classes: Any) -> Self:
        self._known = None if classes is None else np.unique(np.asarray(classes))
        return super().fit(X, y)

    def _check_y(self, y: Any) -> np.ndarray:
        y = column_or_1d(y, warn=True)
        if y.dtype.kind == "f":
            assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        return np.asarray(y)

    def _learn_values(self, y: np.ndarray, shares: np.ndarray | None) -> np.ndarray:
        self.classes_ = np.unique(y) if self._known is None else self._known
        return self._values(y)

    def _values(self, y: np.ndarray) -> np.ndarray:
        place = np.minimum(np.searchsorted(self.classes_, y), len(self.classes_) - 1)
        strange = self.classes_[place] != y
        if strange.any():
            raise DataError(
                f"the class {y[strange].tolist()[0]!r} is none of {self.classes_.tolist()}. "
                f"Name all classes in the first call: partial_fit(X, y, classes=…)."
            )
        return np.eye(len(self.classes_), dtype=np.float32)[place]
