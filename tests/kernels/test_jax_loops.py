"""The JAX loop kernel. Its contract, which compiles hundreds of loops, runs in `make test-long`."""

import functools
from typing import Any

import numpy as np
import pytest

import qkv
from qkv import masks, normalizers, readouts, scores
from qkv.errors import RefusedError
from qkv.kernels import DenseKernel, JaxLoopsKernel
from qkv.testing.cases import Case
from qkv.testing.execution import oracle, run
from qkv.testing.kernel_harness import assert_agrees
from qkv.testing.kernels import KernelContract
from qkv.testing.libraries import Setting, assert_close, to_float64

jax = pytest.importorskip("jax")
pytest.importorskip("torch")  # the oracle's gradients

SINGLE = Setting("jax", "float32")
SMALL = JaxLoopsKernel(budget=12, row_block_budget=3000)
LONG = ((40_000, 8), (40_000, 8), (40_000, 3))


@pytest.mark.long
class TestJaxLoops(KernelContract):
    kernel = SMALL


@pytest.mark.parametrize(
    "case",
    [
        # Short runs differentiate it forwards and backwards in `test_jax_transforms.py`.
        pytest.param(Case("additive", "softmax with sink", "causal by positions", dropout=0.4), marks=pytest.mark.long),
        Case("biased", "entmax15", "lengths"),
        Case("gaussian", "top-k with temperature and sink", "window"),
    ],
    ids=str,
)
def test_output_and_gradients_of_every_array_are_those_of_the_equation(case: Case) -> None:
    assert_agrees(run(case.call(), SINGLE, SMALL), oracle(case, "float32"), SINGLE, str(case))


def test_no_keys_give_zero_and_no_gradient() -> None:
    import jax.numpy as jnp

    def total(*arrays: Any) -> Any:
        return qkv.attend(*arrays, kernel=SMALL).sum()

    arrays = (jnp.ones((2, 3, 4)), jnp.ones((2, 0, 4)), jnp.ones((2, 0, 5)))
    assert_close(qkv.attend(*arrays, kernel=SMALL), np.zeros((2, 3, 5)), 0.0)
    gradients = jax.grad(total, argnums=(0, 1, 2))(*arrays)
    assert [x.shape for x in gradients] == [x.shape for x in arrays]
    assert not np.any(gradients[0])


def test_vmap_of_a_gradient_under_jit_is_the_gradient_of_each() -> None:
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(2, 6, 4)), dtype="float32")
    score = scores.Bilinear(jnp.asarray(rng.normal(size=(2, 4, 4)), dtype="float32"))

    def loss(kernel: Any) -> Any:
        def of(x: Any, score: Any) -> Any:
            return (qkv.attend(x, x, x, score=score, mask=masks.Causal(), kernel=kernel) ** 2).sum()

        return jax.jit(jax.vmap(jax.grad(of, argnums=(0, 1))))

    mine, theirs = loss(SMALL)(x, score), loss("dense")(x, score)
    for got, wanted in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        assert_close(got, to_float64(wanted), 1e-5)


READ = (
    readouts.Entropy(),
    readouts.TopWeights(2),
    readouts.ColumnSum(),
    readouts.LogSumExp(),
    readouts.PooledMap(4),
    readouts.PooledMap(5, "max"),
)


def test_readouts_are_those_of_the_dense_weights() -> None:
    rng = np.random.default_rng(0)
    query, key = (SINGLE.array(rng.normal(size=(2, n, 4))) for n in (12, 10))
    options: Any = {"mask": masks.Causal("end"), "readouts": READ}
    kernel = JaxLoopsKernel(budget=16, row_block_budget=900)
    mine = qkv.observe(query, key, key, kernel=kernel, **options)
    theirs = qkv.observe(query, key, key, kernel=DenseKernel(), **options)
    assert "row blocks of 4 queries" in str(mine.plan)
    for got, wanted in zip(jax.tree.leaves(mine.readouts), jax.tree.leaves(theirs.readouts), strict=True):
        assert_close(got, to_float64(wanted), 1e-5)


