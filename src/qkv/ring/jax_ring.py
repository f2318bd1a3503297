"""Sharded calls in JAX: the ring of `autograd.py` within `jax.shard_map`, with `ppermute` in a compiled loop.

Each turn is a loop over the devices (`jax_device.py`). It computes blocks of one chunk of queries and one chunk of keys
by the tile loop of `kernels/jax_loops/tiles.py`, whose positions are known at run time, and skips blocks that a causal
mask or a window excludes. Sparsemax and 1.5-entmax find the threshold by Newton steps, one turn of the keys each.
"""

from __future__ import annotations

from dataclasses import replace

from qkv.core.arrays import accumulation_dtype, is_floating, library, result_dtype
from qkv.core.arrays import cast as cast_array
from qkv.core.equation import BoundCall
from qkv.core.guard import zero_nonfinite
from qkv.core.parts import AnyPart
from qkv.core.positions import Positions
from qkv.core.threefry import Seed
from qkv.core.tile import Tile, take_range
from qkv.core.typing import Array, Num, OutputArray, Shaped
from qkv.errors import KindError, RefusedError, ShapeError
from qkv.kernels.jax_loops.dynamic_tiles import vary_alike
from qkv.kernels.jax_loops.kernel import BUDGET
from qkv.kernels.runtime.tile_sizes import tile_shape
from qkv.masks import Blocks, Mask
from qkv.plan.checks import read_problem, read_seed
from qkv.plan.problem import Problem
from qkv.plan.spec import Spec
from qkv.ring.jax_device import DeviceCall, Mesh, Saved, cut_part
from qkv.ring.layout import Order
from qkv.ring.local_parts import bind_local, check_mergeable, check_pair_lengths, chunk_problem, query_offset

_Constants = tuple[list[Array], Mask | None, Seed | None, tuple[Array, Array] | None]
"""Integer arrays, mask, seed, and which rows of query and key are not finite."""


def attend_mapped(
    query: Shaped[Array, "*_"],
    key: Shaped[Array, "*_"],
    value: Num[Array, "*#batch k value_width"],
    spec: Spec,
    axis: str,
    order: Order,
    seed: Seed | None,
    memory: int | str | None,
) -> OutputArray:
    """Return the output of the queries of this device over the keys of all devices along a mesh axis.

    Args:
        query: queries of this device.
        key: keys of this device.
        value: values of this device.
        spec: score, normalizer, mask, positions and dropout.
        axis: name of the mesh axis, within `jax.shard_map`.
        order: which device holds which chunks.
        seed: seed of dropout.
        memory: budget for scratch memory of each device.

    Raises:
        QkvError: the call is invalid.
    """
    if library(query, key, value) != "jax":
        raise KindError(
            "query, key and value must be JAX arrays for the name of a mesh axis, got other arrays. Pass a process "
            "group of torch.distributed for PyTorch tensors."
        )
    problem = read_problem(query, key, value, spec, (), memory)
    if problem.score.cancels:  # nothing is known of the data
        problem = replace(problem, spec=problem.spec.with_(score=problem.score.by_differences()))
    mesh, call, nonfinite = _bind(query, key, value, problem, axis, order, seed)
    arrays = [call.query, call.key, call.value, *call.score.arrays(), *call.normalizer.arrays()]
    floating = [is_floating(x) for x in arrays]
    integers = [x for x, is_float in zip(arrays, floating, strict=True) if not is_float]
    floats = [x for x, is_float in zip(arrays, floating, strict=True) if is_float]
    constants = (integers, call.mask, call.tile.seed, nonfinite)
    floats, constants = vary_alike((floats, constants))
    import jax

    def of(floats: list[Array], constants: _Constants) -> DeviceCall:
        integers, mask, seed, nonfinite = constants
        queues = iter(floats), iter(integers)
        ordered = [next(queues[0] if is_float else queues[1]) for is_float in floating]
        bound = replace(call.with_arrays(ordered), mask=mask, tile=replace(call.tile, seed=seed))
        return DeviceCall(mesh, bound, nonfinite)

    @jax.custom_vjp  # type: ignore[untyped-decorator, unused-ignore]
    def attend(floats: list[Array], constants: _Constants) -> Array:
        return of(floats, constants).forward()[0]

    def forward(floats: list[Array], constants: _Constants) -> tuple[Array, object]:
        output, saved = of(floats, constants).forward()
        return output, (floats, constants, saved)

    def backward(residual: tuple[list[Array], _Constants, Saved], gradient: Array) -> tuple[object, None]:
        floats, constants, saved = residual
        found = of(floats, constants).backward(saved, gradient)
        return [x for x, is_float in zip(found, floating, strict=True) if is_float], None

    attend.defvjp(forward, backward)
    return cast_array(attend(floats, constants), call.out_dtype)


