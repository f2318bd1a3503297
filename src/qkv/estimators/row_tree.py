"""Weighted means over many rows of a table, of which blocks with negligible weights are left out.

    mean(q) = Σ_i s_i w_i v_i / Σ_i s_i w_i        w_i = exp(−g ‖q − k_i‖²)

Rows are sorted into boxes of at most 256 by a k-d tree. A box is left out for a block of near queries if its weights,
which the distance of the query to the box limits, have a part of less than 1e-12 of the sum for each of the queries.
All other weights are computed in float64. With bandwidths as wide as the data no box is left out.

Source: Gray and Moore (2003), Nonparametric density estimation: toward computational tractability.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qkv.core.arrays import ignore_numpy_warnings
from qkv.core.typing import Float, Int
from qkv.estimators.regression.neighbor_blocks import PointBlocks, split_into_blocks
from qkv.kernels.numpy_blocks.logits import NATURAL
from qkv.kernels.runtime.workers import run_on_workers, split_evenly

MIN_TREE_ROWS = 4096
"""Fewer rows are not worth a tree."""
_BOX = 256
_QUERIES = 128
_FIRST_BOXES = 8
"""Boxes that are computed first, whose weights limit the sum from below."""
_PAIRS = 2**17
"""Number of weights of a block: a megabyte in float64."""
_NEGLIGIBLE = math.log(1e-12)


@dataclass(frozen=True, eq=False)
class RowTree:
    """The rows of one ensemble member in the order of a k-d tree.

    Attributes:
        center: mean of the keys.
        keys: for each row its key less the center, minus its square, and 1.
        known: values times the sample weights, and these weights as the last column.
        starts: first row of each box, and the number of rows.
        boxes: the rows of each box and its corners.
        log_weight: logarithm of the sum of all sample weights.
    """

    center: Float[np.ndarray, " width"]
    keys: Float[Tensor, "rows lifted"]
    known: Float[Tensor, "rows columns"]
    starts: Int[np.ndarray, " starts"]
    boxes: PointBlocks
    log_weight: float

    def means(self, queries: Float[np.ndarray, "q width"], inverse: float) -> Float[np.ndarray, "q outputs"]:
        """Return the weighted mean of the values for each query, with g = `inverse`."""
        queries = queries - self.center
        found = np.empty((len(queries), self.known.shape[1] - 1))
        near = split_into_blocks(queries, _QUERIES)
        blocks = split_evenly(range(len(near.rows)), torch.get_num_threads())

        def run(number: int) -> None:
            for block in blocks[number]:
                rows, gaps = near.rows[block], near.squared_gaps(block, self.boxes)
                with ignore_numpy_warnings():
                    sums = self._sums(queries[rows], gaps, inverse)
                found[rows] = sums[:, :-1] / sums[:, -1:]

        run_on_workers(run, len(blocks))
        return found

    def _sums(
        self, queries: Float[np.ndarray, "b width"], gaps: Float[np.ndarray, " boxes"], inverse: float
    ) -> Float[np.ndarray, "b columns"]:
        """Return the weighted sums of `known` for near queries, up to a factor for each query.

        `gaps` are the squared distances between the box of the queries and each box.
        """
        lifted = np.column_stack([queries * (2.0 * inverse), np.full(len(queries), inverse), np.zeros(len(queries))])
        first = np.argpartition(gaps, min(_FIRST_BOXES, len(gaps)) - 1)[:_FIRST_BOXES]
        lifted[:, -1] = -self._largest(lifted, first)
        total = self._add(lifted, first)
        logs = np.log(total[:, -1]) - lifted[:, -1] - inverse * np.square(queries).sum(axis=1)
        needed = self.log_weight - inverse * gaps - logs.min() > _NEGLIGIBLE
        needed[first] = False
        others = np.flatnonzero(needed)
        found: np.ndarray = total + self._add(lifted, others)
        if not np.isfinite(found).all():  # a row is much nearer than all of the first boxes
            both = np.concatenate([first, others])
            lifted[:, -1] = 0.0
            lifted[:, -1] = -self._largest(lifted, both)
            found = self._add(lifted, both)
        return found

    def _largest(self, lifted: Float[np.ndarray, "b lifted"], boxes: Int[np.ndarray, " n"]) -> Float[np.ndarray, " b"]:
        """Return the largest logit of each query in some boxes."""
        return np.asarray(np.max([logits.max(axis=1) for logits, _ in self._logits(lifted, boxes)], axis=0))

    def _add(self, lifted: Float[np.ndarray, "b lifted"], boxes: Int[np.ndarray, " n"]) -> np.ndarray:
        """Return the weighted sums of `known` over some boxes."""
        total = np.zeros((len(lifted), self.known.shape[1]))
        for logits, known in self._logits(lifted, boxes):
            NATURAL.apply_(logits)
            total += torch.mm(torch.from_numpy(logits), known).numpy()
        return total

    def _logits(
        self, lifted: Float[np.ndarray, "b lifted"], boxes: Int[np.ndarray, " n"]
    ) -> Iterator[tuple[Float[np.ndarray, "b k"], Float[Tensor, "k columns"]]]:
        """Yield the logits of the rows in some boxes, and the rows' `known`, block by block."""
        step = max(1, _PAIRS // (_BOX * len(lifted)))
        for start in range(0, len(boxes), step):
            own = [slice(self.starts[box], self.starts[box + 1]) for box in boxes[start : start + step]]
            keys, known = (torch.cat([each[rows] for rows in own]) for each in (self.keys, self.known))
            yield torch.mm(torch.from_numpy(lifted), keys.t()).numpy(), known


def build_row_trees(
    keys: Float[np.ndarray, "members rows width"],
    values: Float[np.ndarray, "#members rows outputs"],
    sample_weight: Float[np.ndarray, " rows"] | None,
) -> list[RowTree]:
    """Return the rows of each ensemble member as a tree.

    Args:
        keys: keys of the rows.
        values: values minus the trend.
        sample_weight: positive weights of the rows; None means equal weights.
    """
    weight = np.ones(keys.shape[1]) if sample_weight is None else sample_weight.astype(np.float64)
    values = np.broadcast_to(values, (len(keys), *values.shape[1:]))
    return [_build(own.astype(np.float64), each, weight[:, None]) for own, each in zip(keys, values, strict=True)]


def _build(
    keys: Float[np.ndarray, "rows width"],
    values: Float[np.ndarray, "rows outputs"],
    weight: Float[np.ndarray, "rows 1"],
) -> RowTree:
    center = keys.mean(axis=0)
    keys = keys - center
    boxes = split_into_blocks(keys, _BOX)
    order = np.concatenate(boxes.rows)
    starts = np.cumsum([0, *map(len, boxes.rows)])
    lifted = np.column_stack([keys, -np.square(keys).sum(axis=1), np.ones(len(keys))])[order]
    known = np.concatenate([values * weight, weight], axis=1)[order]
    log_weight = math.log(float(weight.sum()))
    return RowTree(center, torch.from_numpy(lifted), torch.from_numpy(known), starts, boxes, log_weight)
