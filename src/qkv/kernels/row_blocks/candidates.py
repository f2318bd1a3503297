"""Attention over the candidates of each query, that is, the few keys that can have non-zero weight.

The keys of the k largest logits of a long row are selected tile by tile. Otherwise the normalizer computes a
`threshold_bound` from the largest rank of each group of keys, and only groups that reach this bound are searched key by
key. For a normalizer that gives weight to few keys, this takes one reduction over each row, without sorting. The output
is a weighted sum over the values of the candidates, and the backward pass uses only their keys and values:

    dL/dw_ij = do_i · v_j        dL/dv_j += Σ_i w_ij do_i        dL/dl from the normalizer, on the candidates
    dL/dq_i += Σ_j dl_ij k_j     dL/dk_j += Σ_i dl_ij q_i        for an inner product; other scores by autograd
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch

from qkv.core.arrays import dtype_name
from qkv.core.equation import TorchCall, apply_dropout
from qkv.core.ordering import RunningTopK, largest_elements, pack_ranks, unpack_ranks
from qkv.core.tile import take_range
from qkv.core.typing import Float, Int, Num, OutputTensor, Tensor
from qkv.kernels.row_blocks.rows import RowLogits, logit_tiles, visible_range
from qkv.kernels.runtime.gradients import accumulate, block_tensors, leaves_of, traced_logits
from qkv.kernels.runtime.tile_loop import Limits, ranges, row_weights
from qkv.normalizers import Normalizer
from qkv.scores.forms import Product

_DENSE_KEYS = 20
"""Number of keys for each candidate up to which weighted sums for keys are products with an array of all pairs."""
_SCATTERED = 2**18
"""Elements of the products that are added to the rows of keys at once: 1 MiB in float32."""


def can_pack(ranks: Float[Tensor, "rows width"]) -> bool:
    """Return whether ranks can be packed with their keys into 64-bit integers: float32 tensors on a CPU."""
    return ranks.device.type == "cpu" and str(ranks.dtype) == "torch.float32"


def select_top_k(
    ranks: Float[Tensor, "rows width"],
    group_max: Float[Tensor, "rows groups"],
    bound: Float[Tensor, "rows 1"],
    count: int,
    max_candidates: int,
) -> tuple[Int[Tensor, "rows selected"], Float[Tensor, "rows selected"]] | None:
    """Return the keys and ranks of the top k of each row, in any order, or None if too many reach the bound.

    Args:
        ranks: values to compare. Key j belongs to group j modulo `groups`.
        group_max: largest rank of each group.
        bound: lower bound that at least `count` ranks of each row, or all finite ranks, reach.
        count: number k of keys to select.
        max_candidates: largest number of ranks per row that may reach the bound.

    Returns:
        Keys and ranks, where rows with fewer than k keys are padded with key 0 and rank −inf. None if more than
        `max_candidates` ranks of a row reach the bound.
    """
    numbers, maxima, bounds = (np.asarray(x.detach()) for x in (ranks, group_max, bound))
    rows, width = numbers.shape
    reached = np.flatnonzero(maxima >= bounds)
    if len(reached) > rows * max_candidates:
        return None
    row, group = np.divmod(reached, maxima.shape[1])
    positions = (row * width + group)[:, None] + np.arange(0, width, maxima.shape[1])
    members = numbers.reshape(-1).take(positions)
    hits = np.flatnonzero(members >= bounds[:, 0].take(row)[:, None])
    if len(hits) > rows * max_candidates:
        return None
    row = row.take(hits // positions.shape[1])
    packed = pack_ranks(members.reshape(-1).take(hits), positions.reshape(-1).take(hits) - row * width)
    lengths = np.bincount(row, minlength=rows)
    longest = int(lengths.max(initial=1))
    if longest > max_candidates:
        return None
    # Each query has one row, in which the ranks that reach the bound come first.
    starts = np.cumsum(lengths) - lengths
    table = np.full((rows, longest), pack_ranks(np.full(1, -np.inf, numbers.dtype), np.zeros(1, np.int64))[0])
    table.reshape(-1)[np.arange(len(row)) + (row * longest - starts.take(row))] = packed
    if longest > count:
        table = largest_elements(table, count)
    keys, selected = unpack_ranks(table)
    return torch.from_numpy(keys.astype(np.int32)), torch.from_numpy(selected)


@dataclass(frozen=True)
class Candidates:
    """Keys of each query of a row block that can have non-zero weight.

    They are in key order if ties depend on the order, and in descending order of logits if they are the top k.

    Attributes:
        index: indices of the keys in the call, int32, padded with 0 in rows with fewer candidates. Leading axes are
            those of the batch elements of the block.
        logits: logits of these keys, padded with −inf.
        ranks: values by which the normalizer selects keys: the logits, plus random noise for stochastic normalizers.
    """

    index: Int[Tensor, "*batch rows candidates"]
    logits: Float[Tensor, "*batch rows candidates"]
    ranks: Float[Tensor, "*batch rows candidates"]


_CandidateBlock = tuple[Limits, Candidates | None]
"""Range of queries and their candidates, which are None for a block that attends to all keys."""


def consecutive(
    blocks: Iterable[_CandidateBlock], size: Callable[[Candidates], int], limit: int
) -> Iterator[list[_CandidateBlock]]:
    """Yield lists of consecutive row blocks, each extended until its total size reaches `limit`.

    A block without candidates forms its own group.

    Example:
        >>> import torch
        >>> two = Candidates(torch.zeros(2, 3, dtype=torch.int32), torch.zeros(2, 3), torch.zeros(2, 3))
        >>> blocks = [((0, 2), two), ((2, 4), two), ((4, 6), two), ((6, 8), None)]
        >>> [len(group) for group in consecutive(blocks, lambda block: len(block.index), 4)]
        [2, 1, 1]
    """
    group: list[_CandidateBlock] = []
    total = 0
    for rows, candidates in blocks:
        if candidates is None and group:
            yield group
            group, total = [], 0
        group.append((rows, candidates))
        total += limit if candidates is None else size(candidates)
        if total >= limit:
            yield group
            group, total = [], 0
    if group:
        yield group


# -- Search ------------------------------------------------------------------------------------------------


def select_candidates(call: TorchCall, rows: Limits, cols: Limits, tile_keys: int) -> Candidates | None:
    """Return the keys of the `top_k` largest logits of a row block, or None if a logit is NaN or +inf.

    Args:
        call: call restricted to one batch element.
        rows: range of the queries.
        cols: range of the keys.
        tile_keys: number of keys per tile of logits.
    """
    assert call.normalizer.top_k is not None
    count = min(call.normalizer.top_k, call.tile.k_total)
    selected = RunningTopK((rows[1] - rows[0],), count, np.dtype(dtype_name(call.value)))
    for first, logits in logit_tiles(call, rows, cols, tile_keys):
        selected.update(np.asarray(logits.detach()), first)
    if bool((selected.rank == np.inf).any()):
        return None
    logits = torch.from_numpy(selected.rank)
    return Candidates(torch.from_numpy(np.maximum(selected.index, 0).astype(np.int32)), logits, logits)


def find_candidates(block: RowLogits, normalizer: Normalizer, max_candidates: int) -> Candidates | None:
    """Return the keys whose rank reaches the normalizer's `threshold_bound`, or None if all keys must be used.

    Returns:
        The candidates. None if the normalizer returns no bound, as for NaN, or if a query has more than
        `max_candidates` keys above its bound, because attending to all keys is then cheaper.
    """
    if not float(block.group_max.amax()) < math.inf:
        return None
    bound = normalizer.threshold_bound(block.group_max)
    if bound is None:
        return None
    bound = cast("Tensor", bound).clamp(min=torch.finfo(bound.dtype).min)  # so that no rank of −inf reaches the bound
    lead = block.padded.shape[:-1]
    bound = bound.expand(*lead, 1).reshape(-1, 1)
    padded, ranks, group_max = (x.view(-1, x.shape[-1]) for x in (block.padded, block.ranks, block.group_max))
    rows = RowLogits(padded, padded if block.ranks is block.padded else ranks, group_max, block.cols)
    found: Candidates | None = None
    if normalizer.top_k is not None and can_pack(ranks):
        selected = select_top_k(ranks, group_max, bound, normalizer.top_k, max_candidates)
        found = None if selected is None else _with_logits(rows, *selected)
    else:
        position = _positions_above(ranks, group_max, bound, max_candidates)
        if position is not None:
            # Ties go to the first key.
            found = _table(rows, position.sort().values if normalizer.selects_keys else position, max_candidates)
    if found is None or len(lead) == 1:
        return found
    index, logits = (x.view(*lead, x.shape[-1]) for x in (found.index, found.logits))
    return Candidates(index, logits, logits if found.ranks is found.logits else found.ranks.view(logits.shape))


def _positions_above(
    ranks: Float[Tensor, "rows width"],
    group_max: Float[Tensor, "rows groups"],
    bound: Float[Tensor, "rows 1"],
    max_candidates: int,
) -> Int[Tensor, " n"] | None:
    """Return the flat positions of all ranks that reach the bound of their row, or None if there are too many."""
    width, groups = ranks.shape[1], group_max.shape[1]
    reached = group_max >= bound
    # Each group that reaches the bound has at least one candidate.
    if int(reached.sum(dim=-1, dtype=torch.int32).amax()) > max_candidates:
        return None
    row, group = reached.nonzero(as_tuple=True)
    members = torch.arange(0, width, groups, dtype=torch.int32, device=row.device)
    position = (row * width + group).to(torch.int32)[:, None] + members
    member_ranks = ranks.view(-1).index_select(0, position.view(-1)).view(position.shape)
    return position[member_ranks >= bound.index_select(0, row)]


def _table(block: RowLogits, position: Int[Tensor, " n"], max_candidates: int) -> Candidates | None:
    """Return a table of candidates with one row per query, or None if a row would exceed `max_candidates`."""
    count, width = block.ranks.shape
    row = position // width
    lengths = torch.bincount(row, minlength=count)
    longest = max(1, int(lengths.amax()))
    if longest > max_candidates:
        return None
    row_start = (lengths.cumsum(0) - lengths).to(torch.int32)
    column = torch.arange(len(position), dtype=torch.int32, device=position.device) - row_start.index_select(0, row)
    target = (row * longest + column).long()
    index = torch.zeros(count * longest, dtype=torch.int32, device=position.device)
    index[target] = position - row * width + block.cols[0]

    def table(numbers: Float[Tensor, "rows width"]) -> Float[Tensor, "rows candidates"]:
        out = numbers.new_full((count * longest,), -math.inf)
        out[target] = numbers.view(-1).index_select(0, position)
        return out.view(count, longest)

    logits = table(block.padded)
    return Candidates(index.view(count, longest), logits, logits if block.ranks is block.padded else table(block.ranks))


def _with_logits(
    block: RowLogits, keys: Int[Tensor, "rows candidates"], ranks: Float[Tensor, "rows candidates"]
) -> Candidates:
    if block.ranks is block.padded:
        return Candidates(keys + block.cols[0], ranks, ranks)
    logits = block.padded.gather(1, keys.long()).where(ranks > -math.inf, -math.inf)
    return Candidates(keys + block.cols[0], logits, ranks)


# -- Forward and backward ----------------------------------------------------------------------------------


def attend_candidates(
    call: TorchCall,
    blocks: Sequence[_CandidateBlock],
    output: OutputTensor,
    read: Callable[[Limits, Int[Tensor, "rows candidates"], Float[Tensor, "rows candidates"]], None],
) -> list[Candidates | None]:
    """Write the output of consecutive row blocks and return the candidates that the backward pass needs.

    Args:
        call: call restricted to the batch elements of the blocks.
        blocks: range and candidates of each row block.
        output: output of all queries, in which the rows of these blocks are overwritten.
        read: function that is called with the range of queries, the keys of their candidates and the weights of these.
    """
    rows, candidates = _concat(blocks)
    weights = _candidate_weights(call, candidates, rows)
    tile = call.tile.restrict(rows, (0, call.tile.k_total))
    read(rows, candidates.index, weights)
    dropped = apply_dropout(weights, tile, call.dropout, keys=candidates.index)
    take_range(output, rows).copy_(_gather_sum(candidates.index, call.value, dropped))
    if call.normalizer.differentiable:
        return [found for _, found in blocks]
    # The logits receive no gradient, so only the keys that may have weight are saved.
    count = weights.shape[-1]
    selected = weights.topk(min(call.normalizer.top_k or count, count)).indices
    lengths = [stop - start for (start, stop), _ in blocks]
    split = torch.split
    parts = zip(
        split(candidates.index.gather(-1, selected), lengths, dim=-2),
        split(weights.gather(-1, selected), lengths, dim=-2),
        strict=True,
    )
    return [Candidates(index, weight, weight) for index, weight in parts]


def backward_candidates(
    call: TorchCall,
    sums: TorchCall,
    blocks: Sequence[_CandidateBlock],
    gradient: OutputTensor,
    requires_grad: Sequence[bool],
    tile_keys: int,
) -> None:
    """Add the gradients of consecutive row blocks, computed from their candidates, to `sums`.

    Args:
        call: call restricted to the batch elements of the blocks.
        sums: the same call with a gradient in place of each array, to which gradients are added in place.
        blocks: range and candidates of each row block.
        gradient: gradient of the output.
        requires_grad: whether query, key, value and each array of score and normalizer require a gradient.
        tile_keys: number of keys per tile, for scores that are not inner products.
    """
    rows, candidates = _concat(blocks)
    normalizer, index = call.normalizer, candidates.index
    leaves = leaves_of([candidates.logits, *normalizer.arrays()]) if normalizer.differentiable else []
    with torch.enable_grad():
        weights = candidates.logits
        if leaves:
            ranks = leaves[0] if candidates.ranks is candidates.logits else candidates.ranks
            trained = replace(call, normalizer=normalizer.replace_arrays(tuple(leaves[1:])))
            weights = _candidate_weights(trained, Candidates(index, leaves[0], ranks), rows)
        dropped = apply_dropout(weights, call.tile.restrict(rows, (0, call.tile.k_total)), call.dropout, keys=index)
        (weight,) = leaves_of([dropped])
    gradient = take_range(gradient, rows)
    if requires_grad[2]:
        _add_scatter_sum(sums.value, index, weight.detach(), gradient)
    if not (leaves and dropped.requires_grad):
        return
    with torch.enable_grad():
        output = _gather_sum(index, call.value, weight)
    (weight_gradient,) = torch.autograd.grad(output, weight, gradient)
    logit_gradient = torch.zeros_like(candidates.logits)
    totals = [logit_gradient, *cast("tuple[Tensor, ...]", sums.normalizer.arrays())]
    accumulate([dropped], [weight_gradient], leaves, totals)
    if not (call.projected and isinstance(call.score.form, Product)):
        _backward_score(call, sums, blocks, index, logit_gradient, tile_keys)
        return
    if requires_grad[0]:
        target = take_range(sums.query, rows)
        target.add_(_gather_sum(index, call.key, logit_gradient).sum_to_size(target.shape))
    if requires_grad[1]:
        _add_scatter_sum(sums.key, index, logit_gradient, take_range(call.query, rows))


def _backward_score(
    call: TorchCall,
    sums: TorchCall,
    blocks: Sequence[_CandidateBlock],
    index: Int[Tensor, "*batch rows candidates"],
    logit_gradient: Float[Tensor, "*batch rows candidates"],
    tile_keys: int,
) -> None:
    """Add the gradients of query, key and the score's arrays to `sums`, by autograd on each tile of logits."""
    first = blocks[0][0][0]
    for rows, _ in blocks:
        visible = visible_range(call, rows)
        own_index, own_gradient = (x[..., rows[0] - first : rows[1] - first, :] for x in (index, logit_gradient))
        for start, stop in ranges(visible[1] - visible[0], tile_keys):
            cols = (visible[0] + start, visible[0] + stop)
            own = own_index.long() - cols[0]
            inside = (own >= 0) & (own < cols[1] - cols[0])
            dense = logit_gradient.new_zeros((*own.shape[:-1], cols[1] - cols[0]))
            dense.scatter_add_(-1, own.where(inside, 0), own_gradient.where(inside, 0.0))
            leaves = leaves_of(block_tensors(call, rows, cols))
            with torch.enable_grad():
                logits, _ = traced_logits(call, rows, cols, leaves)
            if logits is not None:
                accumulate([logits], [dense.sum_to_size(logits.shape)], leaves, block_tensors(sums, rows, cols))


