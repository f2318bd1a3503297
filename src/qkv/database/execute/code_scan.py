"""Scan of codes of the keys of a store: the rows that can have weight, with a proof, from a quarter of the bytes.

The code of a vector k is k' = s c, with a scale s and whole numbers c from −127 to 127; q' = t d is that of a query. By
the inequality of Cauchy and Schwarz

    |⟨q, k⟩ − s t ⟨c, d⟩| ≤ ‖q‖ ‖k − k'‖ + ‖q − q'‖ ‖k'‖

and the norms of the residuals are saved with the codes. A row whose upper bound is below the lower bounds of enough
other rows has no weight; the others are read and compared exactly. With a tolerance ε a softmax may also leave out rows
whose weights sum to at most ε: with the upper bounds u of the rows left out, and the lower bounds l of the others,

    weight left out ≤ Σ e^u / (Σ e^l + Σ e^u) ≤ ε

Source: the bound of weights left out is that of arXiv:2512.07647; codes with the norm of the residual are those of
asymmetric distance computation, Jégou et al. (2011), https://hal.inria.fr/inria-00514462.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from qkv.core.ordering import RunningTopK
from qkv.core.typing import Bool, Float, Int, Num
from qkv.database.execute.block_scan import SUPPORT
from qkv.database.execute.row_reader import RowTile
from qkv.database.execute.scan import VectorLogits, load_arrays
from qkv.kernels.runtime.context import with_torch_defaults
from qkv.normalizers.base import Normalizer
from qkv.store import Block

if TYPE_CHECKING:
    from qkv.core.typing import Tensor


_GROUP = 8
"""Number of rows whose largest product is compared first."""

_CODED = 2**12
"""Number of vectors that are coded at a time."""

_PAIRS = 2**18
"""Number of products that are computed at a time: 1 MiB of float32, which stays in the second cache of a core."""

_ROUNDING = 2e-6
"""Bound of the rounding errors of a logit, relative to the product of the norms: at most 16 operations in float32."""

_LEAST_WIDTH = 32
"""Number of components from which codes are read faster than vectors."""

_LARGEST, _SMALLEST = 1e15, 1e-37
"""Bounds of norms and of logits between which the numbers of the bounds neither overflow nor vanish in float32."""

_MOST = {False: (1 / 4, 1 / 50), True: (1 / 2, 1 / 16)}
"""For one and several queries, the shares of the rows that are compared again and read exactly before all rows are."""

_MOST_PAIRS = 2**22
"""Most pairs of a query and a group that are kept: 100 MB."""

_Found: TypeAlias = tuple[
    Int[np.ndarray, " n"], Int[np.ndarray, " n"], Float[np.ndarray, " n"], Float[np.ndarray, " n"]
]


@dataclass(frozen=True, eq=False)
class Codes:
    """Codes of some vectors.

    Attributes:
        codes: `(rows, width)` whole numbers.
        scale: `(rows,)`, s.
        residual: `(rows,)`, an upper bound of ‖k − s c‖ in float32.
        norm: `(rows,)`, an upper bound of ‖s c‖ in float32.
    """

    codes: Int[np.ndarray, "rows width"]
    scale: Float[np.ndarray, " rows"]
    residual: Float[np.ndarray, " rows"]
    norm: Float[np.ndarray, " rows"]

    @classmethod
    def of(cls, vectors: Float[np.ndarray, "rows width"]) -> Codes:
        """Return the codes of vectors; a norm is infinite or NaN where they cannot be coded."""
        with np.errstate(over="ignore", invalid="ignore"):
            exact = vectors.astype(np.float64)
            scale = (np.abs(exact).max(axis=1, initial=0) / 127).astype(np.float32)
            step = scale.astype(np.float64)[:, None]
            codes = np.clip(np.rint(exact / np.where(step > 0, step, 1)), -127, 127)
            residual, norm = np.linalg.norm(exact - codes * step, axis=1), np.linalg.norm(codes * step, axis=1)
            return cls(np.nan_to_num(codes).astype(np.int8), scale, _above(residual), _above(norm))

    @classmethod
    def concat(cls, parts: Sequence[Codes]) -> Codes:
        """Return the codes of several parts."""
        return cls(*(np.concatenate([getattr(each, name) for each in parts]) for name in cls.__annotations__))

    def take(self, rows: Int[np.ndarray, " n"] | slice) -> Codes:
        """Return the codes of some rows."""
        return Codes(self.codes[rows], self.scale[rows], self.residual[rows], self.norm[rows])


def _above(x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return float32 numbers above numbers of float64 and their rounding errors."""
    return np.nextafter((x * (1 + 1e-9)).astype(np.float32), np.float32(np.inf))


