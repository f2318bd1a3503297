"""Fitting and prediction of a regressor whose rows stay in the fragments of a table, such as those of a cluster.

    encoding     medians, quartiles and frequent levels, column by column: by this process
    metric       learned from at most 131,072 rows, which are read here; `metric="none"` learns nothing
    bandwidth    leave-one-out sums over all rows, for each bandwidth of the grid: by the fragments
    predictions  sums over all rows: by the fragments

The fit is that of the same rows in memory, if there are no more rows than a metric is learned from.
"""

from __future__ import annotations

import copy
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from sklearn.utils import check_random_state

from qkv.core.partial import ExponentialSums
from qkv.core.typing import Float, Int
from qkv.engine import observe
from qkv.errors import DataError, KindError
from qkv.estimators.bandwidth_search import MIN_ROWS
from qkv.estimators.effort import EFFORTS
from qkv.estimators.features import Features, encode_columns, fit_column, join_columns
from qkv.estimators.fitted_rows import query_blocks
from qkv.estimators.input_columns import read_columns, read_table
from qkv.estimators.metric_learning import as_tensors, embed_rows, residuals, train_metric
from qkv.kernels.runtime.context import with_torch_defaults
from qkv.masks import Documents, Mask
from qkv.readouts import LogSumExp
from qkv.scores import Gaussian

if TYPE_CHECKING:
    import pyarrow as pa

    from qkv.estimators.base import AttentionEstimator


class RowFragments(Protocol):
    """The rows of a table whose fragments are read where they are, such as a store with the workers of a cluster.

    Attributes:
        key: names of the columns of features.
        value: name of the column of values.
    """

    key: tuple[str, ...]
    value: str

    def lengths(self) -> list[int]:
        """Return the number of rows of each fragment."""

    def read(self, names: tuple[str, ...], rows: Int[np.ndarray, " n"] | None = None) -> pa.Table:
        """Return some columns of all rows, or of the rows with some indices in ascending order."""

    def run(self, queries: FragmentQueries) -> ExponentialSums:
        """Return the merged partial results of all fragments, `(bandwidths, members, queries, outputs)`."""


@dataclass(frozen=True, eq=False)
class EmbeddedFragment:
    """Keys `(members, rows, width)` and values minus the trend `(members or 1, rows, outputs)` of a fragment's rows."""

    keys: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, eq=False)