def _bind(
    query: Array, key: Array, value: Array, problem: Problem, axis: str, order: Order, seed: Seed | None
) -> tuple[Mesh, BoundCall, tuple[Array, Array] | None]:
    """Return the mesh, the projected call of this device, and which rows of query and key are not finite."""
    import jax
    import jax.numpy as jnp

    axes, spec = problem.axes, problem.spec
    check_mergeable(problem)
    for part in () if spec.mask is None else spec.mask.parts():
        if isinstance(part, Blocks):
            raise RefusedError("mask must not contain Blocks in jax.shard_map, got Blocks. Write it as masks.Custom.")
    size = jax.lax.axis_size(axis)
    mesh = Mesh(axis, size, order, (axes.q, axes.k), 0, (1, 1))
    if axes.q % mesh.count or axes.k % mesh.count:
        raise ShapeError(
            f"each device must hold an even number of queries and keys in balanced order, got {axes.q} and {axes.k}. "
            'Pad the sequence, or pass order="contiguous".'
        )
    whole = Tile.whole(size * axes.q, size * axes.k, axes.batch, spec.positions)
    q, k = axes.q // mesh.count, axes.k // mesh.count
    of_chunk = chunk_problem(problem, q, k)
    rows, cols = tile_shape(of_chunk, BUDGET, 8 + 3 * of_chunk.elements_per_logit)
    offset = query_offset(problem.score, spec.mask, whole, spec.positional)
    mesh = replace(mesh, offset=offset, sides=(max(1, min(rows, q)), max(1, min(cols, k))))
    dtype = accumulation_dtype(query, key, value)

    def bound(part: AnyPart) -> AnyPart:
        part, pairs = bind_local(part, value, axes, dtype)
        check_pair_lengths([pairs], whole.k_total)
        return part

    tile = Tile.whole(axes.q, axes.k, axes.batch, Positions(query_start=0), seed=read_seed(problem, seed))
    parts = bound(problem.score), bound(problem.normalizer), None if spec.mask is None else bound(spec.mask)
    call = BoundCall(
        cast_array(query, dtype), cast_array(key, dtype), cast_array(value, dtype), *parts, tile, spec.dropout,
        result_dtype(query, key, value), finite=(True, False),
    )  # fmt: skip
    nonfinite = None
    if spec.mask is not None:
        nonfinite = tuple(~jnp.all(jnp.isfinite(x), axis=-1, keepdims=True) for x in (call.query, call.key))
        call = replace(call, query=zero_nonfinite(call.query), key=zero_nonfinite(call.key))
    return mesh, _project(call, mesh, whole), nonfinite


def _project(call: BoundCall, mesh: Mesh, whole: Tile) -> BoundCall:
    """Return a call with projections of query and key, each computed by the device that holds the rows."""
    import jax
    import jax.numpy as jnp

    rank = jax.lax.axis_index(mesh.axis)
    centre = jax.tree.map(lambda x: jax.lax.pmean(x, mesh.axis), call.score.centre(call.key))
    sides: tuple[list[Array], list[Array]] = ([], [])
    for number in range(mesh.count):
        rows, cols = mesh.local(0, number), mesh.local(1, number)
        first, second = mesh.start(0, number, rank), mesh.start(1, number, rank)
        tile = Tile(
            (0, rows[1] - rows[0]), (0, cols[1] - cols[0]), whole.q_total, whole.k_total, call.batch,
            Positions(query_start=mesh.offset), None, centre, None, (first, second),
        )  # fmt: skip
        score = cut_part(call.score, rows, cols, second)
        projected = score.project(take_range(call.query, rows), take_range(call.key, cols), tile)
        for side, x in zip(sides, projected, strict=True):
            side.append(x)
    return call.with_projections(*(jnp.concat(side, axis=-2) for side in sides))
