"""The class `AttentionClassifier`, a soft nearest-neighbor classifier with a learned metric."""

from __future__ import annotations

from typing import Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from qkv.core.typing import ArrayLike, Float, Shaped
from qkv.errors import DataError
from qkv.estimators.base import AttentionEstimator, require_values
from qkv.estimators.fitted_rows import RowExplanation


class AttentionClassifier(ClassifierMixin, AttentionEstimator):  # type: ignore[misc]
    """Soft nearest-neighbor classifier with a learned metric.

        p_c(x) = Σ_i w_i(x) [y_i = c]        w_i(x) = (1 − ε) softmax_i(−‖k(x) − k(x_i)‖² / 2h²) + ε / n

    Every fitted row votes in every prediction. The keys k are learned: the loss is the log loss of a row's own
    class, predicted from all other rows. The uniform share ε is chosen after the bandwidth h on out-of-bag rows; it
    limits the log loss of rows unlike all others.

    Args:
        metric: distance metric; see `AttentionRegressor` for all arguments.
        effort: "quick", "standard" or "best".
        n_components: width of a key.
        hidden: hidden units per layer.
        layers: layers of the network.
        n_estimators: size of the ensemble.
        max_steps: maximum number of training steps of a member.
        max_seconds: time after which the training of the metric stops; None means no limit.
        patience: steps without a smaller validation loss before training stops.
        batch_size: rows that are predicted in one training step.
        candidates: rows from which a batch is predicted.
        learning_rate: learning rate.
        weight_decay: weight decay.
        dropout: dropout probability of hidden units.
        bandwidth: fixed bandwidth, with ε = 0; None means learned.
        verbose: whether a progress bar is shown.
        random_state: seed or generator.

    Attributes:
        classes_: the classes, sorted.
        keys_, residuals_, parameters_, features_, n_steps_, n_features_in_, feature_names_in_: as in
            `AttentionRegressor`.
        uniform_share_: ε.
        validation_loss_: log loss of each member on its out-of-bag rows, `(members,)`.

    Raises:
        OptionError: when fitted, if an option is not allowed.
        MissingPackageError: when imported, if PyTorch or scikit-learn is not installed.

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

    _classification = True
    _declared_classes: np.ndarray | None

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train the metric on rows and their classes, and store the rows for prediction.

        Args:
            X: as in `AttentionRegressor.fit`.
            y: class of each row: numbers, strings or booleans.
            sample_weight: as in `AttentionRegressor.fit`.

        Returns:
            The fitted estimator.

        Raises:
            OptionError: if an option is not allowed.
            DataError: if a number is infinite, or no row has a positive weight.
        """
        self._declared_classes = None
        return super().fit(X, y, sample_weight)

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Store further rows for prediction. If the model is not fitted, also learn the metric and bandwidth.

        Args:
            X: rows, as in `fit`.
            y: class of each row.
            classes: classes of all calls; required in the first call if its rows do not include all of them.

        Returns:
            The fitted estimator.

        Raises:
            DataError: if the class of a row is not among the classes of the first call.
        """
        if hasattr(self, "keys_"):
            return self._add_rows(X, y)
        if classes is not None:
            require_values(classes, "classes")
        self._declared_classes = None if classes is None else np.unique(np.asarray(classes))
        return super().fit(X, y)

    def predict(self, X: ArrayLike) -> Shaped[np.ndarray, " queries"]:
        """Return the class with the highest probability for each query."""
        probabilities = self.predict_proba(X)
        return np.asarray(self.classes_[probabilities.argmax(axis=1)])

    def predict_proba(self, X: ArrayLike) -> Float[np.ndarray, "queries classes"]:
        """Return the probability of each class for each query, computed from all fitted rows."""
        votes = np.clip(self._predict(X), 0.0, None)
        return np.asarray(votes / votes.sum(axis=1, keepdims=True))

    def predict_log_proba(self, X: ArrayLike) -> Float[np.ndarray, "queries classes"]:
        """Return the logarithm of the probability of each class for each query, which is −inf for probability 0."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.predict_proba(X)))

    def explain_rows(self, X: ArrayLike, top: int = 10) -> RowExplanation:
        """Return for each query the fitted rows with the largest weights in its prediction, by descending weight.

        Args:
            X: queries.
            top: number of rows per query.

        Returns:
            Rows and weights `(queries, top)`, and values `(queries, top, classes)`: the vote of each row. Over
            all rows, weights sum to 1, and weights times values to `predict_proba`.
        """
        return self._explain(X, top, 0)

    def _check_y(self, y: ArrayLike) -> Shaped[np.ndarray, "rows ..."]:
        y = column_or_1d(y, warn=True)
        if y.dtype.kind == "f":
            assert_all_finite(y, input_name="y")
        if y.dtype == object and len(y) and not isinstance(y[0], str):
            found = type(y[0]).__name__
            raise DataError(
                f"y must hold texts, booleans, integers or floats, got objects of type {found}. "
                "Unknown label type: convert the labels, for example to texts."
            )
        check_classification_targets(y)
        return np.asarray(y)

    def _fit_targets(
        self, y: Shaped[np.ndarray, "rows ..."], weights: Float[np.ndarray, " rows"] | None
    ) -> Float[np.ndarray, "rows outputs"]:
        self.classes_ = np.unique(y) if self._declared_classes is None else self._declared_classes
        return self._encode_targets(y)

    def _encode_targets(self, y: Shaped[np.ndarray, "rows ..."]) -> Float[np.ndarray, "rows outputs"]:
        index = np.minimum(np.searchsorted(self.classes_, y), len(self.classes_) - 1)
        unknown = self.classes_[index] != y
        if unknown.any():
            raise DataError(
                f"y must hold only the classes {self.classes_.tolist()}, got {y[unknown].tolist()[0]!r}. "
                "Pass all classes in the first call: partial_fit(X, y, classes=…)."
            )
        return np.eye(len(self.classes_), dtype=np.float32)[index]

    def _check_outputs(self, outputs: int) -> None:
        if self.classes_.shape != (outputs,):
            raise ValueError(f"classes_ must have {outputs} elements, got shape {self.classes_.shape}")
