"""Kernel that computes row blocks in PyTorch, in memory linear in the number of keys.

A row block holds all logits of some queries.

It supports normalizers that need whole rows, and readouts. `attention.py` contains the implementation.
"""

from __future__ import annotations

import math
import typing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from qkv.core.arrays import cast, requires_gradient
from qkv.core.equation import BoundCall
from qkv.kernels.runtime.closure_gradients import refuse_closure_gradients
from qkv.kernels.runtime.memory_model import lifted_elements, pair_arrays, score_arrays
from qkv.kernels.runtime.tile_sizes import ROW_BLOCK_BUDGET, row_block_arrays, row_block_size, size_text, thread_count
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.problem import Problem
from qkv.plan.time_model import amounts_of_work, reads_candidates, visible_pairs
from qkv.scores.forms import Distance, Offset, Product, Tanh

if TYPE_CHECKING:
    from qkv.core.equation import TorchCall
    from qkv.kernels.row_blocks.attention import CandidateSearch


_CANDIDATE_ELEMENTS = 600_000
"""Elements of the arrays of a search for candidates in a block of 512 queries."""
_SELECTION_KEYS = 2**16
"""Number of keys from which those of the largest logits are selected tile by tile. Row blocks of fewer keys have enough
queries, and their search takes half the time of the selection (8 × 4,096 tokens, 32 keys of each query)."""
_WINDOW_ROWS = 256
"""Queries in a block if the mask is a window: 8 × 1,024 to 2 × 4,096 tokens take less than with 128 or 512."""
_WORKER_PAIRS = 2**17
"""Least number of pairs for each thread, whose start takes some 100 µs."""
_SAVED_CANDIDATES = 48
"""Estimated number of candidates per query that are saved for backward, for normally distributed logits."""


