"""Predictions from the fitted rows of an estimator, leave-one-out errors, and the contributions of rows.

All rows contribute to every prediction, in float64 and in memory linear in the rows. A prediction does not
depend on the other queries of the same call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.core.typing import Float, Int
from qkv.engine import observe
from qkv.estimators.features import Features
from qkv.estimators.metric import Metric, Parameters
from qkv.estimators.metric_learning import embed_rows
from qkv.estimators.nadaraya_watson import weighted_mean
from qkv.estimators.ridge import row_shares
from qkv.estimators.row_tree import RowTree
from qkv.masks import Documents
from qkv.readouts import Dense
from qkv.scores import Gaussian

_QUERY_BLOCK = 2048
_TREE_QUERIES = 16_384
"""Queries at once with trees, which sort them."""
_EXPLAINED_WEIGHTS = 2**23
"""Maximum number of weights in memory while predictions are explained."""


class RowExplanation(NamedTuple):
    """The fitted rows with the largest weights in each prediction, in descending order of weight.

    Attributes:
        rows: indices of fitted rows, `(queries, top)`.
        weights: weights `(queries, top)`, averaged over the ensemble; all rows together have weight 1.
        values: contributions `(queries, top, …)`: the value of each row, shifted by the difference of the trend
            between row and query. Weights times values sum to the prediction.

    Example:
        >>> import numpy as np
        >>> from qkv.estimators import AttentionRegressor
        >>> x = np.arange(20.0)[:, None]
        >>> model = AttentionRegressor("none", random_state=0).fit(x, x[:, 0] ** 2)
        >>> result = model.explain_rows([[10.0]], top=20)
        >>> bool(np.isclose((result.weights * result.values).sum(), model.predict([[10.0]])[0]))
        True
    """

    rows: Int[np.ndarray, "queries top"]
    weights: Float[np.ndarray, "queries top"]
    values: Float[np.ndarray, "queries top *classes"]


@dataclass(frozen=True)
class FittedRows:
    """The fitted rows of an estimator as tensors of keys and values, from which predictions are computed.

    Attributes:
        metric: the metric, which computes the keys of queries.
        parameters: parameters of the metric.
        keys: keys `(members, rows, width)`.
        values: values minus the trend, `(members or 1, rows, outputs)`.
        sample_weight: weights `(rows, 1)`; None means equal weights.
        bandwidth: bandwidths `(members, bandwidths)`.
        trees: the rows of each member as a tree, if there are many; None otherwise.
        uniform: share of the weights that is the same for all rows, or in proportion to their sample weights.
    """

    metric: Metric
    parameters: Parameters
    keys: Float[Tensor, "members rows width"]
    values: Float[Tensor, "#members rows outputs"]
    sample_weight: Float[Tensor, "rows 1"] | None
    bandwidth: Float[Tensor, "members bandwidths"]
    trees: Sequence[RowTree] | None
    uniform: float

    def predict(self, features: Features) -> Float[np.ndarray, "queries outputs"]:
        """Return the prediction for each query, averaged over the ensemble."""
        parts = []
        for query, trend in self.query_blocks(features, _TREE_QUERIES if self.trees else _QUERY_BLOCK):
            mean = self._means(query)
            parts.append((mean if trend is None else mean + trend).mean(dim=0))
        return torch.cat(parts).numpy()

    def _means(self, query: Float[Tensor, "members n width"]) -> Float[Tensor, "members n outputs"]:
        """Return the weighted means of the values for each query and member."""
        found = self._local_means(query)
        if not self.uniform:
            return found
        return (1.0 - self.uniform) * found + self.uniform * (self._row_shares() @ self.values)

    def _row_shares(self) -> Float[Tensor, " rows"]:
        """Return the weight of each row where all are weighted by their sample weights alone."""
        weights = None if self.sample_weight is None else self.sample_weight.numpy()
        return torch.from_numpy(row_shares(self.keys.shape[1], weights)[:, 0])

    def _local_means(self, query: Float[Tensor, "members n width"]) -> Float[Tensor, "members n outputs"]:
        if self.trees is None:
            weights = None if self.sample_weight is None else self.sample_weight[None]
            return weighted_mean(query, self.keys, self.values, self.bandwidth, weights)
        inverse = 0.5 / self.bandwidth.square()
        means = []
        for tree, own, scales in zip(self.trees, query.numpy(), inverse.tolist(), strict=True):
            found = [tree.means(own, scale) for scale in scales]
            columns = [each[:, [output]] for output, each in enumerate(found)]
            means.append(found[0] if len(found) == 1 else np.concatenate(columns, axis=1))
        return torch.from_numpy(np.stack(means))

    def left_out_errors(self, rows: Int[Tensor, " n"]) -> Float[Tensor, "members n outputs"]:
        """Return the error of each member's prediction of some fitted rows, each of them from all other rows."""
        count = self.keys.shape[1]
        weights = None if self.sample_weight is None else self.sample_weight[None]
        others = ~Documents(rows, torch.arange(count))
        mean = weighted_mean(self.keys[:, rows], self.keys, self.values, self.bandwidth, weights, others)
        # The trend is a part of the value and of the prediction, so it cancels.
        return self.values[:, rows] - mean

    def explain(self, features: Features, top: int, output: int) -> RowExplanation:
        """Return the fitted rows with the largest weights in the prediction of one output for each query.

        For classification, the values are the contributions to all classes.
        """
        group = min(output, self.bandwidth.shape[1] - 1)
        top = min(top, self.keys.shape[1])
        # Classes share their weights, so all outputs are explained at once.
        selected = slice(None) if self.metric.classification else slice(output, output + 1)
        parts = []
        block = max(1, _EXPLAINED_WEIGHTS // max(self.keys[..., 0].numel(), 1))
        for query, trend in self.query_blocks(features, block):
            observation = observe(
                query, self.keys, self.keys[..., :1], score=Gaussian(self.bandwidth[:, group]), readouts=[Dense()]
            )
            member_weights: Tensor = observation.readouts[0]
            if self.sample_weight is not None:
                member_weights = member_weights * self.sample_weight[:, 0]
                member_weights = member_weights / member_weights.sum(dim=-1, keepdim=True)
            if self.uniform:
                member_weights = (1.0 - self.uniform) * member_weights + self.uniform * self._row_shares()
            mean, index = torch.sort(member_weights.mean(dim=0), dim=-1, descending=True, stable=True)
            mean, index = mean[:, :top], index[:, :top]
            member = torch.arange(len(self.values))[:, None, None]
            value = self.values[member, index[None]][..., selected]  # (members or 1, queries, top, outputs)
            if trend is not None:
                value = value + trend[:, :, None, selected]
            own = torch.gather(member_weights, 2, index.expand(len(member_weights), -1, -1))[..., None]
            total = own.mean(dim=0)
            value = torch.where(total > 0, (own * value).mean(dim=0) / total.clamp_min(1e-300), value.mean(dim=0))
            parts.append((index, mean, value))
        rows, weights, values = (torch.cat(blocks).numpy() for blocks in zip(*parts, strict=True))
        return RowExplanation(rows, weights, values if self.metric.classification else values[..., 0])

    def query_blocks(
        self, features: Features, size: int = _QUERY_BLOCK
    ) -> Iterator[tuple[Float[Tensor, "members n key_width"], Float[Tensor, "members n outputs"] | None]]:
        """Yield the keys and the trends of queries, for at most `size` of them at once."""
        return query_blocks(self.metric, self.parameters, features, len(self.keys), size)


def query_blocks(
    metric: Metric, parameters: Parameters, features: Features, members: int, size: int = _QUERY_BLOCK
) -> Iterator[tuple[Float[Tensor, "members n key_width"], Float[Tensor, "members n outputs"] | None]]:
    """Yield the keys and the trends of queries, for at most `size` of them at once."""
    size = min(size, max(1, max(size, _QUERY_BLOCK * 4) // members))
    for start in range(0, len(features), size):
        block = slice(start, start + size)
        numbers = torch.from_numpy(features.numbers[block].astype(np.float64))
        yield embed_rows(metric, parameters, numbers[None], torch.from_numpy(features.codes[block])[None])