class FragmentQueries:
    """Queries to an estimator whose fitted rows are in the fragments of a table, as they are sent to the workers.

    Attributes:
        name: the name of the fit, under which a worker keeps the keys of its fragments.
        estimator: the estimator with its encoding and its metric, without rows.
        key, value: names of the columns.
        starts: for each fragment, the number of rows with a value before it.
        query: keys of the queries `(members, queries, width)`, in float64.
        bandwidth: bandwidths `(bandwidths, members)`, each of which is a separate result.
        own: for each member and query, the index of the row that does not contribute; None for none.
    """

    name: str
    estimator: AttentionEstimator
    key: tuple[str, ...]
    value: str
    starts: Int[np.ndarray, " fragments"]
    query: Float[np.ndarray, "members queries width"]
    bandwidth: Float[np.ndarray, "bandwidths members"]
    own: Int[np.ndarray, "members queries"] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are read."""
        return (*self.key, self.value)

    def prepare(self, table: pa.Table) -> EmbeddedFragment:
        """Return the keys and the values of the rows of a fragment that have a value."""
        estimator, values = self.estimator, number_column(table, self.value)
        columns, present = read_columns(table.select(list(self.key))), ~np.isnan(values)
        features = encode_columns(estimator.features_, [column[present] for column in columns])
        targets = estimator._encode_targets(values[present])
        metric = estimator._build_metric(targets.shape[1])
        keys, trends = embed_rows(metric, estimator._tensors(np.float32), *as_tensors(features))
        return EmbeddedFragment(keys.double(), torch.from_numpy(residuals(targets, trends).astype(np.float64)))

    def run(self, rows: EmbeddedFragment, fragment: int) -> ExponentialSums:
        """Return the partial result over the rows of a fragment."""
        members, queries = self.query.shape[:2]
        count, outputs = rows.values.shape[1:]
        shape = len(self.bandwidth), members, queries
        if not count:
            return ExponentialSums.of_output(np.zeros((*shape, outputs)), np.full(shape, -np.inf))
        mask: Mask | None = None
        if self.own is not None:
            own = torch.from_numpy(self.own - self.starts[fragment])
            mask = ~Documents(own, torch.arange(count).expand(members, count))
        query, value = torch.from_numpy(self.query), rows.values.expand(members, count, outputs)
        results = []
        for bandwidth in torch.from_numpy(self.bandwidth):
            seen = observe(query, rows.keys, value, score=Gaussian(bandwidth), mask=mask, readouts=[LogSumExp()])
            results.append((np.asarray(seen.readouts[0]), np.asarray(seen.output)))
        log_sum, mean = (np.stack(each) for each in zip(*results, strict=True))
        return ExponentialSums.of_output(mean, log_sum.reshape(shape))


def number_column(table: pa.Table, name: str) -> Float[np.ndarray, " rows"]:
    """Return a column of numbers as float64, with NaN for missing cells."""
    (column,), (kind,) = read_table(table.select([name]))
    if kind not in ("number", ""):
        raise KindError(f"the values {name} must be numbers for a regressor, got {kind}s. Choose another value column.")
    return np.asarray(column, np.float64)


TRAINING_ROWS = 2**17
"""Maximum number of rows that a metric is learned from."""


@dataclass(frozen=True, eq=False)
class FittedFragments:
    """An estimator and the fragments that hold its rows.

    Attributes:
        fragments: the fragments.
        queries: queries of the estimator without queries.
    """

    fragments: RowFragments
    queries: FragmentQueries

    @with_torch_defaults
    def predict(self, features: Features) -> Float[np.ndarray, "queries outputs"]:
        """Return the prediction for each query, averaged over the ensemble."""
        estimator = self.queries.estimator
        parameters, parts = estimator._tensors(np.float64), []
        bandwidth = parameters["log_bandwidth"].exp().numpy()[:, 0]
        metric = estimator._build_metric(1)
        for query, trend in query_blocks(metric, parameters, features, len(bandwidth)):
            asked = _with(self.queries, query=query.numpy(), bandwidth=bandwidth[None])
            means = np.asarray(self.fragments.run(asked).finalize()[0])[0]
            parts.append((means if trend is None else means + trend.numpy()).mean(axis=0))
        return np.concatenate(parts)


@with_torch_defaults
def fit_fragments(estimator: AttentionEstimator, fragments: RowFragments) -> FittedFragments:
    """Fit an estimator to the rows of fragments that have a value, and set its fitted attributes except the rows.

    Raises:
        DataError: no row has a value, or a value is infinite.
    """
    y = number_column(fragments.read((fragments.value,)), fragments.value)
    present = ~np.isnan(y)
    indices, count = np.flatnonzero(present), int(present.sum())
    if not count:
        raise DataError(f"the column {fragments.value} must have at least one value, got none. Choose another column.")
    estimator._read_columns(fragments.read(fragments.key, indices[:1]), reset=True)
    estimator._fit_targets(y[present], None)
    network, linear = estimator.metric == "network" or estimator._trend() == "network", estimator._trend() != "none"
    columns = []
    for index, name in enumerate(fragments.key):  # one column at a time is in memory
        (column,), (kind,) = read_table(fragments.read((name,)))
        columns.append(fit_column(column[present], index, network, kind))
    estimator.features_ = join_columns(columns, linear)
    seed = int(check_random_state(estimator.random_state).randint(2**31 - 1))

    def encode(rows: np.ndarray) -> Features:
        return encode_columns(estimator.features_, read_columns(fragments.read(fragments.key, indices[rows])))

    def targets(rows: np.ndarray) -> np.ndarray:
        return estimator._encode_targets(y[indices[rows]])

    metric = estimator._build_metric(1)
    learns = not (metric.kind == "none" and metric.trend == "none")
    sample = np.arange(count if learns else min(count, 1))
    if len(sample) > TRAINING_ROWS:
        sample = np.sort(np.random.default_rng(seed).permutation(count)[:TRAINING_ROWS])
    options = estimator._training_options(len(sample))
    trained = train_metric(metric, encode(sample), targets(sample), None, options, seed)
    estimator.parameters_ = {name: each.detach().numpy() for name, each in trained.parameters.items()}
    bandwidth, factors, out_of_bag = estimator._bandwidth_grid(metric, trained, count, seed)
    out_of_bag = sample[out_of_bag] if trained.steps else out_of_bag
    estimator.out_of_bag_rows_, estimator.n_steps_ = out_of_bag, trained.steps
    most = max(MIN_ROWS, int(EFFORTS[estimator.effort].search_pairs / max(count * len(bandwidth), 1)))
    own = out_of_bag[:, :most]
    before = np.concatenate([[0], np.cumsum(present)])
    starts = before[np.concatenate([[0], np.cumsum(fragments.lengths())])[:-1]]
    empty = np.zeros((len(own), 0, metric.key_width))
    names = {"key": fragments.key, "value": fragments.value, "starts": starts}
    queries = FragmentQueries(uuid.uuid4().hex, estimator, **names, query=empty, bandwidth=np.zeros((0, len(own))))
    rows, places = np.unique(own, return_inverse=True)
    features, values = encode(rows), targets(rows)
    keys, trends = embed_rows(metric, estimator._tensors(np.float32), *as_tensors(features))
    members, places = np.arange(len(own))[:, None], places.reshape(own.shape)
    grid = np.stack([bandwidth * factor for factor in np.array(factors, bandwidth.dtype)])[..., 0]
    asked = {"query": keys.double().numpy()[members, places], "bandwidth": grid.astype(np.float64), "own": own}
    predicted = np.asarray(fragments.run(_with(queries, **asked)).finalize()[0])
    if trends is not None:
        predicted = predicted + trends.numpy()[members, places]
    losses = np.square(predicted - values[places]).mean(axis=2)[..., 0]
    if estimator._is_small(count):
        losses = np.broadcast_to(losses.mean(axis=1, keepdims=True), losses.shape)
    best = losses.argmin(axis=0)
    estimator.parameters_["log_bandwidth"] = np.log(grid[best, np.arange(len(own))][:, None])
    estimator.validation_loss_ = losses.min(axis=0)
    estimator.sample_weight_ = None
    return FittedFragments(fragments, _with(queries, estimator=copy.copy(estimator)))


def _with(queries: FragmentQueries, **fields: object) -> FragmentQueries:
    return replace(queries, **fields)  # type: ignore[arg-type]
