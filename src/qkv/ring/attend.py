"""Sharded calls in PyTorch: agreement of the ranks, binding of the parts, and the differentiable function."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch

from qkv.core.arrays import accumulation_dtype, library, result_dtype
from qkv.core.arrays import cast as cast_array
from qkv.core.equation import BoundCall, TorchCall
from qkv.core.parts import Part
from qkv.core.positions import Positions
from qkv.core.threefry import Seed
from qkv.core.tile import Tile
from qkv.core.typing import Num, OutputTensor, Shaped, Tensor
from qkv.errors import KindError, QkvError
from qkv.kernels.runtime.closure_gradients import refuse_closure_gradients
from qkv.kernels.runtime.gradients import call_tensors
from qkv.kernels.runtime.tile_sizes import tile_sizes
from qkv.kernels.tiled.kernel import BUDGET
from qkv.plan.checks import read_problem, read_seed
from qkv.plan.problem import Problem
from qkv.plan.spec import Spec
from qkv.plan.trial import bind_functions, check_functions
from qkv.ring.autograd import ring_attention
from qkv.ring.layout import Layout, Order
from qkv.ring.local_parts import AnyPart, bind_local, check_mergeable, check_pair_lengths, chunk_problem, query_offset
from qkv.ring.shards import Shards
from qkv.ring.transport import Ring, open_ring


def attend_sharded(
    query: Shaped[Tensor, "*_"],
    key: Shaped[Tensor, "*_"],
    value: Num[Tensor, "*#batch k value_width"],
    spec: Spec,
    group: object,
    order: Order,
    seed: Seed | None,
    memory: int | str | None,
) -> OutputTensor:
    """Return the output of the queries of this rank over the keys of all ranks of a group.

    Args:
        query: queries of this rank.
        key: keys of this rank.
        value: values of this rank.
        spec: score, normalizer, mask, positions and dropout.
        group: process group, device mesh, or None for all processes.
        order: which rank holds which chunks.
        seed: seed of dropout; None: drawn by rank 0.
        memory: budget for scratch memory of each rank.

    Raises:
        QkvError: the call is invalid on some rank, or differs between ranks.
    """
    ring = open_ring(group)
    problem, call, error = None, None, None
    numbers = [0] * 6
    try:
        problem = _read(query, key, value, spec, memory)
        call, pairs = _bind(query, key, value, problem)
        finite = call.finite_sides, call.finite_value
        numbers = [problem.axes.q, problem.axes.k, *map(int, finite), _as_int(read_seed(problem, seed)), pairs]
    except QkvError as raised:
        error = raised
    # A rank that is refused tells the others, which would otherwise wait for its keys.
    agreed = ring.agree(numbers, _description(problem, order), error, _device(ring, value))
    assert problem is not None
    assert call is not None
    of_query, of_key, *flags, seeds, pairs_of_ranks = ([row[n] for row in agreed] for n in range(6))
    queries, keys = Layout.of_lengths("query", of_query, order), Layout.of_lengths("key", of_key, order)
    check_pair_lengths(pairs_of_ranks, keys.length)
    offset = query_offset(
        problem.score,
        spec.mask,
        Tile.whole(queries.length, keys.length, problem.axes.batch, spec.positions),
        spec.positional,
    )
    tile = replace(call.tile, seed=seeds[0] if spec.dropout else None)
    call = replace(call, tile=tile, finite=(all(flags[0]), all(flags[1])))
    longest = (max((b - a for a, b in layout.chunks(0)), default=1) for layout in (queries, keys))
    shards = Shards(ring, queries, keys, offset, tile_sizes(chunk_problem(problem, *longest), BUDGET))
    with torch.autocast(call.value.device.type, enabled=False):
        if torch.is_grad_enabled():
            refuse_closure_gradients(call)
        call = shards.project(shards.precise(call))
        output = ring_attention()(call, shards, *call_tensors(call))
        return cast("Tensor", cast_array(output, call.out_dtype))


def _read(query: Tensor, key: Tensor, value: Tensor, spec: Spec, memory: int | str | None) -> Problem:
    """Check the arguments of this rank and return its problem."""
    if library(query, key, value) != "torch":
        raise KindError(
            "query, key and value must be PyTorch tensors for a process group, got other arrays. Convert them with "
            "torch.as_tensor, or pass the name of a mesh axis within jax.shard_map."
        )
    problem = read_problem(query, key, value, spec, (), memory)
    check_mergeable(problem)
    return problem


def _device(ring: Ring, value: object) -> torch.device:
    """Return the device on which the ranks compare their calls: that of the values, or the first that the group has."""
    import torch.distributed as dist

    device = getattr(value, "device", None)
    if isinstance(device, torch.device) and device.type != "meta":
        return device
    return torch.device("cuda" if "nccl" in str(dist.get_backend(ring.group)) else "cpu")


def _as_int(seed: Seed | None) -> int:
    return int(seed) & (2**62 - 1) if isinstance(seed, int) else 0


def _description(problem: Problem | None, order: Order) -> str:
    """Return a text of the properties of a call that must be equal on all ranks."""
    if problem is None:
        return ""
    axes, spec = problem.axes, problem.spec
    shapes = [(*shape[:-2], "rows", shape[-1]) for shape in (axes.query, axes.key, axes.value)]
    parts = ", ".join(_part_description(part) for part in (spec.score, spec.normalizer, spec.mask) if part is not None)
    return (
        f"{order} shards of shapes {shapes[0]}, {shapes[1]} and {shapes[2]}, {problem.dtype}, {parts}, "
        f"dropout {spec.dropout}, positions {spec.positions}, gradient {problem.gradient}"
    )


def _part_description(part: Part) -> str:
    """Return a text of a part and of the axes of its arrays that do not depend on the numbers of rows."""
    shapes = []
    for array, names in part.array_fields():
        lead = tuple(array.shape[: array.ndim - len(names or ())])
        own = tuple(array.shape[array.ndim - len(names or ()) :])
        shapes.append((*lead, *(name if name in ("q", "k") else n for name, n in zip(names or (), own, strict=True))))
    classes = " ".join(type(each).__name__ for each in part.parts())
    return f"{classes}{shapes or ''}{'' if shapes else f' {part}'}"


def _bind(query: Tensor, key: Tensor, value: Tensor, problem: Problem) -> tuple[TorchCall, int]:
    """Return the call of this rank, and the number of all keys to which arrays of pairs belong, or 0 without any.

    It does what `core.equation.bind_call` does, for arrays of parts that are sharded.
    """
    axes, spec = problem.axes, problem.spec
    dtype = accumulation_dtype(query, key, value)
    pairs = [0]

    def bound(part: AnyPart) -> AnyPart:
        part, count = bind_local(part, value, axes, dtype)
        pairs.append(count)
        return part

    out_dtype = result_dtype(query, key, value)
    if not problem.score.keeps_dtype:
        query, key = cast("Tensor", cast_array(query, dtype)), cast("Tensor", cast_array(key, dtype))
    call = BoundCall(
        query,
        key,
        cast_array(value, dtype),
        bound(problem.score),
        bound(problem.normalizer),
        None if spec.mask is None else bound(spec.mask),
        Tile.whole(axes.q, axes.k, axes.batch, Positions(query_start=0)),
        spec.dropout,
        out_dtype,
    )
    call = bind_functions(call, replace(problem, trials=check_functions(problem)))
    return cast("TorchCall", call.with_axes_of_values()), max(pairs)
