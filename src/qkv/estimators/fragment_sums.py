"""Partial results of Nadaraya–Watson estimates over one fragment of the fitted rows, which merge in any order.

    l = log Σ_i exp(−‖q − k_i‖² / 2h²)        m = Σ_i w_i v_i over the rows of the fragment
    merged: l = log(e^l₁ + e^l₂)              m = e^(l₁−l) m₁ + e^(l₂−l) m₂

Keys are computed in float32, as by an estimator with its rows in memory, and the sums in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import torch

from qkv.core.typing import Float, Int, Shaped
from qkv.engine import observe
from qkv.errors import KindError
from qkv.estimators.features import encode_columns
from qkv.estimators.metric_learning import as_tensors, embed_rows
from qkv.estimators.table_columns import read_columns
from qkv.masks import Documents
from qkv.readouts import LogSumExp
from qkv.scores import Gaussian

if TYPE_CHECKING:
    import pyarrow as pa

    from qkv.estimators.base import AttentionEstimator

__all__ = ["EmbeddedFragment", "FragmentMeans", "FragmentQueries", "RowFragments", "number_column"]


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

    def run(self, queries: FragmentQueries) -> FragmentMeans:
        """Return the merged partial results of all fragments."""


@dataclass(frozen=True, eq=False)
class FragmentMeans:
    """The log-sum-exp of the logits of each query, and the weighted mean of the values, over some fragments.

    Attributes:
        log_sum: `(bandwidths, members, queries)`; −inf without rows.
        mean: `(bandwidths, members, queries, outputs)`; 0 without rows.
    """

    log_sum: Float[np.ndarray, "bandwidths members queries"]
    mean: Float[np.ndarray, "bandwidths members queries outputs"]

    def merge(self, other: Self) -> Self:
        """Return the partial result over the fragments of both, which must be disjoint."""
        log_sum = np.logaddexp(self.log_sum, other.log_sum)
        shift = np.where(np.isneginf(log_sum), 0.0, log_sum)
        shares = (np.exp(each.log_sum - shift)[..., None] for each in (self, other))
        mean = sum(share * each.mean for share, each in zip(shares, (self, other), strict=True))
        return type(self)(log_sum, np.asarray(mean))


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
        residuals = targets[None] if trends is None else targets[None] - trends.numpy()
        return EmbeddedFragment(keys.double(), torch.from_numpy(residuals.astype(np.float64)))

    def run(self, rows: EmbeddedFragment, fragment: int) -> FragmentMeans:
        """Return the partial result over the rows of a fragment."""
        members, queries = self.query.shape[:2]
        count, outputs = rows.values.shape[1:]
        shape = len(self.bandwidth), members, queries
        if not count:
            return FragmentMeans(np.full(shape, -np.inf), np.zeros((*shape, outputs)))
        mask: Any = None
        if self.own is not None:
            own = torch.from_numpy(self.own - self.starts[fragment])
            mask = ~Documents(own, torch.arange(count).expand(members, count))
        query, value = torch.from_numpy(self.query), rows.values.expand(members, count, outputs)
        results = []
        for bandwidth in torch.from_numpy(self.bandwidth):
            seen = observe(query, rows.keys, value, score=Gaussian(bandwidth), mask=mask, readouts=[LogSumExp()])
            results.append((np.asarray(seen.readouts[0]), np.asarray(seen.output)))
        log_sum, mean = (np.stack(each) for each in zip(*results, strict=True))
        return FragmentMeans(log_sum.reshape(shape), mean)


def number_column(table: pa.Table, name: str) -> Float[np.ndarray, " rows"]:
    """Return a column of numbers as float64, with NaN for missing cells."""
    column: Shaped[np.ndarray, " rows"] = read_columns(table.select([name]))[0]
    if column.dtype == object:
        raise KindError(f"the values {name} must be numbers for a regressor, got text. Choose another value column.")
    return column.astype(np.float64)
