"""Whole rows of logits in PyTorch, and the few keys of each that can get weight.

A strip is `(rows, keys)` in a buffer that is used again. The largest logit of each of some groups of keys
gives the normalizer's `floor`; only groups that reach it are looked at key by key. So normalizers that give
few keys a weight cost a reduction over the strip, and neither sorting nor selecting in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from qkv.core.equation import BoundCall, side
from qkv.core.typing import Tensor
from qkv.kernels.row_blocks.top_k import best_keys, packs
from qkv.normalizers import Normalizer

__all__ = ["Candidates", "Strip", "columns_allowed", "find_kept", "strip_logits", "strip_width"]

Limits = tuple[int, int]

GROUP = 8
"""Keys in a group."""
DRAWN = 2**16
"""Random numbers drawn at once: a dozen arrays of as many words."""
PIECES = 16
"""In so many pieces of the keys, at most, a mask is asked which it allows."""


@dataclass(frozen=True)
class Candidates:
    """The keys of some queries that can get weight, in the order of the keys where that decides anything.

    Attributes:
        index: absolute keys, int32 `(rows, most)`; 0 where a row has fewer.
        logits: `(rows, most)`; −inf there.
        ranks: what decides, as the logits.
    """

    index: Tensor
    logits: Tensor
    ranks: Tensor


@dataclass(frozen=True)
class Strip:
    """Whole rows of some queries.

    Attributes:
        logits: `(rows, strip_width(keys))`.
        ranks: what decides; the logits themselves, unless something is added to them.
        largest: the largest rank of each group, `(rows, groups)`; None where it was not asked for.
        cols: the keys.
    """

    logits: Tensor
    ranks: Tensor
    largest: Tensor | None
    cols: Limits

    @property
    def keys(self) -> Tensor:
        """The logits of the keys alone."""
        return self.logits[:, : self.cols[1] - self.cols[0]]


def strip_width(keys: int) -> int:
    """Numbers in a row of a strip: keys, filled up to whole groups."""
    return -(-keys // GROUP) * GROUP


def columns_allowed(call: BoundCall, rows: Limits) -> Limits:
    """From the first to the last key that the mask may allow some of these queries."""
    k = call.tile.k_total
    if call.mask is None:
        return 0, k
    found = [
        piece for piece in _pieces((0, k), _step(call)) if call.mask.coverage(call.tile.restrict(rows, piece)) != "none"
    ]
    return (found[0][0], found[-1][1]) if found else (0, 0)


def _step(call: BoundCall) -> int:
    return max(512, -(-call.tile.k_total // PIECES))


def _pieces(cols: Limits, step: int) -> list[Limits]:
    return [(at, min(at + step, cols[1])) for at in range(*cols, step)]


def strip_logits(call: BoundCall, rows: Limits, cols: Limits, room: Any, tile_keys: int, ranked: bool = False) -> Strip:
    """Whole rows of logits; −inf where a key is excluded, and in the last columns that are no key.

    Args:
        call: the call of one batch element.
        rows, cols: queries, and the keys that the mask may allow them.
        room: at least `rows · strip_width(keys)` numbers.
        tile: keys compared at once.
        ranked: find the largest rank of each group too.
    """
    import torch

    count, keys = rows[1] - rows[0], cols[1] - cols[0]
    width = strip_width(keys)
    logits = room[: count * width].view(count, width)
    logits[:, keys:] = -math.inf
    if call.projected and call.score.is_product:
        torch.mm(side(call.query, rows), side(call.key, cols).T, out=logits[:, :keys])
        _mask(call, logits, rows, cols)
    else:
        for piece in _pieces(cols, tile_keys):
            into = logits[:, piece[0] - cols[0] : piece[1] - cols[0]]
            of_tile = call.logits(rows, piece)
            into.fill_(-math.inf) if of_tile is None else into.copy_(of_tile)
    if not ranked:
        return Strip(logits, logits, None, cols)
    ranks = _ranks(call, logits, rows, cols)
    # Group g holds every (width / GROUP)-th key from g: so the largest of all groups are found by vectors.
    return Strip(logits, ranks, ranks.view(count, GROUP, width // GROUP).amax(dim=1), cols)


def _mask(call: BoundCall, logits: Any, rows: Limits, cols: Limits) -> None:
    """−inf where the mask does not allow a pair."""
    if call.mask is None:
        return
    for piece in _pieces(cols, _step(call)):
        tile = call.tile.restrict(rows, piece)
        into = logits[:, piece[0] - cols[0] : piece[1] - cols[0]]
        cover = call.mask.coverage(tile)
        if cover == "none":
            into.fill_(-math.inf)
        elif cover == "part":
            into.masked_fill_(~call.mask.slice(slice(*rows), slice(*piece)).allowed(tile, into), -math.inf)


def _ranks(call: BoundCall, logits: Any, rows: Limits, cols: Limits) -> Any:
    """What decides: the logits themselves, or as large a strip, made in pieces, since draws take room."""
    import torch

    ranks = None
    for piece in _pieces(cols, max(64, DRAWN // len(logits))):
        at = slice(piece[0] - cols[0], piece[1] - cols[0])
        of_piece = logits[:, at]
        found = call.normalizer.selection_logits(of_piece, call.tile.restrict(rows, piece))
        if found is of_piece:
            return logits
        ranks = torch.full_like(logits, -math.inf) if ranks is None else ranks
        ranks[:, at] = found
    return ranks


def find_kept(strip: Strip, normalizer: Normalizer, most: int) -> Candidates | None:
    """The keys of a strip that reach the normalizer's floor.

    None where that is not known, as with NaN, or where they are more than `most` for some query: to weigh
    whole rows is cheaper then.
    """
    import torch

    largest, ranks = strip.largest, strip.ranks
    count, width = ranks.shape
    if largest is None or not float(largest.amax()) < math.inf:
        return None
    floor = normalizer.threshold_bound(largest)
    if floor is None:
        return None
    # Below every number, so that −inf does not reach it.
    floor = floor.clamp(min=torch.finfo(floor.dtype).min)
    if normalizer.top_k is not None and packs(ranks):
        best = best_keys(ranks, largest, floor, normalizer.top_k, most)
        return None if best is None else _of_best(strip, *best)
    reached = largest >= floor
    # Each group that reaches it has a key that does.
    if int(reached.sum(dim=-1, dtype=torch.int32).amax()) > most:
        return None
    row, group = reached.nonzero(as_tuple=True)
    step = torch.arange(0, width, width // GROUP, dtype=torch.int32, device=row.device)
    at = (row * width + group).to(torch.int32)[:, None] + step
    found = ranks.view(-1).index_select(0, at.view(-1)).view(at.shape)
    at = at[found >= floor.index_select(0, row)]
    if normalizer.selects_keys:
        at = at.sort().values  # in the order of the keys, since ties go to the first
    row = at // width
    lengths = torch.bincount(row, minlength=count)
    longest = max(1, int(lengths.amax()))
    if longest > most:
        return None
    # Where each stands among those of its row, and that in the table.
    column = torch.arange(len(at), dtype=torch.int32, device=at.device) - (lengths.cumsum(0) - lengths).to(
        torch.int32
    ).index_select(0, row)
    to = (row * longest + column).long()
    index = torch.zeros(count * longest, dtype=torch.int32, device=at.device)
    index[to] = at - row * width + strip.cols[0]

    def table(of: Any) -> Any:
        out = of.new_full((count * longest,), -math.inf)
        out[to] = of.view(-1).index_select(0, at)
        return out.view(count, longest)

    logits = table(strip.logits)
    return Candidates(index.view(count, longest), logits, logits if ranks is strip.logits else table(ranks))


def _of_best(strip: Strip, keys: Any, ranks: Any) -> Candidates:
    if strip.ranks is strip.logits:
        return Candidates(keys + strip.cols[0], ranks, ranks)
    logits = strip.logits.gather(1, keys.long()).where(ranks > -math.inf, -math.inf)
    return Candidates(keys + strip.cols[0], logits, ranks)