@dataclass(frozen=True)
class RowBlocksKernel(Kernel):
    """Kernel that computes all logits of some queries at a time, in PyTorch.

    It supports every score, normalizer, mask and readout, and derivatives of any order.

    Args:
        budget: largest number of elements in all arrays of a row block together.
        max_candidates: largest number of keys per query that may reach the normalizer's `threshold_bound`. A block
            with more attends to all keys.
    """

    name: ClassVar[str] = "row_blocks"
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    runs_on_gpu: ClassVar[bool] = True
    budget: int = ROW_BLOCK_BUDGET
    max_candidates: int = 128

    def describe(self, problem: Problem) -> str:
        if self._selects(problem):
            rows = self._search_rows(problem)
            return f"tiles of {size_text(rows, self._selection_keys(problem, rows))}; the largest logits are selected"
        rows = self._search_rows(problem) if self._finds(problem) else self._rows(problem)
        return f"row blocks of {size_text(rows, problem.axes.k)}"

    def scratch(self, problem: Problem) -> float:
        """Return the bytes of one row block at the peak, and with a gradient of what is saved for backward."""
        if self._selects(problem):
            return self._selection_scratch(problem)
        if self._finds(problem):
            return self._search_scratch(problem)
        axes, rows = problem.axes, self._rows(problem)
        # Besides the arrays of a block, its queries and its output.
        scratch = axes.batch_size * rows * axes.k * problem.itemsize * (pair_arrays(problem) + 0.4)
        if problem.gradient:  # each block adds to the gradient of all keys and values
            scratch += (math.prod(axes.key) + math.prod(axes.value)) * problem.itemsize
        return scratch + problem.cast_bytes

    def _search_scratch(self, problem: Problem) -> float:
        """Return the bytes of a call that computes all logits and searches them for candidates."""
        axes, workers = problem.axes, self._workers(problem)
        rows = self._search_rows(problem) * self._search_elements(problem)
        tile = min(rows * axes.k, max(1, self.budget // 8 // problem.elements_per_logit))
        ranks = 2 if problem.normalizer.stochastic else 1
        features = problem.elements_per_logit if problem.elements_per_logit > 1 else 0
        numbers = rows * axes.k * (2 * ranks + 1) // 2 + 2 * tile * features
        form, shared = problem.score.form, 0
        if problem.gradient:
            sides = math.prod(axes.query) + math.prod(axes.key) + math.prod(axes.value)
            shared = (2 + workers) * sides + axes.batch_size * axes.q * _SAVED_CANDIDATES * 2
            if isinstance(form, Distance) or (isinstance(form, Offset) and problem.score.positional):
                numbers += int(tile * (score_arrays(problem)[0] + 1))
        elif isinstance(form, Product):
            shared = 2 * sum(lifted_elements(problem, scales_query=False))
        elif not features:  # the arrays of the score, its logits and their copy, and the candidates
            numbers += int(tile * (score_arrays(problem)[0] + 2)) + _CANDIDATE_ELEMENTS
        return (workers * numbers + shared) * problem.itemsize + problem.cast_bytes

    def _selection_scratch(self, problem: Problem) -> float:
        """Return the bytes of a call that selects the keys of the largest logits."""
        axes, features, rows = problem.axes, problem.elements_per_logit, self._search_rows(problem)
        pairs = rows * self._selection_keys(problem, rows)
        numbers = int(pairs * (1.25 if features == 1 else 1 + 2 * features)) + _CANDIDATE_ELEMENTS
        if not isinstance(problem.score.form, Product):
            numbers += int(pairs * (score_arrays(problem)[0] + 2))
        numbers += 2 * sum(lifted_elements(problem, scales_query=False))
        if problem.gradient:
            numbers += 3 * (math.prod(axes.query) + math.prod(axes.key) + math.prod(axes.value))
            numbers += axes.batch_size * axes.q * self._top_k(problem) * 3
        return numbers * problem.itemsize + problem.cast_bytes

    def work(self, problem: Problem) -> dict[str, float]:
        """Return the amounts of work, from which the time is estimated."""
        rows, axes = self._rows(problem), problem.axes
        block = axes.batch_size * rows * axes.k
        tiles = -(-axes.q // rows)
        searches = self._selects(problem) or self._finds(problem)
        pairs = visible_pairs(problem, self._search_rows(problem)) if searches else axes.pairs
        work = amounts_of_work(problem, pairs, tiles, block, problem.elements_per_logit)
        if searches:  # only the values of candidates are multiplied; measured calls had values as wide as queries
            work["products"] = 2 * pairs * axes.query_width
        if self._selects(problem):
            work |= {"searched": work["pairs"], "searched_elements": work["elements"]}
            if axes.q == 1 and isinstance(problem.score.form, Product):
                work["rows"] /= 2  # as measured: the keys are read in half the time of a product with one vector
        if isinstance(problem.score.form, Tanh):
            work["searched_elements"] = 0  # a search takes no less, as its hyperbolic tangents take most of the time
        return work

    def run(self, call: BoundCall, problem: Problem) -> Result:
        import torch

        from qkv.kernels.row_blocks.attention import RowBlocks
        from qkv.kernels.runtime.gradients import call_tensors
        from qkv.kernels.runtime.isolated_autograd import project_call

        tensors = typing.cast("TorchCall", call)
        with torch.autocast(tensors.value.device.type, enabled=False):
            refuse_closure_gradients(tensors)
            trained = any(requires_gradient(x) for x in call_tensors(tensors))
            search = self._search(problem) if self._searchable(problem, trained) else None
            # Without a gradient only the values of candidates matter, and the output shows those that are not finite.
            unread = search is not None and call.finite is None and not trained
            if search is not None and unread:
                # Without a mask, a logit shows every query or key that is not finite.
                sides = (search.selects and call.mask is None) or call.finite_sides
                tensors = replace(tensors, finite=(sides, True))
            elif search is not None and not call.finite_value:
                search = None
            if search is not None and (tensors.mask is None or tensors.finite_sides):
                # Otherwise a masked NaN or infinity would reach the output through the projections.
                tensors = typing.cast("TorchCall", project_call(tensors))
            blocks = RowBlocks(tensors, problem.readouts, self._rows(problem), search=search)
            output, readouts = blocks.attend()
            assert output is not None
            if unread and not bool(output.isfinite().all()):
                return self.run(replace(call, finite=(call.finite_sides, call.finite_value)), problem)
            return Result(cast(output, call.out_dtype), readouts)

    def _searchable(self, problem: Problem, trained: bool) -> bool:
        """Return whether the output is a sum over candidates if all values are finite."""
        if problem.axes.pairs == 0 or problem.axes.value_width == 0:
            return False
        return not (problem.readouts and trained) and (self._selects(problem) or self._finds(problem))

    def _search(self, problem: Problem) -> CandidateSearch:
        from qkv.kernels.row_blocks.attention import CandidateSearch

        axes, rows, selects = problem.axes, self._search_rows(problem), self._selects(problem)
        elements = self._search_elements(problem)
        tile_keys = max(1, self.budget // 8 // (elements * rows * problem.elements_per_logit))
        if selects:
            tile_keys = self._selection_keys(problem, rows)
        arrays = elements * axes.k * row_block_arrays(problem)
        recomputed = min(self.budget, problem.memory // 2 // problem.itemsize) // arrays
        tile_keys, recomputed = min(tile_keys, axes.k), max(1, min(rows, recomputed))
        return CandidateSearch(
            elements, rows, tile_keys, self.max_candidates, recomputed, selects, self._workers(problem)
        )

    def _search_elements(self, problem: Problem) -> int:
        """Return the number of batch elements in a block if candidates are searched, so that operations are large."""
        axes = problem.axes
        rows = self._search_rows(problem)
        of_heads = any(readout.head_indices is not None for readout in problem.readouts)
        if self._selects(problem) or of_heads or (rows < axes.q and rows != _WINDOW_ROWS):
            return 1
        pairs = self.budget // 4 // problem.elements_per_logit
        allowed = problem.memory // 2 // (problem.itemsize * 4 * self._workers(problem))
        return max(1, min(pairs, allowed) // max(1, rows * axes.k))

    def _workers(self, problem: Problem) -> int:
        """Return the number of threads that search for candidates, each with a block of its own."""
        return max(1, min(thread_count(problem), problem.axes.pairs // _WORKER_PAIRS))

    def _finds(self, problem: Problem) -> bool:
        """Return whether candidates are found by a bound of the logits of keys with weight."""
        return problem.normalizer.has_threshold_bound and reads_candidates(problem)

    def _selects(self, problem: Problem) -> bool:
        """Return whether candidates are the keys of the largest logits, selected tile by tile, by NumPy."""
        normalizer = problem.normalizer
        few = 0 < self._top_k(problem) <= self.max_candidates and not normalizer.stochastic
        few = few and problem.axes.k >= _SELECTION_KEYS
        return few and reads_candidates(problem) and not problem.device.is_gpu

    def _top_k(self, problem: Problem) -> int:
        return problem.normalizer.top_k or 0

    def _selection_keys(self, problem: Problem, rows: int) -> int:
        """Return the number of keys in a tile from which keys are selected, of up to 8 MB of logits."""
        pairs = min(self.budget // 4, problem.memory // 4 // problem.itemsize) // problem.elements_per_logit
        return max(1, min(problem.axes.k, pairs // rows))

    def _search_rows(self, problem: Problem) -> int:
        """Return the number of queries per row block if candidates are searched.

        A block has up to 16 MB of logits, and at least 32 queries if they fit. Smaller blocks take longer, as each has
        some hundred operations, after which threads wait for the interpreter's lock, unless the mask is a window that
        fewer queries see less of.
        """
        q, mask = problem.axes.q, problem.spec.mask
        if self._selects(problem):
            return max(1, min(q, 512))
        logits, k = self.budget // 2, max(1, problem.axes.k)
        rows = max(logits // k, min(32, 2 * logits // k))
        allowed = problem.memory // 2 // (problem.itemsize * k * 4 * self._workers(problem))
        rows = max(1, min(q, 2048, rows, allowed))
        if mask is None or rows <= _WINDOW_ROWS:
            return rows
        first, last = mask.key_range(problem.tile.restrict((q // 2, q // 2 + 1), (0, k)))
        return _WINDOW_ROWS if last - first + _WINDOW_ROWS < 3 * k // 4 else rows

    def _rows(self, problem: Problem) -> int:
        return row_block_size(problem, self.budget, row_block_arrays(problem))