def test_readout_that_a_loop_cannot_combine_is_refused_by_name() -> None:
    with pytest.raises(RefusedError, match=r"a compiled loop cannot combine the results of the readout Rows"):
        qkv.explain(*LONG, library="jax", kernel="jax_loops", readouts=[readouts.Rows((0,))])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"score": scores.Gaussian(), "mask": masks.Causal()},
        {"normalizer": normalizers.Entmax15()},
        {"normalizer": normalizers.TopK(4), "gradient": True},
        {"readouts": [readouts.Entropy(), readouts.PooledMap(100)]},
    ],
    ids=str,
)
def test_planner_chooses_it_if_dense_needs_more_memory_than_allowed(options: dict[str, Any]) -> None:
    plan = qkv.explain(*LONG, library="jax", **options)
    assert plan.kernel.name == "jax_loops"
    assert "more than the 512 MiB allowed" in dict(plan.refused)["dense"]
    assert plan.cost.peak <= plan.requested.memory


def test_call_that_is_traced_counts_the_memory_of_a_gradient() -> None:
    import jax.numpy as jnp

    x, seen = jnp.ones((3, 2)), []
    jax.eval_shape(lambda x: seen.append(qkv.observe(x, x, x).plan) or x, x)
    seen.append(qkv.observe(x, x, x).plan)
    assert [plan.requested.gradient for plan in seen] == [True, False]


def test_seed_may_be_an_array_and_other_seeds_give_other_draws() -> None:
    import jax.numpy as jnp

    x = jnp.ones((6, 2)) * jnp.arange(6.0)[:, None]
    step = jax.jit(lambda seed: qkv.attend(x, x, x, dropout=0.5, seed=seed, kernel=SMALL))
    one, other = step(jnp.int32(3)), step(jnp.int32(4))
    assert (one != other).any()
    assert_close(one, to_float64(qkv.attend(x, x, x, dropout=0.5, seed=3)), 1e-6)
    words = jnp.asarray([3, 0], dtype=jnp.uint32)
    assert_close(step(words), to_float64(one), 0.0)


# -- Memory ------------------------------------------------------------------------------------------------


def _plain(query: Any, key: Any, value: Any, *weights: Any) -> Any:
    """Return the output of the formula on whole arrays."""
    import jax.numpy as jnp

    left, right, bias, vector = weights
    hidden = jnp.tanh((query @ left.T + bias)[:, None, :] + (key @ right.T)[None, :, :])
    return jax.nn.softmax(hidden @ vector, axis=-1) @ value


def _ours(query: Any, key: Any, value: Any, *weights: Any) -> Any:
    return qkv.attend(query, key, value, score=scores.Additive(*weights))


@functools.cache
def _compiled(function: Any, n: int) -> Any:
    """The gradient with respect to everything, of the output weighted by the last argument."""
    import jax.numpy as jnp

    shapes = [(n, 64), (n, 64), (n, 64), (64, 64), (64, 64), (64,), (64,), (n, 64)]
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]

    def loss(*arrays: Any) -> Any:
        return (function(*arrays[:-1]) * arrays[-1]).sum()

    return jax.jit(jax.grad(loss, argnums=tuple(range(7)))).lower(*arguments).compile()


def test_gradient_of_additive_attention_needs_a_twentieth_of_the_memory_of_the_plain_formula() -> None:
    plain, ours = (_compiled(f, 4096).memory_analysis().temp_size_in_bytes for f in (_plain, _ours))
    assert plain > 4096 * 4096 * 64 * 4
    assert ours <= plain / 20


def test_memory_grows_with_the_length_and_not_with_its_square() -> None:
    short, long = (_compiled(_ours, n).memory_analysis().temp_size_in_bytes for n in (4096, 16384))
    assert long < 5 * short