def _candidate_weights(
    call: TorchCall, candidates: Candidates, rows: Limits
) -> Float[Tensor, "*batch rows candidates"]:
    tile, logits = call.tile.restrict(rows, (0, call.tile.k_total)), candidates.logits
    if call.normalizer.power is not None:
        return cast("Tensor", row_weights(call.normalizer, logits, tile))
    # If the candidates are exactly the top k, the normalizer does not have to select again.
    normalizer = call.normalizer.simplify(logits.shape[-1])
    return cast("Tensor", normalizer.candidate_weights(logits, candidates.ranks, tile))


def _gather_sum(
    index: Int[Tensor, "*batch rows candidates"],
    table: Float[Tensor, "*#batch k width"],
    weights: Float[Tensor, "*batch rows candidates"],
) -> Float[Tensor, "*batch rows width"]:
    """Return Σ_s weights[i, s] · table[index[i, s]] without an array of the gathered rows."""
    lead, (k, width) = index.shape[:-1], table.shape[-2:]
    if not width:  # of rows without elements, `embedding_bag` may refuse indices that exist
        return weights.sum(dim=-1, keepdim=True) * table.flatten(0, -2).sum(dim=0)
    if len(lead) > 1:
        index, table = _of_whole_batch(index, k), table.expand(*lead[:-1], k, width).reshape(-1, width)
        weights = weights.reshape(index.shape)
    found = torch.nn.functional.embedding_bag(index, table, per_sample_weights=weights, mode="sum")
    return found.view(*lead, width)


