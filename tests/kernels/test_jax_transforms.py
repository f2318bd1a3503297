"""The JAX loop kernel under transformations of functions: jvp, hessian, checkpoint, vmap, and sharding over devices."""

import os
from typing import Any

import numpy as np
import pytest

import qkv
from qkv import masks, normalizers, scores
from qkv.kernels import JaxLoopsKernel
from qkv.testing.libraries import assert_close, to_float64
from tests.effort import LONG
from tests.processes import run_python

jax = pytest.importorskip("jax")

SMALL = JaxLoopsKernel(budget=64, row_block_budget=3000)


def _arrays(*shapes: tuple[int, ...], seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [jax.numpy.asarray(rng.normal(size=shape), dtype="float32") for shape in shapes]


def _assert_same_trees(got: Any, wanted: Any, tolerance: float) -> None:
    for mine, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert_close(mine, to_float64(theirs), tolerance, min_scale=0.1)


def _attend(kernel: Any) -> Any:
    """Additive attention with a temperature, a sink, a mask and dropout, as a function of every array."""

    def attend(query: Any, key: Any, value: Any, left: Any, right: Any, temperature: Any, sink: Any) -> Any:
        return qkv.attend(
            query,
            key,
            value,
            score=scores.Additive(left, right, None, left[0, :]),
            normalizer=normalizers.Softmax(temperature=temperature, sink=sink),
            mask=masks.AllowedKeys(np.arange(11) % 4 != 1) & masks.Causal("end"),
            dropout=0.3,
            seed=5,
            kernel=kernel,
        )

    return attend


def _inputs() -> tuple[Any, ...]:
    arrays = _arrays((2, 7, 4), (2, 11, 4), (2, 11, 3), (4, 4), (4, 4), (), (2,))
    arrays[5] = jax.numpy.exp(arrays[5])
    return tuple(arrays)


def test_forward_derivative_is_that_of_the_dense_kernel() -> None:
    inputs = _inputs()
    tangents = _arrays(*(x.shape for x in inputs), seed=1)
    got, wanted = (
        jax.jit(lambda *t, k=kernel: jax.jvp(_attend(k), inputs, t))(*tangents) for kernel in (SMALL, "dense")
    )
    _assert_same_trees(got, wanted, 1e-5)


def test_derivative_of_a_gradient_in_forward_mode_is_that_of_the_dense_kernel() -> None:
    inputs = _inputs()
    tangents = _arrays(*(x.shape for x in inputs), seed=2)

    def product(kernel: Any) -> Any:
        gradient = jax.grad(lambda *x: (_attend(kernel)(*x) ** 2).sum(), argnums=tuple(range(7)))
        return jax.jit(lambda *t: jax.jvp(gradient, inputs, t))(*tangents)

    _assert_same_trees(product(SMALL), product("dense"), 1e-4)


def test_checkpointed_gradient_is_the_gradient() -> None:
    def loss(*x: Any) -> Any:
        return (qkv.attend(*x, mask=masks.Lengths(7), kernel=SMALL) ** 2).sum()

    losses = (jax.checkpoint(loss), loss)
    both = jax.jit(lambda *x: [jax.grad(each, argnums=(0, 1, 2))(*x) for each in losses])
    _assert_same_trees(*both(*_arrays((5, 4), (9, 4), (9, 2))), 1e-6)


def test_vmap_of_forward_derivatives_is_the_derivative_of_each() -> None:
    query, key, value, *tangents = _arrays(*[(3, 5, 4), (3, 9, 4), (3, 9, 2)] * 2)

    def derivative(kernel: Any) -> Any:
        attend = lambda *x: qkv.attend(*x, mask=masks.Lengths(7), kernel=kernel)  # noqa: E731
        return jax.jit(jax.vmap(lambda *x: jax.jvp(attend, x[:3], x[3:])))(query, key, value, *tangents)

    _assert_same_trees(derivative(SMALL), derivative("dense"), 1e-5)


SHARDED = """
import jax, jax.numpy as jnp, numpy as np, qkv
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from qkv import masks, normalizers, scores
from qkv.kernels import JaxLoopsKernel

assert len(jax.devices()) == 8
mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
small = JaxLoopsKernel(budget=64, row_block_budget=3000)
rng = np.random.default_rng(0)
query, key, value, weight = (
    jnp.asarray(rng.normal(size=shape), dtype="float32") for shape in ((8, 16, 4), (8, 10, 4), (8, 10, 3), (4, 4))
)

def both(function):
    def of(*x):
        output, pull = jax.vjp(function, *x)
        return output, pull(2 * output)
    return jax.jit(of)

def check(name, got, wanted):
    for mine, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-4, err_msg=name)
    print(name)

def attend(normalizer, kernel):
    def of(query, key, value, weight):
        score = scores.Additive(weight, weight, None, weight[0])
        mask = masks.AllowedKeys(np.arange(10) % 4 != 1)
        return qkv.attend(query, key, value, score=score, normalizer=normalizer, mask=mask, kernel=kernel)
    return of

def check_mapped(name, normalizer, specs):
    wanted = both(attend(normalizer, "dense"))(query, key, value, weight)
    mapped = jax.shard_map(attend(normalizer, small), mesh=mesh, in_specs=(*specs, P()), out_specs=specs[0])
    check(f"shard_map over the {name}", both(mapped)(query, key, value, weight), wanted)
    return wanted

if LONG:
    check_mapped("batch", normalizers.Entmax15(), (P("d"), P("d"), P("d")))
wanted = check_mapped("queries", normalizers.Softmax(), (P(None, "d"), P(), P()))
if LONG:
    placed = [jax.device_put(x, NamedSharding(mesh, P("d"))) for x in (query, key, value)]
    got = both(attend(normalizers.Softmax(), small))(*placed, weight)
    assert got[0].sharding.spec == got[1][0].sharding.spec == P("d")
    check("sharded arrays", got, wanted)

explicit = jax.make_mesh((4, 2), ("d", "e"), axis_types=(AxisType.Explicit,) * 2)
with jax.set_mesh(explicit):
    every = ((P("d"), P("d"), P("d")), (P("d", "e"), P("d"), P()), (P(None, "e"), P(), P("d", "e")))
    chosen = (every, every) if LONG else (every[1:2], ())
    for normalizer, some in zip((normalizers.Softmax(), normalizers.Entmax15()), chosen):
        if LONG:
            wanted = both(attend(normalizer, "dense"))(query, key, value, weight)
        for specs in some:
            placed = [jax.device_put(x, NamedSharding(explicit, spec)) for x, spec in zip((query, key, value), specs)]
            got = both(attend(normalizer, small))(*placed, weight)
            assert got[0].sharding.spec[0] == "d", got[0].sharding.spec
            check(f"explicit axes {specs} under {normalizer}", got, wanted)

score = lambda weight: scores.Additive(weight, weight, None, weight[0])
sequence = query[:2], query[2:4], query[4:6], weight
one = lambda *x: qkv.attend(*x[:3], score=score(x[3]), mask=masks.Causal(), kernel="dense")
ring = lambda *x: qkv.distributed.attend(*x[:3], score=score(x[3]), mask=masks.Causal(), group="d")
mapped = jax.shard_map(ring, mesh=mesh, in_specs=(*[P(None, "d")] * 3, P()), out_specs=P(None, "d"))
check("ring of keys", both(mapped)(*sequence), both(one)(*sequence))

if LONG:
    x = jnp.asarray(rng.normal(size=(8, 6000, 2)), dtype="float32")
    mapped = jax.jit(jax.shard_map(lambda x: qkv.attend(x, x, x), mesh=mesh, in_specs=P("d"), out_specs=P("d")))(x)
    kernel = qkv.explain((6000, 2), (6000, 2), (6000, 2), library="jax", gradient=True).kernel.name
    check(f"6000 keys on {kernel}", mapped[3, :50], qkv.attend(x[3, :50], x[3], x[3]))
"""


def devices(count: int) -> dict[str, str]:
    """Return the variables of a process in which JAX has some devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    return {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}


def test_loops_run_sharded_over_eight_devices() -> None:
    printed = run_python("-c", f"LONG = {LONG}\n{SHARDED}", **devices(8))
    assert len(printed.splitlines()) == (11 if LONG else 3), printed
    assert "6000 keys on jax_loops" in printed or not LONG


RING = """
import jax, jax.numpy as jnp, numpy as np, qkv
from jax.sharding import AxisType, PartitionSpec as P
from qkv import masks, normalizers, scores

jax.config.update("jax_enable_x64", True)
mesh = jax.make_mesh((4,), ("s",), axis_types=(AxisType.Auto,))
rng = np.random.default_rng(0)
arrays = [jnp.asarray(rng.normal(size=shape)) for shape in ((2, 16, 4), (2, 16, 4), (2, 16, 3), (4, 4))]
balanced = np.concatenate([np.r_[2 * r : 2 * r + 2, 14 - 2 * r : 16 - 2 * r] for r in range(4)])

def both(function):
    def of(*x):
        output, pull = jax.vjp(function, *x)
        return output, pull(2 * output)
    return jax.jit(of)

cases = [
    (lambda w: scores.ScaledDot(), normalizers.Softmax(), masks.Causal(), "balanced"),
    (lambda w: scores.Additive(w, w, None, w[0]), normalizers.Softmax(sink=0.3), None, "contiguous"),
    (lambda w: scores.Gaussian(1.3), normalizers.Softmax(), masks.Lengths(jnp.asarray([9, 16])), "balanced"),
    (lambda w: scores.Bilinear(w), normalizers.Entmax15(), masks.Causal(), "balanced"),
    (lambda w: scores.QuadraticPosition(scores.ScaledDot(), 0.1), normalizers.Mean(), masks.Window(5, 1), "contiguous"),
]
for score, normalizer, mask, order in cases:
    rows = balanced if order == "balanced" else np.arange(16)
    parts = {"normalizer": normalizer, "mask": mask}

    def one(query, key, value, weight):
        return qkv.attend(query, key, value, score=score(weight), kernel="dense", **parts)

    def many(query, key, value, weight):
        ring = lambda *x: qkv.distributed.attend(*x[:3], score=score(x[3]), group="s", order=order, **parts)
        mapped = jax.shard_map(ring, mesh=mesh, in_specs=(*[P(None, "s")] * 3, P()), out_specs=P(None, "s"))
        return mapped(query[:, rows], key[:, rows], value[:, rows], weight)[:, np.argsort(rows)]

    for mine, theirs in zip(*(jax.tree.leaves(both(function)(*arrays)) for function in (many, one)), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-10)
"""


@pytest.mark.long
def test_a_ring_of_four_devices_gives_outputs_and_gradients_of_one() -> None:
    run_python("-c", RING, **devices(4))
