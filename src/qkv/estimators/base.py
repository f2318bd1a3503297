"""What the attention estimators share: reading a table, learning a metric, keeping rows, adding more."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np

from qkv.core.progress import ProgressBar
from qkv.errors import DataError, MissingPackageError, OptionError
from qkv.estimators.features import Features, columns_of, is_frame, learn_features, sizes_of, use_features

try:
    import torch
    from sklearn.base import BaseEstimator
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

    from qkv.estimators.bandwidth_search import LADDER, NEARBY, settle
    from qkv.estimators.fitted_rows import Explained, Memory
    from qkv.estimators.metric import METRICS, Metric
    from qkv.estimators.metric_learning import Learned, Recipe, keys_of, learn
except ImportError as error:
    raise MissingPackageError(
        f'estimators need scikit-learn and PyTorch, and there is no {error.name}. Run: pip install "qkv[learn]"'
    ) from None

__all__ = ["AttentionEstimator"]

_ENSEMBLE_ROWS = 64_000
_MOST_MEMBERS = 8
_TOO_FEW = 16
_STEPS = 600, 1000
_SETTLED_ON = 4096


class AttentionEstimator(BaseEstimator, ABC):  # type: ignore[misc]
    """The base of `AttentionRegressor` and `AttentionClassifier`; see there."""

    _shares = False
    keys_: np.ndarray
    moved_: np.ndarray

    def __init__(
        self,
        metric: str = "network",
        *,
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
        self.metric = metric
        self.width = width
        self.hidden = hidden
        self.layers = layers
        self.members = members
        self.max_steps = max_steps
        self.patience = patience
        self.batch_size = batch_size
        self.candidates = candidates
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.dropout = dropout
        self.bandwidth = bandwidth
        self.verbose = verbose
        self.random_state = random_state

    # -- fitting ----------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn the metric from rows and their values, and keep the rows.

        Args:
            X: `(rows, columns)`: an array of numbers, or a frame of pandas, polars or pyarrow with numbers,
                texts, categories, booleans and moments. Cells may be missing.
            y: the value of each row.
            sample_weight: of each row, 0 or more. A row of weight 0 is left out.

        Raises:
            OptionError: an option outside what is allowed.
            DataError: infinite numbers, or no row of positive weight.
        """
        self._check_options()
        columns, y = self._read(X, y)
        shares = None
        if sample_weight is not None:
            shares = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            kept = shares > 0
            if not kept.any():
                raise DataError("every sample_weight is 0, so no row is left to fit. Give some a weight.")
            columns, y, shares = [column[kept] for column in columns], y[kept], shares[kept]
            shares = None if np.ptp(shares) == 0 else shares / shares.mean()
        values = self._learn_values(y, shares)
        self.features_ = learn_features(columns, self.metric == "network" or self._trend() == "network")
        features = use_features(self.features_, columns)
        metric = self._metric(values.shape[1])
        recipe = self._recipe(len(features))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with ProgressBar(always=True) as bar:
            task = f"metric learning ({self.metric})"

            def progress(step: int, steps: int, error: float) -> None:
                bar(task, step, steps, f"error {error:.4g}")

            learned = learn(metric, features, values, shares, recipe, seed, progress if self.verbose else None)
        self._settle(metric, learned, features, values, shares, seed)
        self.rows_ = {"numbers": features.numbers, "codes": features.codes, "values": values}
        self.shares_ = None if shares is None else shares
        self.n_steps_ = learned.steps
        return self

    def _partial_fit(self, X: Any, y: Any) -> Self:
        """Rows that are remembered besides, under the metric as it is."""
        columns, y = self._read(X, y, reset=False)
        features, values = use_features(self.features_, columns), self._values(y)
        metric = self._metric(values.shape[1])
        keys, trends = keys_of(metric, self._tensors(np.float32), features)
        moved = values[None] if trends is None else values[None] - trends.numpy()
        self.keys_ = np.concatenate([self.keys_, keys.numpy()], axis=1)
        self.moved_ = np.concatenate([self.moved_, moved], axis=1)
        more = {"numbers": features.numbers, "codes": features.codes, "values": values}
        self.rows_ = {name: np.concatenate([self.rows_[name], more[name]]) for name in more}
        if self.shares_ is not None:
            self.shares_ = np.concatenate([self.shares_, np.ones(len(features))])
        return self

    # -- answering --------------------------------------------------------------------------------------

    def _answer(self, X: Any) -> np.ndarray:
        return self._memory().predict(self._asked(X))

    def _explain(self, X: Any, top: int, output: int) -> Explained:
        if isinstance(top, bool) or not isinstance(top, int | np.integer) or top < 1:
            raise OptionError(f"top is {top!r}, and a whole number from 1 is wanted.")
        return self._memory().explain(self._asked(X), int(top), output)

    def _asked(self, X: Any) -> Features:
        """Queries as the metric sees them; `Features` are already."""
        check_is_fitted(self, "keys_")
        return X if isinstance(X, Features) else use_features(self.features_, self._columns(X, reset=False))

    def _memory(self) -> Memory:
        check_is_fitted(self, "keys_")
        parameters = self._tensors(np.float64)
        return Memory(
            self._metric(self.moved_.shape[2]),
            parameters,
            torch.from_numpy(self.keys_.astype(np.float64)),
            torch.from_numpy(self.moved_.astype(np.float64)),
            None if self.shares_ is None else torch.from_numpy(self.shares_)[:, None],
            parameters["log_bandwidth"].exp(),
        )

    # -- within -----------------------------------------------------------------------------------------

    def _trend(self) -> str:
        return "none"

    @abstractmethod
    def _learn_values(self, y: np.ndarray, shares: np.ndarray | None) -> np.ndarray:
        """What is learned from: standardised values, or shares of classes."""

    @abstractmethod
    def _values(self, y: np.ndarray) -> np.ndarray:
        """What rows say when they answer."""

    @abstractmethod
    def _check_y(self, y: Any) -> np.ndarray:
        """y as it is kept."""

    def _columns(self, X: Any, reset: bool, y: Any = "no_validation") -> Any:
        """Columns, and y as scikit-learn has checked it where there is one."""
        if is_frame(X):
            validate_data(self, X, reset=reset, skip_check_array=True)
            columns = columns_of(X)
            if not columns or len(columns[0]) == 0:
                raise ValueError(
                    f"Found array with {len(columns[0]) if columns else 0} sample(s) and {len(columns)} "
                    f"feature(s) while a minimum of 1 is required by {type(self).__name__}."
                )
            return columns
        if _has_objects(X):
            array = validate_data(self, X, reset=reset, dtype=object, ensure_all_finite=False)
        else:
            array = validate_data(self, X, reset=reset, dtype=[np.float64, np.float32], ensure_all_finite="allow-nan")
        return columns_of(array)

    def _read(self, X: Any, y: Any, reset: bool = True) -> tuple[list[np.ndarray], np.ndarray]:
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        columns = self._columns(X, reset)
        y = self._check_y(y)
        if len(y) != len(columns[0]):
            raise ValueError(f"Found input variables with inconsistent numbers of samples: {[len(columns[0]), len(y)]}")
        return columns, y

    def _metric(self, outputs: int) -> Metric:
        numbers, sizes = sizes_of(self.features_)
        trend = self._trend()
        return Metric(
            self.metric,
            numbers,
            tuple(sizes),
            outputs,
            trend,
            self.width,
            self.hidden,
            self.layers,
            self._shares,
        )

    def _recipe(self, rows: int) -> Recipe:
        fixed = self.metric == "none" and self._trend() == "none"
        rate = self.learning_rate
        if rate == "auto":
            # Factors and directions start at 1 and must go far; a network need not.
            rate = 3e-3 if self._metric(1).deep else 3e-2
        members = self.members
        if members == "auto":
            members = max(1, min(_MOST_MEMBERS, _ENSEMBLE_ROWS // rows, rows // _TOO_FEW))
        batch = max(32, min(512, rows // 4)) if self.batch_size == "auto" else self.batch_size
        steps = self.max_steps
        if steps == "auto":
            # Up to thirty passes over the rows, and at least one.
            steps = max(_STEPS[0], min(_STEPS[1], 30 * rows // int(batch)), -(-rows // int(batch)))
        if fixed or rows < _TOO_FEW:
            members, steps = 1, 0
        return Recipe(
            int(members),
            int(steps),
            int(batch),
            self.candidates,
            float(rate),
            self.weight_decay,
            self.dropout,
            self.patience,
        )

    def _settle(
        self,
        metric: Metric,
        learned: Learned,
        features: Features,
        values: np.ndarray,
        shares: np.ndarray | None,
        seed: int,
    ) -> None:
        keys, trends = keys_of(metric, learned.parameters, features)
        held = torch.from_numpy(learned.held)
        bandwidth = learned.parameters["log_bandwidth"].detach().exp()
        ratios: tuple[float, ...] = NEARBY
        if learned.steps == 0:
            # Nothing was learned from any row: all may be asked.
            order = np.random.default_rng(seed).permutation(len(features))[:_SETTLED_ON]
            held = torch.from_numpy(order)[None].repeat(len(keys), 1)
            ratios = tuple(rung * max(1, metric.plain_width) ** 0.5 for rung in LADDER)
        if self.bandwidth is not None:
            bandwidth, ratios = torch.full_like(bandwidth, self.bandwidth), (1.0,)
        weights = None if shares is None else torch.from_numpy(shares.astype(np.float32))[:, None]
        known = torch.from_numpy(values)
        found = settle(keys, trends, known, weights, held, bandwidth, ratios, metric.shares)
        parameters = {name: each.detach().numpy() for name, each in learned.parameters.items()}
        parameters["log_bandwidth"] = found.bandwidth.log().numpy()
        self.parameters_ = parameters
        self.keys_ = keys.numpy()
        self.moved_ = (known[None] if trends is None else known[None] - trends).numpy()
        self.asked_, self.errors_ = found.asked.numpy(), found.errors.numpy()
        self.validation_loss_ = found.loss.numpy().astype(np.float64)

    def _tensors(self, dtype: Any) -> dict[str, Any]:
        return {name: torch.from_numpy(each.astype(dtype)) for name, each in self.parameters_.items()}

    def _check_options(self) -> None:
        if self.metric not in METRICS:
            raise OptionError(f"the metric is {self.metric!r}, and one of {', '.join(METRICS)} is wanted.")
        wanted = ("width", 1), ("hidden", 1), ("layers", 1), ("patience", 1), ("candidates", 2)
        automatic = ("members", 1), ("max_steps", 0), ("batch_size", 1)
        for name, least in (*wanted, *automatic):
            n = getattr(self, name)
            if (name, least) in automatic and n == "auto":
                continue
            if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < least:
                raise OptionError(f"{name} is {n!r}, and a whole number from {least} is wanted.")
        if isinstance(self.learning_rate, str) and self.learning_rate != "auto":
            raise OptionError(f"learning_rate is {self.learning_rate!r}, and a number or 'auto' is wanted.")
        rate, decay, dropout, h = self.learning_rate, self.weight_decay, self.dropout, self.bandwidth
        for name, number, allowed, said in (
            ("learning_rate", rate, isinstance(rate, str) or rate > 0, "a positive number"),
            ("weight_decay", decay, decay >= 0, "a number from 0"),
            ("dropout", dropout, 0 <= dropout < 1, "a number from 0 to below 1"),
            ("bandwidth", h, h is None or h > 0, "a positive number or None"),
        ):
            if not allowed:
                raise OptionError(f"{name} is {number!r}, and {said} is wanted.")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        tags.target_tags.multi_output = not self._shares
        return tags


def _has_objects(X: Any) -> bool:
    """Arrays of objects or text, and lists in which some cell is a text."""
    if isinstance(X, np.ndarray):
        return X.dtype.kind in "OUS"
    return isinstance(X, list) and any(
        isinstance(cell, str) for row in X if isinstance(row, list | tuple) for cell in row
    )