class VectorCodes:
    """The codes of vectors of a store, with a file in its folder of notes for each block and column.

    Those of a block that has none, such as one that was appended, are made and saved when they are first needed.

    Attributes:
        paused: for calls of which too many rows had to be read exactly, the number of passes without another attempt.
    """

    def __init__(self) -> None:
        self._loaded: dict[tuple[str, str], Codes | None] = {}
        self.paused: dict[tuple[object, ...], int] = {}

    @staticmethod
    def saved(folder: Path) -> list[Path]:
        """Return the files of codes in the folder of notes of a store."""
        return sorted(folder.glob("codes-*.norms"))

    def of_block(self, block: Block, column: str, folder: Path) -> Codes | None:
        """Return the codes of a block, or None if its vectors cannot be coded."""
        name = block.name, column
        if name not in self._loaded:
            arrays = load_arrays(block, column, "codes", folder, _code_chunk)
            # Codes that could not be saved would need memory: all rows are compared instead.
            mapped = len(arrays) == 4 and not arrays["codes"].flags.writeable
            finite = mapped and all(np.isfinite(arrays[name]).all() for name in ("residual", "norm"))
            self._loaded[name] = Codes(**arrays) if finite else None
        return self._loaded[name]

    def load(self, tile: RowTile, column: str) -> Codes | None:
        """Return the codes of a tile, or None if the vectors of its block cannot be coded."""
        codes = self.of_block(tile.block, column, tile.cache)
        rows, present = slice(tile.start, tile.start + tile.table.num_rows), tile.block.present
        return None if codes is None else codes.take(rows if present is None else np.flatnonzero(present)[rows])


def _code_chunk(matrix: Num[np.ndarray, "rows width"] | None, _: int) -> dict[str, np.ndarray]:
    if matrix is None:
        return {}
    parts = [Codes.of(matrix[start : start + _CODED]) for start in range(0, len(matrix), _CODED)]
    return vars(Codes.concat(parts)) if parts else {}


@cache
def multiplies_codes(width: int) -> bool:
    """Return whether PyTorch multiplies codes of a width without error, also the largest ones.

    Without instructions for 8 bits, a library may add products in 16 bits, and cut off their sums.
    """
    codes = np.random.default_rng(0).choice(np.array([-127, 127], np.int8), (3 * _GROUP, width))
    codes[0], codes[1] = 127, -127
    exact = codes.astype(np.int64) @ codes.astype(np.int64).T
    try:
        return all((_multiply(codes, _columns(codes[:n])).numpy() == exact[:, :n]).all() for n in (1, 2, len(codes)))
    except (ImportError, AttributeError, RuntimeError, BufferError):
        return False


def _columns(codes: Int[np.ndarray, "q width"]) -> Int[Tensor, "width q"]:
    import torch

    return torch.from_numpy(codes.copy()).T.contiguous()


def _multiply(codes: Int[np.ndarray, "n width"], queries: Int[Tensor, "width q"]) -> Int[Tensor, "n q"]:
    import torch

    product: Int[Tensor, "n q"] = torch._int_mm(torch.utils.dlpack.from_dlpack(codes), queries)
    return product


@dataclass(frozen=True, eq=False)
class CertifiedRows:
    """The rows that were not proven to have no weight.

    Attributes:
        rows: their indices, in ascending order.
        omitted: `(q,)`, an upper bound of the weight of all other rows; 0 without a tolerance.
        size: number of bytes of the codes that were read.
    """

    rows: Int[np.ndarray, " n"]
    omitted: Float[np.ndarray, " q"]
    size: int


