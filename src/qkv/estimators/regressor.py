"""Numbers predicted by attention over the rows of a table: Nadaraya–Watson with a learned metric."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from qkv.errors import OptionError
from qkv.estimators.base import AttentionEstimator

# After the base: without scikit-learn that says what to install.
from sklearn.base import RegressorMixin  # isort: skip
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d  # isort: skip

from qkv.estimators.fitted_rows import Explained  # isort: skip

__all__ = ["AttentionRegressor"]

_TRENDS = ("auto", "none", "linear", "network")


class AttentionRegressor(RegressorMixin, AttentionEstimator):  # type: ignore[misc]
    """Regression by soft neighbours.

        answer(x) = Σ_i w_i(x) (y_i + t(x) − t(x_i))        w_i(x) = softmax_i(−‖k(x) − k(x_i)‖² / 2h²)

    Every row that was fitted takes part in every answer. What counts as near, k, is learned, so that rows
    predict each other well, and so is the trend t, which moves what a row says from its place to the query's;
    without a trend this is the Nadaraya–Watson estimate. An ensemble learns at once, each member holding out
    other rows to know when to stop; answers are the mean. Numbers are standardised; texts, categories and
    missing cells are encoded within.

    Args:
        metric: "none" (standardised columns; only the bandwidth is chosen, by leave-one-out), "diagonal" (a
            factor for each column), "linear", "low_rank" (`width` directions) or "network".
        trend: "none", "linear", "network", or "auto": a network where the metric is one, else none.
        width: of a key, for "low_rank" and "network".
        hidden, layers: of the network.
        members: of the ensemble; "auto": 8, fewer above 8,000 rows or below 128.
        max_steps: of learning; "auto": 600 to 1,000, more where that does not pass once over all rows.
        patience: steps without a better error on the rows held out before learning ends.
        batch_size: rows that are predicted in one step; "auto": a quarter of the rows, from 32 to 512.
        candidates: rows they are predicted from in one step; where there are more, a sample drawn anew each
            time.
        learning_rate, weight_decay, dropout: of learning, by AdamW; a rate of "auto" is 0.003 where there is
            a network and 0.03 elsewhere.
        bandwidth: h where it is to be fixed; None: learned, and settled for each output on rows held out.
        verbose: show a progress bar on stderr.
        random_state: of every draw.

    Attributes:
        keys_: `(members, rows, width)`, of the fitted rows.
        moved_: `(members or 1, rows, outputs)`, standardised values less their trend.
        parameters_: arrays of the metric, by name, with members first.
        features_: what the columns were encoded by.
        validation_loss_: `(members,)`, squared error on the rows held out, in variances of y.
        n_steps_: how many steps were made.
        n_features_in_, feature_names_in_: as everywhere in scikit-learn.

    Raises:
        OptionError: an option outside what is allowed (when fitted).
        MissingPackageError: PyTorch or scikit-learn is not installed (when imported).

    Source:
        Nadaraya (1964), On estimating regression; Watson (1964), Smooth regression analysis; Ye et al.
        (2025), Revisiting nearest neighbor for tabular data, https://arxiv.org/abs/2407.03257; the moved
        values: Gorishniy et al. (2024), TabR, https://arxiv.org/abs/2307.14338.

    Example:
        >>> import numpy as np
        >>> x = np.linspace(0, 6, 60)[:, None]
        >>> model = AttentionRegressor(metric="none").fit(x, np.sin(x[:, 0]))
        >>> model.predict([[1.5]]).round(2)
        array([1.])
    """

    def __init__(
        self,
        metric: str = "network",
        *,
        trend: str = "auto",
        width: int = 16,
        hidden: int = 128,
        layers: int = 2,
        members: int | str = "auto",
        max_steps: int | str = "auto",
        patience: int = 150,
        batch_size: int | str = "auto",
        candidates: int = 3072,
        learning_rate: float | str = "auto",
        weight_decay: float = 1e-3,
        dropout: float = 0.1,
        bandwidth: float | None = None,
        verbose: bool = False,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            metric,
            width=width,
            hidden=hidden,
            layers=layers,
            members=members,
            max_steps=max_steps,
            patience=patience,
            batch_size=batch_size,
            candidates=candidates,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            dropout=dropout,
            bandwidth=bandwidth,
            verbose=verbose,
            random_state=random_state,
        )
        self.trend = trend

    # -- scikit-learn's verbs ---------------------------------------------------------------------------

    def predict(self, X: Any) -> np.ndarray:
        """`(queries,)`, or `(queries, outputs)` as y was given; exact over all fitted rows."""
        return self._shaped(self._answer(X) * self.y_scale_ + self.y_mean_)

    def predict_std(self, X: Any) -> np.ndarray:
        """How far each answer may be off: one standard deviation of the error to expect.

            std(x)² = Σ_i w_i(x) e_i²

        e_i is the error of row i, predicted without itself by a member that did not learn from it;

        squares are averaged over members. It is of a member, and a little large for the mean of an ensemble.
        """
        import torch

        check_is_fitted(self, "keys_")
        asked, errors = torch.from_numpy(self.asked_), torch.from_numpy(self.errors_.astype(np.float64))
        if asked.shape[1] == 0:
            return self._shaped(np.full((len(self._asked(X)), len(self.y_mean_)), np.nan))
        squares = self._memory().errors(self._asked(X), asked, errors)
        return self._shaped(np.sqrt(np.maximum(squares, 0.0)) * self.y_scale_)

    def explain_rows(self, X: Any, top: int = 10, output: int = 0) -> Explained:
        """The fitted rows that each answer rests on, heaviest first.

        Args:
            X: queries.
            top: how many rows for each.
            output: which, where a row has several values.

        Returns:
            rows, weights and values, `(queries, top)` each. Over all rows weights add up to 1, and weights
            times values to the prediction.
        """
        check_is_fitted(self, "keys_")
        outputs = len(self.y_mean_)
        if not 0 <= output < outputs:
            raise OptionError(f"output is {output}, and a number from 0 to {outputs - 1} is wanted.")
        found = self._explain(X, top, output)
        return found._replace(values=found.values * self.y_scale_[output] + self.y_mean_[output])

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Remember more rows; the metric, the trend and the bandwidth stay as the first call learned them.

        The answers are exactly those of the learned metric over all rows seen so far.
        """
        if not hasattr(self, "keys_"):
            return self.fit(X, y)
        return self._partial_fit(X, y)

    # -- within -----------------------------------------------------------------------------------------

    def _trend(self) -> str:
        if self.trend != "auto":
            return self.trend
        return "network" if self.metric == "network" else "none"

    def _check_options(self) -> None:
        super()._check_options()
        if self.trend not in _TRENDS:
            raise OptionError(f"the trend is {self.trend!r}, and one of {', '.join(_TRENDS)} is wanted.")

    def _check_y(self, y: Any) -> np.ndarray:
        y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y", estimator=self)
        return np.asarray(y if y.ndim == 2 and y.shape[1] > 1 else column_or_1d(y, warn=False))

    def _learn_values(self, y: np.ndarray, shares: np.ndarray | None) -> np.ndarray:
        self._single = y.ndim == 1
        table = y.reshape(len(y), -1)
        self.y_mean_ = np.average(table, axis=0, weights=shares)
        spread = np.sqrt(np.average((table - self.y_mean_) ** 2, axis=0, weights=shares))
        self.y_scale_ = np.where(spread > 1e-12 * np.abs(self.y_mean_), spread, 1.0)
        return self._values(y)

    def _values(self, y: np.ndarray) -> np.ndarray:
        table = y.reshape(len(y), -1)
        if table.shape[1] != len(self.y_mean_):
            raise OptionError(f"y has {table.shape[1]} outputs, and it had {len(self.y_mean_)} when fitted.")
        return np.asarray((table - self.y_mean_) / self.y_scale_, np.float32)

    def _shaped(self, found: np.ndarray) -> np.ndarray:
        return np.asarray(found[:, 0] if self._single else found)
