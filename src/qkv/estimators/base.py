"""The class `AttentionEstimator`, which is the base class of the attention regressor and classifier."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import DTypeLike
from sklearn.utils import Tags, check_consistent_length, check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from qkv.core.cell_kinds import is_missing, object_kind
from qkv.core.checks import check_choice, check_integers
from qkv.core.progress import ProgressBar
from qkv.core.threads import one_blas_thread
from qkv.core.typing import ArrayLike, Bool, Float, Int, Shaped
from qkv.errors import DataError, OptionError
from qkv.estimators.bandwidth_search import (
    BATCH_GRID,
    LOCAL_GRID,
    SEARCH_ROWS,
    SMALL_GRID,
    UNIFORM_GRID,
    WIDE_GRID,
    search_bandwidth,
)
from qkv.estimators.batch_training import TrainingOptions
from qkv.estimators.effort import EFFORTS, SMALL_TABLE
from qkv.estimators.features import (
    Features,
    decode_columns,
    encode_columns,
    encoding_sizes,
    fit_encoding,
    has_linear_part,
    require_kinds,
)
from qkv.estimators.fitted_rows import FittedRows, RowExplanation
from qkv.estimators.input_columns import column_names, is_frame, read_table
from qkv.estimators.metric import METRICS, Metric, Parameters
from qkv.estimators.metric_learning import TrainedMetric, as_tensors, embed_rows, residuals, train_metric
from qkv.estimators.row_tree import MIN_TREE_ROWS, RowTree, build_row_trees
from qkv.estimators.saved_estimator import SavedEstimator
from qkv.kernels.runtime.context import with_torch_defaults


def check_fitted_arrays(estimator: AttentionEstimator, rows: Features, outputs: int) -> None:
    """Raise ValueError if shapes, codes or indices do not fit each other."""
    count = len(estimator.rows_["values"])
    shapes = {
        "keys_": (estimator.keys_, (len(estimator.keys_), count, estimator.keys_.shape[2])),
        "residuals_": (estimator.residuals_, (len(estimator.residuals_), count, outputs)),
        "numbers": (
            rows.numbers,
            (count, encoding_sizes(estimator.features_)[0] * (1 + has_linear_part(estimator.features_))),
        ),
        "codes": (rows.codes, (count, len(encoding_sizes(estimator.features_)[1]))),
        "out_of_bag_rows_": (estimator.out_of_bag_rows_, (len(estimator.keys_), estimator.out_of_bag_rows_.shape[1])),
    }
    if estimator.sample_weight_ is not None:
        shapes["sample_weight_"] = (estimator.sample_weight_, (count,))
    used = estimator._used_rows()
    if used is not None:
        shapes["used_rows_"] = (np.flatnonzero(used), (count,))
    for name, (array, shape) in shapes.items():
        if array.shape != shape:
            raise ValueError(f"{name} must have shape {shape}, got {array.shape}")
    for codes, size in zip(rows.codes.T, encoding_sizes(estimator.features_)[1], strict=True):
        if codes.min() < 0 or codes.max() >= size:
            raise ValueError(f"codes must be from 0 to {size - 1}, got {codes.min()} to {codes.max()}")
    if (
        estimator.out_of_bag_rows_.size
        and not 0 <= estimator.out_of_bag_rows_.min() <= estimator.out_of_bag_rows_.max() < count
    ):
        raise ValueError(f"out_of_bag_rows_ must be from 0 to {count - 1}, got {estimator.out_of_bag_rows_.max()}")
    if not 0.0 <= vars(estimator).get("uniform_share_", 0.0) <= 1.0:
        raise ValueError(f"uniform_share_ must be from 0 to 1, got {estimator.uniform_share_}")


RandomState = int | np.random.RandomState | None
"""Random state as scikit-learn takes it."""

_MIN_TRAINING_ROWS = 16
_AUTOMATIC = {"n_estimators": 1, "max_steps": 0, "batch_size": 1, "hidden": 1, "candidates": 0}
_MINIMA = {"n_components": 1, "layers": 1, "patience": 1, **_AUTOMATIC}
"""Smallest values of the options that are integers; those of `_AUTOMATIC` may also be "auto"."""

_FORMER_NAMES = {
    "moved_": "residuals_",
    "shares_": "sample_weight_",
    "asked_": "out_of_bag_rows_",
    "members": "n_estimators",
    "width": "n_components",
}
"""Attributes and parameters of models that were saved by earlier versions, and their current names."""


@dataclass(eq=False, repr=False)
class AttentionEstimator(SavedEstimator, ABC):
    """Base class of `AttentionRegressor` and `AttentionClassifier`. Its fields are the options of both."""

    metric: str = "network"
    _: KW_ONLY
    effort: str = "standard"
    n_components: int = 16
    hidden: int | str = "auto"
    layers: int = 2
    n_estimators: int | str = "auto"
    max_steps: int | str = "auto"
    max_seconds: float | None = None
    patience: int = 150
    batch_size: int | str = "auto"
    candidates: int | str = "auto"
    learning_rate: float | str = "auto"
    weight_decay: float = 1e-3
    dropout: float = 0.1
    bandwidth: float | None = None
    verbose: bool | None = None
    random_state: RandomState = None

    _classification = False
    _former_names = _FORMER_NAMES

    # -- fit --------------------------------------------------------------------------------------------

    @with_torch_defaults
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train the metric on rows and their values, and store the rows for prediction.

        Args:
            X: `(rows, columns)`: an array of numbers, or a frame of pandas, polars or pyarrow with numbers,
                strings, categories, booleans and timestamps. Cells may be missing.
            y: value of each row.
            sample_weight: non-negative weight of each row. Rows of weight 0 are ignored.

        Returns:
            The fitted estimator.

        Raises:
            OptionError: if an option is not allowed.
            DataError: if a number is infinite, or no row has a positive weight.
        """
        self._check_options()
        columns, kinds, y = self._read_table(X, y)
        weights, used = None, None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            used = weights > 0
            if not used.any():
                raise DataError(
                    "sample_weight must be positive for at least one row, got only zeros. "
                    "Omit sample_weight to weigh all rows equally."
                )
            columns, y, weights = [column[used] for column in columns], y[used], weights[used]
            weights = None if np.ptp(weights) == 0 else weights / weights.mean()
        values = self._fit_targets(y, weights)
        network = self.metric == "network" or self._trend() == "network"
        self.features_ = fit_encoding(columns, network, self._trend() != "none", kinds)
        features = encode_columns(self.features_, columns)
        metric = self._build_metric(values.shape[1])
        options = self._training_options(len(features))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        # The products of a training step are so small that further threads of BLAS only wait for one another.
        with one_blas_thread(), ProgressBar(always=bool(self.verbose)) as bar:
            task = f"metric learning ({self.metric}, {self.effort})"

            def progress(step: int, steps: int, loss: float) -> None:
                bar(task, step, steps, f"loss {loss:.4g}")

            shown = self.verbose is not False
            trained = train_metric(metric, features, values, weights, options, seed, progress if shown else None)
            self._search_bandwidth(metric, trained, features, values, weights, seed)
        self.rows_ = {"numbers": features.numbers, "codes": features.codes, "values": values}
        self.sample_weight_: Float[np.ndarray, " rows"] | None = weights
        self.used_rows_: Bool[np.ndarray, " given"] | None = None if used is None or used.all() else used
        self.n_steps_ = trained.steps
        return self

    def _search_bandwidth(
        self,
        metric: Metric,
        trained: TrainedMetric,
        features: Features,
        values: Float[np.ndarray, "rows outputs"],
        weights: Float[np.ndarray, " rows"] | None,
        seed: int,
    ) -> None:
        keys, trends = embed_rows(metric, trained.parameters, *as_tensors(features))
        bandwidth, factors, out_of_bag = self._bandwidth_grid(metric, trained, len(features), seed)
        shares = UNIFORM_GRID if self._classification and self.bandwidth is None else (0.0,)
        found = search_bandwidth(
            keys.numpy(),
            None if trends is None else trends.numpy(),
            values,
            None if weights is None else weights.astype(np.float32)[:, None],
            out_of_bag,
            bandwidth,
            factors,
            metric.classification,
            EFFORTS[self.effort].search_pairs,
            together=self._is_small(len(features)),
            shares=shares,
        )
        self.uniform_share_ = found.uniform
        learned = {name: each.detach().numpy() for name, each in trained.parameters.items()}
        self.parameters_: dict[str, np.ndarray] = learned | {"log_bandwidth": np.log(found.bandwidth)}
        self.keys_: Float[np.ndarray, "members rows width"] = keys.numpy()
        self.residuals_: Float[np.ndarray, "members rows outputs"] = residuals(values, trends)
        self.out_of_bag_rows_: Int[np.ndarray, "members n"] = out_of_bag
        self.validation_loss_ = found.loss.astype(np.float64)

    def _bandwidth_grid(
        self, metric: Metric, trained: TrainedMetric, rows: int, seed: int
    ) -> tuple[Float[np.ndarray, "members bandwidths"], tuple[float, ...], Int[np.ndarray, "members n"]]:
        """Return bandwidths, the factors that multiply them, and the rows whose errors choose among the products."""
        bandwidth, out_of_bag = trained.parameters["log_bandwidth"].detach().exp().numpy(), trained.held_out
        factors: tuple[float, ...] = LOCAL_GRID if self._candidates() else BATCH_GRID
        factors = SMALL_GRID if self._is_small(rows) else factors
        if trained.steps == 0:
            # Nothing was trained, so every row is out of bag.
            out_of_bag = np.tile(np.random.default_rng(seed).permutation(rows)[:SEARCH_ROWS], (len(bandwidth), 1))
            factors = tuple(factor * max(1, metric.encoded_width) ** 0.5 for factor in WIDE_GRID)
        if self.bandwidth is not None:
            bandwidth, factors = np.full_like(bandwidth, self.bandwidth), (1.0,)
        return bandwidth, factors, out_of_bag

    @with_torch_defaults
    def _add_rows(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Store further rows for prediction, without changing the metric or the bandwidths."""
        columns, _, y = self._read_table(X, y, reset=False)
        features, values = encode_columns(self.features_, columns), self._encode_targets(y)
        metric = self._build_metric(values.shape[1])
        keys, trends = embed_rows(metric, self._tensors(np.float32), *as_tensors(features))
        self.keys_ = np.concatenate([self.keys_, keys.numpy()], axis=1)
        self.residuals_ = np.concatenate([self.residuals_, residuals(values, trends)], axis=1)
        added = {"numbers": features.numbers, "codes": features.codes, "values": values}
        self.rows_ = {name: np.concatenate([self.rows_[name], added[name]]) for name in added}
        if self.sample_weight_ is not None:
            self.sample_weight_ = np.concatenate([self.sample_weight_, np.ones(len(features))])
        if self._used_rows() is not None:
            self.used_rows_ = np.concatenate([self._used_rows(), np.ones(len(features), bool)])
        return self

    # -- predict ----------------------------------------------------------------------------------------

    @with_torch_defaults
    def _predict(self, X: ArrayLike | Features) -> Float[np.ndarray, "queries outputs"]:
        return self._fitted_rows().predict(self._query_features(X))

    @with_torch_defaults
    def _explain(self, X: ArrayLike | Features, top: int, output: int) -> RowExplanation:
        check_integers(top=top)
        found, used = self._fitted_rows().explain(self._query_features(X), int(top), output), self._used_rows()
        if used is None or isinstance(X, Features):  # `look` has the stored rows alone
            return found
        return found._replace(rows=np.flatnonzero(used)[found.rows])

    def _used_rows(self) -> Bool[np.ndarray, " given"] | None:
        """Return which of the rows given to `fit` are stored, or None: all are, as in models of earlier versions."""
        return vars(self).get("used_rows_")

    def _query_features(self, X: ArrayLike | Features) -> Features:
        check_is_fitted(self, "keys_")
        if isinstance(X, Features):  # encoded already, by `look`
            return X
        return encode_columns(self.features_, self._read_columns(X, reset=False)[0])

    def _fitted_rows(self) -> FittedRows:
        check_is_fitted(self, "keys_")
        parameters = self._tensors(np.float64)
        return FittedRows(
            self._build_metric(self.residuals_.shape[2]),
            parameters,
            torch.from_numpy(self.keys_.astype(np.float64)),
            torch.from_numpy(self.residuals_.astype(np.float64)),
            None if self.sample_weight_ is None else torch.from_numpy(self.sample_weight_)[:, None],
            parameters["log_bandwidth"].exp(),
            self._row_trees(),
            vars(self).get("uniform_share_", 0.0),
        )

    def _row_trees(self) -> Sequence[RowTree] | None:
        """Return the fitted rows of each member as a tree, which is built once, or None for few rows."""
        if self.keys_.shape[1] < MIN_TREE_ROWS:
            return None
        cached = vars(self).get("_cached_trees")
        if cached is None or cached[0] is not self.keys_:  # after `fit` and `partial_fit`, the array is another
            cached = self.keys_, build_row_trees(self.keys_, self.residuals_, self.sample_weight_)
            self._cached_trees = cached
        trees: Sequence[RowTree] = cached[1]
        return trees

    # -- shared steps -----------------------------------------------------------------------------------

    def _trend(self) -> str:
        return "none"

    @abstractmethod
    def _fit_targets(
        self, y: Shaped[np.ndarray, "rows ..."], weights: Float[np.ndarray, " rows"] | None
    ) -> Float[np.ndarray, "rows outputs"]:
        """Learn the encoding of `y`, and return the encoded values as a float32 array `(rows, outputs)`."""

    @abstractmethod
    def _encode_targets(self, y: Shaped[np.ndarray, "rows ..."]) -> Float[np.ndarray, "rows outputs"]:
        """Return `y` as a float32 array `(rows, outputs)` of standardized values or class indicators."""

    @abstractmethod
    def _check_y(self, y: ArrayLike) -> Shaped[np.ndarray, "rows ..."]:
        """Validate `y` and return it as an array."""

    def _read_columns(self, X: ArrayLike, reset: bool) -> tuple[list[Shaped[np.ndarray, " rows"]], list[str]]:
        """Return the columns and their kinds, which must be those of `fit` unless `reset` is True."""
        X = X.collect() if type(X).__name__ == "LazyFrame" else X
        mapping = isinstance(X, Mapping) and not hasattr(X, "shape")  # some sparse arrays are mappings
        if mapping or (isinstance(X, list) and any(isinstance(row, Mapping) for row in X)):
            what = "a list of records" if isinstance(X, list) else f"a {type(X).__name__}"
            raise DataError(f"X must be a frame or an array, got {what}. Pass, for example, pandas.DataFrame(X).")
        if is_frame(X):
            column_names(X)  # before scikit-learn reads the names
            validate_data(self, X, reset=reset, skip_check_array=True)
            columns, kinds = read_table(X)
            if not columns or len(columns[0]) == 0:
                raise ValueError(
                    f"Found array with {len(columns[0]) if columns else 0} sample(s) and {len(columns)} "
                    f"feature(s) while a minimum of 1 is required by {type(self).__name__}."
                )
        else:
            checks: dict[str, object] = {"dtype": [np.float64, np.float32], "ensure_all_finite": "allow-nan"}
            if _has_objects(X):
                checks = {"dtype": object, "ensure_all_finite": False}
            elif isinstance(X, np.ndarray) and X.dtype.kind in "iumM":  # large integers and dates keep their dtype
                checks = {"dtype": None}
            columns, kinds = read_table(validate_data(self, X, reset=reset, **checks))
        if not reset:
            require_kinds(self.features_, kinds)
        return columns, kinds

    def _read_table(
        self, X: ArrayLike, y: ArrayLike, reset: bool = True
    ) -> tuple[list[Shaped[np.ndarray, " rows"]], list[str], Shaped[np.ndarray, " rows *outputs"]]:
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        columns, kinds = self._read_columns(X, reset)
        category = str(getattr(y, "dtype", "")) == "category" or hasattr(getattr(y, "type", None), "index_type")
        if category and not self._classification:
            raise DataError("y must hold numbers, got categories. Convert them, or use AttentionClassifier.")
        # scikit-learn makes floats of the integers of pandas that can be missing.
        y = y.to_numpy() if hasattr(y, "notna") and y.ndim == 1 else y
        require_values(y)
        y = self._check_y(y)
        check_consistent_length(columns[0], y)
        return columns, kinds, y

    def _build_metric(self, outputs: int) -> Metric:
        numbers, sizes = encoding_sizes(self.features_)
        trend = self._trend()
        return Metric(
            self.metric,
            numbers,
            tuple(sizes),
            outputs,
            trend,
            self.n_components,
            EFFORTS[self.effort].hidden if isinstance(self.hidden, str) else self.hidden,
            self.layers,
            self._classification,
            numbers if has_linear_part(self.features_) else 0,
        )

    def _training_options(self, rows: int) -> TrainingOptions:
        effort, rate = EFFORTS[self.effort], self.learning_rate
        if rate == "auto":
            # Factors and directions start at 1 and change much; the weights of a network change less.
            rate = effort.rate(rows, self._classification) if self._build_metric(1).has_network else 3e-2
        members = self.n_estimators
        if members == "auto":
            most = effort.members if rows >= SMALL_TABLE else effort.small_members
            members = max(1, min(most, effort.ensemble_rows // rows))
        batch = effort.batch_size(rows, self._classification) if self.batch_size == "auto" else int(self.batch_size)
        steps = effort.steps(rows, batch) if self.max_steps == "auto" else self.max_steps
        if rows < _MIN_TRAINING_ROWS or self.metric == self._trend() == "none":
            members, steps = 1, 0
        return TrainingOptions(
            int(members),
            int(steps),
            batch,
            self._candidates(),
            float(rate),
            self.weight_decay,
            self.dropout,
            self.patience,
            math.inf if self.max_seconds is None else float(self.max_seconds),
            effort.most_steps(rows, batch, self._classification) if self.n_estimators == "auto" else math.inf,
            effort.validation_rows,
        )

    def _is_small(self, rows: int) -> bool:
        """Return whether a table is so small that all members have one factor, of a wider grid."""
        return rows < SMALL_TABLE and not self._candidates()

    def _candidates(self) -> int:
        return EFFORTS[self.effort].candidates if isinstance(self.candidates, str) else int(self.candidates)

    def _tensors(self, dtype: DTypeLike) -> Parameters:
        return {name: torch.from_numpy(each.astype(dtype)) for name, each in self.parameters_.items()}

    def _check_options(self) -> None:
        check_choice("metric", self.metric, METRICS)
        check_choice("effort", self.effort, tuple(EFFORTS))
        if not isinstance(self.candidates, str) and self.candidates == 1:
            raise OptionError("candidates must be 0 or at least 2, got 1. Pass 0 to use the rows of the batch.")
        for name, minimum in _MINIMA.items():
            n = getattr(self, name)
            if not (n == "auto" and name in _AUTOMATIC):
                check_integers(minimum, **{name: n})
        rate, decay, dropout, h = self.learning_rate, self.weight_decay, self.dropout, self.bandwidth
        seconds = self.max_seconds
        positive_rate = rate == "auto" if isinstance(rate, str) else rate > 0
        for name, number, allowed, condition in (
            ("learning_rate", rate, positive_rate, "a positive number or 'auto'"),
            ("weight_decay", decay, decay >= 0, "a non-negative number"),
            ("dropout", dropout, 0 <= dropout < 1, "a number in [0, 1)"),
            ("bandwidth", h, h is None or h > 0, "a positive number or None"),
            ("max_seconds", seconds, seconds is None or seconds > 0, "a positive number or None"),
        ):
            if not allowed:
                raise OptionError(f"{name} must be {condition}, got {number!r}. Omit it to use the default.")

    def _check_state(self) -> None:
        self._check_options()
        rows = Features(self.rows_["numbers"], self.rows_["codes"])
        check_fitted_arrays(self, rows, self.rows_["values"].shape[1])
        first = Features(rows.numbers[:1], rows.codes[:1])
        columns = decode_columns(self.features_, first)
        if len(columns) != self.n_features_in_:
            raise ValueError(f"n_features_in_ must be {len(columns)}, got {self.n_features_in_}")
        predicted = self._predict(encode_columns(self.features_, columns))
        outputs = self.rows_["values"].shape[1]
        if predicted.shape != (1, outputs):
            raise ValueError(f"a prediction must have {outputs} outputs, got shape {predicted.shape}")
        self._check_outputs(outputs)

    @abstractmethod
    def _check_outputs(self, outputs: int) -> None:
        """Raise any exception if the fitted attributes of the values do not have this number of outputs."""

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__({_FORMER_NAMES.get(name, name): value for name, value in state.items()})

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        tags.target_tags.multi_output = not self._classification
        return tags


def _has_objects(X: ArrayLike) -> bool:
    """Return whether `X` is an array of objects or strings, or a list in which some cell is a text or a time."""
    if isinstance(X, np.ndarray):
        return X.dtype.kind in "OUS"
    types = {type(cell) for row in X if isinstance(row, list | tuple) for cell in row} if isinstance(X, list) else ()
    return any(object_kind(type_) in ("text", "date", "time", "duration") for type_ in types)


def require_values(values: ArrayLike, name: str = "y") -> None:
    """Raise a `DataError` that names the first missing value: None, NaN, NaT or `pandas.NA`, or values of two kinds.

    Floats are checked where they are read.
    """
    # NumPy would read NaN among texts as the text "nan".
    array = np.asarray(values, dtype=object if isinstance(values, list | tuple) else None)
    if array.dtype.kind in "biufcSU" or not array.ndim:
        return
    if array.dtype.kind in "mM":
        missing = np.flatnonzero(np.isnat(array.ravel()))
    else:
        cells = enumerate(array.ravel().tolist())
        missing = np.array([i for i, cell in cells if is_missing(cell)], np.int64)
    if len(missing):
        raise DataError(
            f"{name} must have no missing values, got {len(missing):,}, the first at index "
            f"{int(missing[0]) // (array.size // len(array)):,}: {array.ravel()[missing[0]]!s}. Leave out these rows."
        )
    kinds = sorted({object_kind(each) or "object" for each in set(map(type, array.ravel().tolist()))})
    if array.dtype == object and len(kinds) > 1:
        # NumPy would read numbers among texts as texts.
        raise DataError(
            f"{name} must hold values of one kind, got {' and '.join(kinds)}. Convert all of them to texts."
        )
