"""The class `AttentionRegressor`, which is Nadaraya–Watson regression with a learned metric."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d

from qkv.core.cell_kinds import object_kind
from qkv.core.checks import check_choice
from qkv.core.typing import ArrayLike, Float, Shaped
from qkv.errors import DataError, OptionError, RefusedError
from qkv.estimators.base import AttentionEstimator
from qkv.estimators.features import Features, encode_columns
from qkv.estimators.fitted_rows import RowExplanation
from qkv.estimators.fragment_fit import FittedFragments, fit_fragments
from qkv.estimators.interval_calibration import IntervalCalibration, calibrate_intervals
from qkv.kernels.runtime.context import with_torch_defaults

_TRENDS = ("auto", "none", "linear", "network")


@dataclass(eq=False, repr=False, kw_only=True)
class AttentionRegressor(RegressorMixin, AttentionEstimator):  # type: ignore[misc]
    """Nadaraya–Watson regression with a learned metric.

        estimate(x) = Σ_i w_i(x) (y_i + t(x) − t(x_i))        w_i(x) = softmax_i(−‖k(x) − k(x_i)‖² / 2h²)

    Every fitted row contributes to every prediction. The keys k and the trend t are learned so that rows predict
    each other well; the trend shifts a row's value by the difference between the query's position and its own.
    Without a trend this is the Nadaraya–Watson estimate. An ensemble is trained at once, each member with its own
    held-out rows for early stopping; a prediction is the mean over the members. Numbers are standardized; strings,
    categories and missing cells are encoded.

    Args:
        metric: "none" (standardized columns; only the bandwidth is chosen, by leave-one-out), "diagonal" (one
            factor per column), "linear", "low_rank" (`n_components` directions) or "network".
        trend: "none", "linear", "network", or "auto": "network" if the metric is "network", otherwise "none".
        effort: "quick", "standard" or "best": the options that are "auto". A fit takes about 2 to 3, 8 to
            15 and 100 to 700 times as long as histogram gradient boosting; docs/estimators.md shows the errors.
        n_components: width of a key, for "low_rank" and "network".
        hidden: hidden units per layer of the network; "auto": 64, and 128 with effort "best".
        layers: layers of the network.
        n_estimators: size of the ensemble; "auto": at most 1, 3 or 8 by effort, fewer in tables that are very small,
            have more than 8,000 rows ("best"), or hold little noise ("standard").
        max_steps: maximum number of training steps of a member; "auto": 150 to 225, 250 to 900, or with effort
            "best" 600 to 1,000 and at least one epoch.
        max_seconds: time after which the training of the metric stops; None means no limit. The learning rate decreases
            accordingly, so a shorter time gives a complete but less exact fit.
        patience: steps without a smaller validation loss before training stops.
        batch_size: rows that are predicted in one training step; "auto": a part of the rows between 32 and 1,024.
        candidates: rows from which a batch is predicted; if there are more rows, a random sample in every step. 0 means
            the rows of the batch. "auto": 3072 with effort "best", otherwise 0.
        learning_rate: learning rate of AdamW; "auto": 0.01 with a network, in tables of 512 rows or more 0.02, with
            effort "best" 0.003, and 0.03 without a network.
        weight_decay: weight decay of AdamW.
        dropout: dropout probability of hidden units.
        bandwidth: fixed bandwidth h; None means learned, then chosen for each output on out-of-bag rows.
        verbose: whether a progress bar with the remaining time is shown on stderr; None: if stderr is a terminal and
            the fit takes more than half a second.
        random_state: seed or generator of all random numbers.

    Attributes:
        keys_: keys of the fitted rows, `(members, rows, width)`.
        residuals_: standardized values minus the trend, `(members or 1, rows, outputs)`.
        parameters_: parameters of the metric by name, members first.
        features_: encoding of the columns.
        out_of_bag_rows_: rows that each member was not trained on, `(members, n)`.
        validation_loss_: mean squared error of each member on its out-of-bag rows, `(members,)`.
        sample_weight_: weights of the fitted rows, or None.
        used_rows_: which of the given rows are fitted: those of positive weight. None: all.
        n_steps_: number of training steps.
        n_features_in_, feature_names_in_: as in every estimator of scikit-learn.

    Raises:
        OptionError: when fitted, if an option is not allowed.
        MissingPackageError: when imported, if PyTorch or scikit-learn is not installed.

    Source:
        Nadaraya (1964), On estimating regression; Watson (1964), Smooth regression analysis; Ye et al.
        (2025), Revisiting nearest neighbor for tabular data, https://arxiv.org/abs/2407.03257; the shifted
        values: Gorishniy et al. (2024), TabR, https://arxiv.org/abs/2307.14338.

    Example:
        >>> import numpy as np
        >>> x = np.linspace(0, 6, 60)[:, None]
        >>> model = AttentionRegressor(metric="none").fit(x, np.sin(x[:, 0]))
        >>> model.predict([[1.5]]).round(2)
        array([1.])
    """

    trend: str = "auto"

    def fit(self, X: ArrayLike, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None) -> Self:
        """Train the metric on rows and their values, and store the rows for prediction.

        Args:
            X: `(rows, columns)`: an array of numbers, or a frame of pandas, polars or pyarrow with numbers,
                strings, categories, booleans and timestamps. Cells may be missing. Or a database that
                `Database.open` or `Database.create` returned for a store: its key columns are the features, its
                value column is y, and its rows stay in the store, whose fragments compute the sums of every
                prediction (in the workers of its cluster, if it has one). A metric is then learned from at most
                131,072 rows; all rows choose the bandwidth and predict. Rows without a value are left out.
            y: value of each row; None with a database.
            sample_weight: non-negative weight of each row. Rows of weight 0 are ignored. None with a database.

        Returns:
            The fitted estimator.

        Raises:
            OptionError: if an option is not allowed.
            DataError: if a number is infinite, or no row has a positive weight.

        Example:
            >>> import tempfile
            >>> import pyarrow as pa
            >>> from qkv import Database
            >>> x = np.linspace(0, 6, 60)
            >>> rows = Database.create(tempfile.mkdtemp() + "/rows", {"x": x, "y": np.sin(x)}, "x", "y")
            >>> AttentionRegressor(metric="none").fit(rows).predict(pa.table({"x": [1.5]})).round(2)
            array([1.])
        """
        self.__dict__.pop("_cached_fragments", None)
        if not hasattr(X, "row_fragments"):
            return super().fit(X, y, sample_weight)
        if y is not None or sample_weight is not None:
            raise OptionError("y and sample_weight must be None with a database, whose value column is y. Omit them.")
        self._check_options()
        for name in ("keys_", "residuals_", "rows_"):
            self.__dict__.pop(name, None)
        self._cached_fragments = fit_fragments(self, X.row_fragments())
        return self

    def predict(self, X: ArrayLike) -> Float[np.ndarray, " queries *outputs"]:
        """Return the prediction for each query, computed from all fitted rows.

        Predictions have shape `(queries,)`, or `(queries, outputs)` if y had several outputs.
        """
        return self._like_y(self._predict(X) * self.y_scale_ + self.y_mean_)

    def _predict(self, X: ArrayLike | Features) -> Float[np.ndarray, "queries outputs"]:
        fitted: FittedFragments | None = vars(self).get("_cached_fragments")
        if fitted is None:
            return super()._predict(X)
        if isinstance(X, Features):
            return fitted.predict(X)
        return fitted.predict(encode_columns(self.features_, self._read_columns(X, reset=False)[0]))

    def _check_rows(self) -> None:
        """Raise an error if the fitted rows are not in memory."""
        if vars(self).get("_cached_fragments") is not None:
            raise RefusedError(
                "the fitted rows must be in memory for all but fit and predict, but they are in the fragments of a "
                "store. Fit the estimator to a frame of these rows."
            )
        check_is_fitted(self, "keys_")

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted estimator to a file atomically, with checksums; see `SavedEstimator.save`."""
        self._check_rows()
        super().save(path)

    @with_torch_defaults
    def predict_interval(
        self, X: ArrayLike, level: float = 0.9
    ) -> tuple[Float[np.ndarray, " queries *outputs"], Float[np.ndarray, " queries *outputs"]]:
        """Return the ends of intervals that contain the value of a new row with a given probability.

        Intervals are calibrated on the leave-one-out errors of at most 2,000 out-of-bag rows, when this method or
        `predict_std` is called for the first time. They are wider where rows are hard to predict, and far from the
        fitted rows.

            prediction(x) + κ g(x) [a, b]

        g is the local scale of the errors; a and b are the ⌈p (n + 1)⌉-th smallest of n errors divided by g; κ
        corrects for the errors of an ensemble, which are smaller than those of its members.

        Args:
            X: queries.
            level: probability of a value in its interval, on average over rows like the fitted ones.

        Returns:
            The lower and the upper ends, in the shape of the predictions; NaN without out-of-bag rows.

        Raises:
            OptionError: if `level` is not between 0 and 1.

        Source:
            Lei et al. (2018), Distribution-free predictive inference for regression; Barber et al. (2021),
            Predictive inference with the jackknife+.

        Example:
            >>> import numpy as np
            >>> x = np.linspace(0, 6, 300)[:, None]
            >>> y = np.sin(x[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=300)
            >>> low, high = AttentionRegressor(metric="none").fit(x, y).predict_interval([[1.5]])
            >>> bool(low[0] < np.sin(1.5) < high[0])
            True
        """
        if not isinstance(level, int | float | np.floating) or not 0.0 < level < 1.0:
            raise OptionError(f"level must be above 0 and below 1, got {level!r}. Pass 0.9 for 90 %.")
        self._check_rows()
        features = self._query_features(X)
        calibration = self._intervals()
        predicted = self._fitted_rows().predict(features)
        if calibration is None:
            ends = np.full((2, *predicted.shape), np.nan)
        else:
            ends = predicted + calibration.ends(features, float(level))
        lower, upper = (self._like_y(each * self.y_scale_ + self.y_mean_) for each in ends)
        return lower, upper

    @with_torch_defaults
    def predict_std(self, X: ArrayLike) -> Float[np.ndarray, " queries *outputs"]:
        """Return the expected error of each prediction, as a standard deviation in the unit of `y`.

            std(x)² = κ² g(x)² mean(e_i² / g(x_i)²)

        e_i are leave-one-out errors of out-of-bag rows; see `predict_interval` for κ and g. Errors are not normal in
        general: use `predict_interval` for intervals.
        """
        self._check_rows()
        features = self._query_features(X)
        calibration = self._intervals()
        if calibration is None:
            return self._like_y(np.full((len(features), len(self.y_mean_)), np.nan))
        return self._like_y(calibration.deviations(features) * self.y_scale_)

    def _intervals(self) -> IntervalCalibration | None:
        cached = vars(self).get("_cached_intervals")
        # After `fit` and `partial_fit`, the arrays are others.
        if cached is None or cached[0] is not self.keys_ or cached[1] is not self.out_of_bag_rows_:
            calibration = calibrate_intervals(self._fitted_rows(), self.out_of_bag_rows_)
            cached = self.keys_, self.out_of_bag_rows_, calibration
            self._cached_intervals = cached
        found: IntervalCalibration | None = cached[2]
        return found

    def explain_rows(self, X: ArrayLike, top: int = 10, output: int = 0) -> RowExplanation:
        """Return for each query the fitted rows with the largest weights in its prediction, by descending weight.

        Args:
            X: queries.
            top: number of rows per query.
            output: index of the output to explain, where rows have several values.

        Returns:
            Rows, weights and values, `(queries, top)` each. Over all rows, weights sum to 1, and weights times
            values to the prediction.

        Raises:
            OptionError: if `top` or `output` is out of range.
        """
        self._check_rows()
        outputs = len(self.y_mean_)
        if isinstance(output, bool) or not isinstance(output, int | np.integer) or not 0 <= output < outputs:
            raise OptionError(
                f"output must be an integer from 0 to {outputs - 1}, got {output!r}. Pass the number of a column of y."
            )
        explanation = self._explain(X, top, output)
        return explanation._replace(values=explanation.values * self.y_scale_[output] + self.y_mean_[output])

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Store further rows for prediction. If the model is not fitted, learn metric, trend and bandwidth.

        Predictions are exactly those of the learned metric over all rows so far.

        Args:
            X: rows, as in `fit`.
            y: value of each row.

        Returns:
            The fitted estimator.
        """
        if vars(self).get("_cached_fragments") is not None:
            self._check_rows()
        if not hasattr(self, "keys_"):
            return self.fit(X, y)
        return self._add_rows(X, y)

    def _trend(self) -> str:
        if self.trend != "auto":
            return self.trend
        return "network" if self.metric == "network" else "none"

    def _check_options(self) -> None:
        super()._check_options()
        check_choice("trend", self.trend, _TRENDS)

    def _check_y(self, y: ArrayLike) -> Shaped[np.ndarray, "rows ..."]:
        kind = getattr(getattr(y, "dtype", None), "kind", "")
        first = next(iter(np.asarray(y, object).ravel().tolist()), 0.0) if kind in ("", "O") else 0.0
        if kind in ("m", "M") or object_kind(type(first)) in ("date", "time", "duration"):
            raise DataError(
                "y must hold numbers, got dates or times. Convert them, for example to days since the first."
            )
        y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y", estimator=self)
        return np.asarray(y if y.ndim == 2 and y.shape[1] > 1 else column_or_1d(y, warn=False))

    def _fit_targets(
        self, y: Shaped[np.ndarray, "rows ..."], weights: Float[np.ndarray, " rows"] | None
    ) -> Float[np.ndarray, "rows outputs"]:
        self._single = y.ndim == 1
        table = y.reshape(len(y), -1)
        self.y_mean_ = np.average(table, axis=0, weights=weights)
        centred = table - self.y_mean_
        unit = np.abs(centred).max(axis=0)  # squares of numbers such as 1e200 would overflow
        unit[unit == 0] = 1.0
        spread = unit * np.sqrt(np.average(np.square(centred / unit), axis=0, weights=weights))
        self.y_scale_ = np.where(spread > 1e-12 * np.abs(self.y_mean_), spread, 1.0)
        return self._encode_targets(y)

    def _encode_targets(self, y: Shaped[np.ndarray, "rows ..."]) -> Float[np.ndarray, "rows outputs"]:
        table = y.reshape(len(y), -1)
        if table.shape[1] != len(self.y_mean_):
            raise OptionError(
                f"y must have {len(self.y_mean_)} outputs like the y of the first call, got {table.shape[1]}. Pass one "
                "column for each output."
            )
        return np.asarray((table - self.y_mean_) / self.y_scale_, np.float32)

    def _check_outputs(self, outputs: int) -> None:
        if self.y_mean_.shape != (outputs,) or self.y_scale_.shape != (outputs,) or not isinstance(self._single, bool):
            raise ValueError(f"y_mean_ and y_scale_ must have {outputs} elements")

    def _like_y(self, table: Shaped[np.ndarray, "rows outputs"]) -> Shaped[np.ndarray, "rows ..."]:
        return np.asarray(table[:, 0] if self._single else table)