class CodeScan:
    """A pass over the codes of a store for a group of queries.

    Args:
        logits: the logits of a product or a cosine, which the codes bound.
        normalizer: the normalizer, which is bounded, or a softmax with a `tolerance`.
        codes: the codes of the store.
        total: number of rows of the store.
        tolerance: the largest weight that may be left out.
    """

    def __init__(
        self, logits: VectorLogits, normalizer: Normalizer, codes: VectorCodes, total: int, tolerance: float
    ) -> None:
        self.logits, self.normalizer, self.codes, self.tolerance = logits, normalizer, codes, tolerance
        self.total, self.softmax = total, normalizer.log_sum_exp
        coded = Codes.of(logits.query)
        norm = np.linalg.norm(logits.query.astype(np.float64), axis=1)
        self.usable = bool(
            not (self.softmax and tolerance == 0)
            and logits.kind in ("", "inverse")
            and logits.query.shape[1] >= _LEAST_WIDTH
            and (np.isfinite(norm) & ((norm == 0) | (norm > 1 / _LARGEST)) & (norm < _LARGEST)).all()
            and multiplies_codes(logits.query.shape[1])
        )
        if not self.usable:
            return
        self.queries, self.scale = _columns(coded.codes), np.where(coded.scale > 0, coded.scale, 1)
        residual = coded.residual + _ROUNDING * (norm + coded.residual)
        self.norms = np.array([norm * (1 + _ROUNDING), residual * (1 + _ROUNDING)], "f4")
        support = SUPPORT if normalizer.top_k is None else normalizer.top_k
        # Rows so far below the largest logit have at most a quarter of the weight that may be left out.
        self.level = math.log(tolerance / 4 / total) if self.softmax else 0.0
        self.top = RunningTopK((len(norm),), 1 if self.softmax else support, np.float32)

    def find(
        self, tiles: Callable[[], Iterable[RowTile]], excluded_of: Callable[[RowTile], Bool[np.ndarray, " rows"] | None]
    ) -> CertifiedRows | None:
        """Return the rows that can have weight, or None if the scan of all rows is needed, or faster.

        Args:
            tiles: returns the tiles; called twice.
            excluded_of: returns which rows of a tile are excluded, or None for no row.
        """
        reached: list[_Found] = []
        most_groups, most_rows = _MOST[len(self.scale) > 1]
        seen = size = pairs = 0
        for number, tile in enumerate(tiles(), 1):
            codes = self._codes(tile, slice(None))
            if codes is None:
                return None
            lower, upper = self._bounds(codes, excluded_of(tile), _GROUP)
            higher = lower[(lower > self.top.rank[:, -1]).any(axis=1)]
            self.top.update(np.ascontiguousarray(higher.T), 0)
            reached.append(self._reaching(lower, upper))
            seen, size = seen + tile.table.num_rows, size + codes.codes.nbytes + 3 * codes.scale.nbytes
            pairs += len(reached[-1][0])
            if (number > 2 and number & (number - 1) == 0) or pairs > _MOST_PAIRS:
                bound = self._bound()
                reached = [_some(each, each[3] >= bound[each[0]]) for each in reached]
                pairs = sum(len(each[0]) for each in reached)
                again = sum(len(np.unique(each[1])) for each in self._groups(reached)[0]) * _GROUP
                # A tile adds its share to a softmax until the nearest row is found; of others the nearest rows remain.
                most = most_groups * (seen * (2 - seen / self.total) if self.softmax else self.total)
                if again > most or pairs > _MOST_PAIRS:
                    return None
        groups, skipped = self._groups(reached)
        rows: list[tuple[Codes, Int[np.ndarray, " n"], Bool[np.ndarray, "n q"]]] = []
        parts = [each for each in groups if not len(each[0])][:1]
        for tile, own in zip(tiles(), groups, strict=True):
            rows += [self._rows(tile, own, excluded_of(tile))] if len(own[0]) else []
            if sum(len(row) for _, row, _ in rows) > 8 * _CODED:
                parts, rows = [*parts, self._compare(rows)], []
        found = _concatenated([*parts, self._compare(rows)] if rows else parts)
        omitted = np.zeros(len(self.scale))
        if self.softmax:
            kept, _, omitted = self._leave_out(found, skipped, self.tolerance, 1)
            found = _some(found, kept)
        row = np.unique(found[1])
        # Where norms differ by many orders, rounding may hide the row of the largest logit.
        few = len(row) <= most_rows * self.total and (omitted <= self.tolerance).all()
        return CertifiedRows(row, omitted, size) if few else None

    def _codes(self, tile: RowTile, rows: Int[np.ndarray, " n"] | slice) -> Codes | None:
        """Return the codes of some rows of a tile, divided by the norms for a cosine; None if a logit may overflow."""
        codes = self.codes.load(tile, self.logits.column)
        codes = None if codes is None else codes.take(rows)
        if codes is not None and self.logits.kind:
            inverse, largest = self.logits.norms.load(tile, self.logits.column, self.logits.kind)
            inverse = inverse[rows].astype(np.float32, copy=False)
            scale, residual, norm = (each * inverse for each in (codes.scale, codes.residual, codes.norm))
            codes = Codes(codes.codes, scale, residual, norm) if largest < np.inf else None
        return codes if codes is not None and codes.norm.max(initial=0) < _LARGEST else None

    @with_torch_defaults
    def _bounds(
        self, codes: Codes, excluded: Bool[np.ndarray, " rows"] | None, group: int
    ) -> tuple[Float[np.ndarray, "groups q"], Float[np.ndarray, "groups q"]]:
        """Return a lower and an upper bound of the largest rank of each group of rows, −inf for excluded rows."""
        import torch
        from torch.utils.dlpack import from_dlpack  # torch.from_numpy warns of mapped arrays, which cannot be written

        n, q = len(codes.scale), len(self.scale)
        groups, step = -(-n // group), max(1, _PAIRS // (q * group)) * group
        factor, whole = from_dlpack(codes.scale)[:, None], torch.empty(groups, q, dtype=torch.float32)
        part = whole if group == 1 else whole.new_empty(min(step, groups * group), q)
        for start in range(0, n, step):
            stop = min(start + step, n)
            end = -(-stop // group)
            rows = whole[start:stop] if group == 1 else part[: end * group - start]
            rows[stop - start :] = -torch.inf
            own = rows[: stop - start].copy_(_multiply(codes.codes[start:stop], self.queries)).mul_(factor[start:stop])
            if excluded is not None:
                own[torch.from_numpy(excluded[start:stop])] = -torch.inf
            if group > 1:
                torch.amax(rows.view(-1, group, q), 1, out=whole[start // group : end])
        sides = whole.new_zeros(2, groups * group)
        sides[0, :n], sides[1, :n] = from_dlpack(codes.residual), from_dlpack(codes.norm)
        largest = torch.nn.functional.max_pool1d(sides, group).T  # takes a third of the time of amax
        whole *= torch.from_numpy(self.scale)
        norms = torch.from_numpy(self.norms)
        lower, upper = (torch.addmm(whole, largest, norms, alpha=sign).numpy() for sign in (-1, 1))
        lower -= _SMALLEST
        upper += _SMALLEST
        return np.asarray(self.normalizer.prepare(lower)), np.asarray(self.normalizer.prepare(upper))

    def _bound(self) -> Float[np.ndarray, " q"]:
        """Return for each query a lower bound of the ranks of the rows that have weight."""
        rank = self.top.rank.astype(np.float64)
        if self.softmax:
            return rank[:, 0] + self.level
        if self.normalizer.top_k is not None:
            return rank[:, -1]
        with np.errstate(invalid="ignore", divide="ignore"):
            bound = np.asarray(self.normalizer.threshold_bound(rank))[:, 0]
            bound = bound - _ROUNDING * (1 + np.abs(bound))
        return np.where(np.isnan(bound), -np.inf, bound)

    def _reaching(
        self,
        lower: Float[np.ndarray, "n q"],
        upper: Float[np.ndarray, "n q"],
        among: Bool[np.ndarray, "n q"] | None = None,
    ) -> _Found:
        """Return the pairs whose rank may be at least the bound of the query: query, place, and bounds of the rank."""
        bound = self._bound().astype(upper.dtype)
        reached = upper >= bound if (bound > -np.inf).all() else (upper >= bound) & (upper > -np.inf)
        flat = np.flatnonzero(reached if among is None else reached & among)
        place, query = np.divmod(flat, len(bound))
        return query, place, lower.reshape(-1)[flat], upper.reshape(-1)[flat]

    def _groups(self, reached: list[_Found]) -> tuple[list[_Found], Float[np.ndarray, " q"]]:
        """Return the pairs of each tile whose rows are compared again, and the weight of the rows of all others."""
        bound, found = self._bound(), _concatenated(reached)
        kept, skipped = found[3] >= bound[found[0]], np.zeros(len(bound))
        if self.softmax:
            alive = np.flatnonzero(kept)
            skipped += self.total * math.exp(self.level)
            kept[alive], skipped, _ = self._leave_out(_some(found, alive), skipped, self.tolerance / 2, _GROUP)
        ends = np.cumsum([len(each[0]) for each in reached])[:-1]
        return [_some(each, own) for each, own in zip(reached, np.split(kept, ends), strict=True)], skipped

    def _rows(
        self, tile: RowTile, pairs: _Found, excluded: Bool[np.ndarray, " rows"] | None
    ) -> tuple[Codes, Int[np.ndarray, " n"], Bool[np.ndarray, "n q"]]:
        """Return the rows of groups: their codes, their indices, and with which queries they are compared."""
        groups, place = np.unique(pairs[1], return_inverse=True)
        among = np.zeros((len(groups), len(self.scale)), bool)
        among[place, pairs[0]] = True
        row = (groups[:, None] * _GROUP + np.arange(_GROUP)).reshape(-1)
        own = np.flatnonzero(row < tile.table.num_rows)
        own = own if excluded is None else own[~excluded[row[own]]]
        codes = self._codes(tile, row[own])
        assert codes is not None
        return codes, row[own] + tile.number, among[own // _GROUP]

    def _compare(self, rows: Sequence[tuple[Codes, Int[np.ndarray, " n"], Bool[np.ndarray, "n q"]]]) -> _Found:
        """Return the rows whose rank may be at least the bound of a query: query, index, and bounds of the rank."""
        codes, row, among = zip(*rows, strict=True)
        bounds = self._bounds(Codes.concat(codes), None, 1)
        query, place, lower, upper = self._reaching(*bounds, np.concatenate(among))
        return query, np.concatenate(row)[place], lower, upper

    def _leave_out(
        self, found: _Found, skipped: Float[np.ndarray, " q"], tolerance: float, size: int
    ) -> tuple[Bool[np.ndarray, " n"], Float[np.ndarray, " q"], Float[np.ndarray, " q"]]:
        """Select the rows or groups that remain if those of the least weight are left out.

        Args:
            found: the rows or groups.
            skipped: the weight of all others, relative to that of the largest logit.
            tolerance: the largest share of the weights that is left out.
            size: number of rows of a group.

        Returns:
            Booleans, and the weight of the rows that are left out: relative to the largest, and as a share.
        """
        query, _, lower, upper = found
        kept, mass, share = np.ones(len(query), bool), skipped.copy(), np.zeros(len(skipped))
        by_query = np.argsort(query, kind="stable")
        ends = np.searchsorted(query[by_query], np.arange(len(skipped) + 1))
        for number, largest in enumerate(self.top.rank[:, 0].astype(np.float64)):
            own = by_query[ends[number] : ends[number + 1]]
            if not len(own):
                continue
            own = own[np.argsort(upper[own])]
            shift = max(largest, float(lower[own].max()))
            with np.errstate(over="ignore", invalid="ignore"):
                low, high = (np.exp(each[own].astype(np.float64) - shift) for each in (lower, upper))
                head = np.append(low[::-1].cumsum()[::-1], 0.0)
                tail = skipped[number] * np.exp(largest - shift) + np.append(0.0, size * high.cumsum())
                ratio = np.where(np.isfinite(tail), tail / (head + tail), 1.0) * (1 + _ROUNDING)
                count = max(0, int(np.searchsorted(ratio, tolerance, side="right")) - 1)
                mass[number], share[number] = tail[count] * np.exp(shift - largest), ratio[count]
            kept[own[:count]] = False
        return kept, mass, share


def _concatenated(parts: list[_Found]) -> _Found:
    query, place, lower, upper = (np.concatenate([part[n] for part in parts]) for n in range(4))
    return query, place, lower, upper


def _some(found: _Found, chosen: Bool[np.ndarray, " n"] | Int[np.ndarray, " m"]) -> _Found:
    query, place, lower, upper = (each[chosen] for each in found)
    return query, place, lower, upper