def _add_scatter_sum(
    target: Float[Tensor, "*#batch k width"],
    index: Int[Tensor, "*batch rows candidates"],
    weights: Float[Tensor, "*batch rows candidates"],
    rows: Float[Tensor, "*#batch rows width"],
) -> None:
    """Add Σ weights[i, s] · rows[i] over all i, s with index[i, s] = j to each row j of `target`.

    Both ways take a third or less of the time of the gradient of `embedding_bag`.
    """
    k, width, candidates = *target.shape[-2:], index.shape[-1]
    positions = index.long()
    if k <= _DENSE_KEYS * candidates:
        pairs = weights.new_zeros((*index.shape[:-1], k)).scatter_add_(-1, positions, weights)
        target.add_((pairs.mT @ rows).sum_to_size(target.shape))
        return
    lead = index.shape[:-2]
    total = target if target.is_contiguous() and target.shape[:-2] == lead else target.new_zeros((*lead, k, width))
    positions = _of_whole_batch(positions, k)
    weights, rows = weights.reshape(positions.shape), rows.expand(*lead, -1, -1).reshape(len(positions), width)
    for start, stop in ranges(len(rows), max(1, _SCATTERED // max(1, candidates * width))):
        products = weights[start:stop, :, None] * rows[start:stop, None]
        total.flatten(0, -2).index_add_(0, positions[start:stop].flatten(), products.flatten(0, 1))
    if total is not target:
        target.add_(total.sum_to_size(target.shape))


def _of_whole_batch(index: Int[Tensor, "*batch rows candidates"], k: int) -> Int[Tensor, "all_rows candidates"]:
    """Return the indices of keys in the keys of all batch elements, which follow one another."""
    count = math.prod(index.shape[:-2])
    first = torch.arange(0, count * k, k, dtype=index.dtype, device=index.device)
    return (index.view(count, -1) + first[:, None]).view(-1, index.shape[-1])


def _concat(blocks: Sequence[_CandidateBlock]) -> tuple[Limits, Candidates]:
    """Return the range of queries of consecutive row blocks, and their candidates padded to one width."""
    rows = (blocks[0][0][0], blocks[-1][0][1])
    found = [candidates for _, candidates in blocks if candidates is not None]
    if len(found) == 1:
        return rows, found[0]
    longest = max(x.index.shape[-1] for x in found)

    def concat(arrays: list[Num[Tensor, "*_"]], fill: float) -> Num[Tensor, "*batch rows candidates"]:
        pad = torch.nn.functional.pad
        return torch.cat([pad(x, (0, longest - x.shape[-1]), value=fill) for x in arrays], dim=-2)

    logits = concat([x.logits for x in found], -torch.inf)
    shared = all(x.ranks is x.logits for x in found)
    ranks = logits if shared else concat([x.ranks for x in found], -torch.inf)
    return rows, Candidates(concat([x.index for x in found], 0), logits, ranks)
