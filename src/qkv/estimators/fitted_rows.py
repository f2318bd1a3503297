"""Answers from the rows that were kept: weighted values, how far they may be off, and the rows themselves.

All rows take part in every answer, in float64 and in memory linear in the rows, so that an answer depends on
nothing but its query: not on the other queries of a call, nor on how many they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.engine import observe
from qkv.estimators.features import Features
from qkv.estimators.metric import Metric, Parameters
from qkv.estimators.nadaraya_watson import weigh
from qkv.readouts import Dense
from qkv.scores import Gaussian

__all__ = ["Explained", "Memory"]

_ASKED = 2048
_SEEN = 2**23
"""Weights that are looked at in one piece when an answer is explained."""


class Explained(NamedTuple):
    """The rows that answers rest on, heaviest first.

    Fields:
        rows: `(queries, top)`, indices of the rows that were fitted.
        weights: `(queries, top)`, mean over the members of the ensemble; all rows together have 1.
        values: `(queries, top, …)`, what each row says: its value, moved by the trend between it and the
            query. Weights times values add up to the prediction.
    """

    rows: np.ndarray
    weights: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class Memory:
    """The rows of a fitted estimator.

    Fields:
        metric, parameters: what makes a query's key.
        keys: `(members, rows, width)`.
        values: `(members or 1, rows, outputs)`, less the trend.
        shares: `(rows, 1)`, weights of the rows; None: all alike.
        bandwidth: `(members, bandwidths)`.
    """

    metric: Metric
    parameters: Parameters
    keys: Tensor
    values: Tensor
    shares: Tensor | None
    bandwidth: Tensor

    def predict(self, features: Features) -> np.ndarray:
        """`(queries, outputs)`, the mean over the members."""
        parts = [torch.zeros(0, self.values.shape[-1], dtype=torch.float64)]
        for query, trend in self._queries(features):
            given = weigh(query, self.keys, self.values, self.bandwidth, self._share())
            parts.append((given if trend is None else given + trend).mean(dim=0))
        return torch.cat(parts).numpy()

    def errors(self, features: Features, asked: Tensor, errors: Tensor) -> np.ndarray:
        """Expected squared errors `(queries, outputs)`: of the rows that were asked, weighed like values."""
        mine = torch.arange(len(asked))[:, None]
        keys = self.keys[mine, asked]
        shares = None if self.shares is None else self.shares[asked]
        parts = [torch.zeros(0, errors.shape[-1], dtype=torch.float64)]
        for query, _ in self._queries(features):
            parts.append(weigh(query, keys, errors, self.bandwidth, shares).mean(dim=0))
        return torch.cat(parts).numpy()

    def explain(self, features: Features, top: int, output: int) -> Explained:
        """The heaviest rows for one output."""
        group = min(output, self.bandwidth.shape[1] - 1)
        top = min(top, self.keys.shape[1])
        rows, weights, values = [], [], []
        few = max(1, _SEEN // max(self.keys[..., 0].numel(), 1))
        for query, trend in self._queries(features, few):
            seen = observe(
                query,
                self.keys,
                self.keys[..., :1],
                score=Gaussian(self.bandwidth[:, group]),
                readouts=[Dense()],
            )
            each = seen.readouts[0]
            if self.shares is not None:
                each = each * self.shares[:, 0]
                each = each / each.sum(dim=-1, keepdim=True)
            mean = each.mean(dim=0)
            heavy, index = torch.sort(mean, dim=-1, descending=True, stable=True)
            heavy, index = heavy[:, :top], index[:, :top]
            one = slice(None) if self.metric.shares else slice(output, output + 1)
            members = torch.arange(len(self.values))[:, None, None]
            says = self.values[members, index[None]][..., one]  # (members or 1, queries, top, outputs)
            if trend is not None:
                says = says + trend[:, :, None, one]
            own = torch.gather(each, 2, index.expand(len(each), -1, -1))[..., None]
            total = own.mean(dim=0)
            says = torch.where(total > 0, (own * says).mean(dim=0) / total.clamp_min(1e-300), says.mean(dim=0))
            rows.append(index)
            weights.append(heavy)
            values.append(says)
        if not rows:
            empty = np.zeros((0, top))
            return Explained(empty.astype(np.int64), empty, empty)
        found = torch.cat(values).numpy()
        return Explained(
            torch.cat(rows).numpy(),
            torch.cat(weights).numpy(),
            found if self.metric.shares else found[..., 0],
        )

    def _share(self) -> Tensor | None:
        return None if self.shares is None else self.shares[None]

    def _queries(self, features: Features, most: int = _ASKED) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Keys and trends of some queries at a time."""
        most = min(most, max(1, _ASKED * 4 // len(self.keys)))
        for start in range(0, len(features), most):
            part = slice(start, start + most)
            numbers = torch.from_numpy(features.numbers[part].astype(np.float64))
            codes = torch.from_numpy(features.codes[part])
            with torch.no_grad():
                yield self.metric(self.parameters, numbers[None], codes[None])
