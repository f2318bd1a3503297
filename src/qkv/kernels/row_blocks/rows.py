"""Logits of a row block, that is, of some queries of some batch elements with all keys that the mask allows.

They are stored in a buffer that is reused for every block.

Each row is padded to a multiple of the group size. From the largest rank of each group the normalizer computes its
`threshold_bound`, and the search for candidates (`candidates.py`) skips groups below this bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch

from qkv.core.equation import TorchCall
from qkv.core.tile import take_range
from qkv.core.typing import Float, Tensor
from qkv.kernels.runtime.tile_loop import Limits, ranges
from qkv.masks.base import restrict_mask
from qkv.scores.forms import Product

_GROUP_SIZE = 8
"""Number of keys in a group."""
_DRAWS = 2**16
"""Number of pairs whose ranks are computed at once. Random numbers need about 12 temporary arrays of this size."""
_COVERAGE_CHUNKS = 16
"""Largest number of ranges of keys for which the coverage of the mask is computed."""


@dataclass(frozen=True)
class RowLogits:
    """Logits of a block of queries with all keys in a range, padded to a multiple of the group size.

    Attributes:
        padded: logits `(*batch, rows, width)`, −inf for masked keys and for the padding at the end of each row.
        ranks: values by which the normalizer selects keys: the logits, plus random noise for stochastic normalizers.
        group_max: largest rank of each group, `(*batch, rows, groups)`. Key j belongs to group j modulo `groups`.
        cols: range of the keys.
    """

    padded: Float[Tensor, "*batch rows width"]
    ranks: Float[Tensor, "*batch rows width"]
    group_max: Float[Tensor, "*batch rows groups"]
    cols: Limits

    @property
    def logits(self) -> Float[Tensor, "*batch rows k"]:
        """The logits without padding."""
        return self.padded[..., : self.cols[1] - self.cols[0]]


def _padded_width(keys: int) -> int:
    """Return the length of a row of `keys` logits, padded to a multiple of the group size."""
    return -(-keys // _GROUP_SIZE) * _GROUP_SIZE


def row_logits_buffer(call: TorchCall, rows: int) -> Float[Tensor, " size"]:
    """Allocate a buffer for the padded logits of blocks of at most `rows` queries of all batch elements together."""
    return call.value.new_empty(rows * _padded_width(call.tile.k_total))


def visible_range(call: TorchCall, rows: Limits) -> Limits:
    """Return a range of keys that contains all keys to which the queries `rows` may attend."""
    whole = 0, call.tile.k_total
    if call.mask is None:
        return whole
    seen = call.mask.key_range(call.tile.restrict(rows, whole))
    visible = [
        cols
        for cols in _chunks(seen, _coverage_step(call))
        if call.mask.coverage(call.tile.restrict(rows, cols)) != "none"
    ]
    return (visible[0][0], visible[-1][1]) if visible else (0, 0)


def padded_row_logits(
    call: TorchCall, rows: Limits, cols: Limits, buffer: Float[Tensor, " size"], tile_keys: int
) -> RowLogits:
    """Compute the logits of a row block, and the ranks by which the normalizer selects keys.

    Args:
        call: call restricted to the batch elements of the block.
        rows: range of the queries.
        cols: range of the keys, which must contain `visible_range`.
        buffer: buffer for the logits, as returned by `row_logits_buffer`.
        tile_keys: number of keys per tile, for scores that are not inner products.
    """
    lead, keys = (*call.batch, rows[1] - rows[0]), cols[1] - cols[0]
    width = _padded_width(keys)
    padded = buffer[: math.prod(lead) * width].view(*lead, width)
    padded[..., keys:] = -math.inf
    if call.projected and isinstance(call.score.form, Product):
        query = take_range(call.query, rows).expand(*call.batch, -1, -1)
        torch.matmul(query, take_range(call.key, cols).mT, out=padded[..., :keys])
        _apply_mask(call, padded, rows, cols)
    else:
        for tile_cols in _chunks(cols, tile_keys):
            target = padded[..., tile_cols[0] - cols[0] : tile_cols[1] - cols[0]]
            logits = call.logits(rows, tile_cols)
            target.fill_(-math.inf) if logits is None else target.copy_(logits)
    ranks = _ranks(call, padded, rows, cols)
    # Groups are interleaved, so that one vectorized maximum over an axis reduces all groups.
    group_max = ranks.view(*lead, _GROUP_SIZE, width // _GROUP_SIZE).amax(dim=-2)
    return RowLogits(padded, ranks, group_max, cols)


def logit_tiles(
    call: TorchCall, rows: Limits, cols: Limits, tile_keys: int
) -> Iterator[tuple[int, Float[Tensor, "rows keys"]]]:
    """Yield the first key and the logits of each tile of a row block that is not fully masked.

    The arguments are those of `padded_row_logits`. The next tile may overwrite the logits.
    """
    count, product = rows[1] - rows[0], call.projected and isinstance(call.score.form, Product)
    query = take_range(call.query, rows)
    if product and count == 1:  # MKL takes twice as long for one vector as for two (AMD EPYC)
        query = query.repeat(2, 1)
    buffer = call.value.new_empty(len(query) * tile_keys if product else 0)
    for tile_cols in _chunks(cols, tile_keys):
        if product:
            if call.mask is not None and call.mask.coverage(call.tile.restrict(rows, tile_cols)) == "none":
                continue
            # BLAS multiplies a few queries with many keys faster if the keys are on the left.
            by_key = buffer[: (tile_cols[1] - tile_cols[0]) * len(query)].view(-1, len(query))
            torch.mm(take_range(call.key, tile_cols), query.T, out=by_key)
            logits = by_key[:, :count].T
            _apply_mask(call, logits, rows, tile_cols)
        else:
            found = call.logits(rows, tile_cols)
            if found is None:
                continue
            logits = found
        yield tile_cols[0], logits


def _chunks(cols: Limits, step: int) -> Iterator[Limits]:
    return ((cols[0] + start, cols[0] + stop) for start, stop in ranges(cols[1] - cols[0], step))


def _coverage_step(call: TorchCall) -> int:
    return max(512, -(-call.tile.k_total // _COVERAGE_CHUNKS))


def _apply_mask(call: TorchCall, padded: Float[Tensor, "*batch rows width"], rows: Limits, cols: Limits) -> None:
    if call.mask is None:
        return
    for chunk in _chunks(cols, _coverage_step(call)):
        tile = call.tile.restrict(rows, chunk)
        target = padded[..., chunk[0] - cols[0] : chunk[1] - cols[0]]
        coverage, mask = restrict_mask(call.mask, tile)
        if coverage == "none":
            target.fill_(-math.inf)
        elif mask is not None:
            target.masked_fill_(~cast("Tensor", mask.allowed(tile, target)), -math.inf)


def _ranks(
    call: TorchCall, padded: Float[Tensor, "*batch rows width"], rows: Limits, cols: Limits
) -> Float[Tensor, "*batch rows width"]:
    """Return the ranks of a row block, which are its logits or, for stochastic normalizers, a new array."""
    ranks = None
    for chunk in _chunks(cols, max(64, _DRAWS // math.prod(padded.shape[:-1]))):
        at = slice(chunk[0] - cols[0], chunk[1] - cols[0])
        logits = padded[..., at]
        chunk_ranks = call.normalizer.selection_logits(logits, call.tile.restrict(rows, chunk))
        if chunk_ranks is logits:
            return padded
        ranks = torch.full_like(padded, -math.inf) if ranks is None else ranks
        ranks[..., at] = cast("Tensor", chunk_ranks)
    return padded if ranks is None else ranks
