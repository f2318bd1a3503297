"""The kernels for TensorFlow, eager and in `tf.function`: dense, and in blocks. Their contracts are in the long run."""

import importlib.util
import os
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv import masks, readouts, scores
from qkv.errors import RefusedError
from qkv.kernels import DenseKernel, TensorflowBlocksKernel
from qkv.testing.cases import MASKS, NONNEGATIVE, NORMALIZERS, SCORES, SHAPES, Case
from qkv.testing.execution import oracle, oracle_of, run
from qkv.testing.kernel_harness import assert_agrees
from qkv.testing.kernels import KernelContract
from qkv.testing.libraries import Setting, assert_close, to_float64
from tests.effort import cases
from tests.processes import run_python

if not all(importlib.util.find_spec(name) for name in ("tensorflow", "keras", "torch")):
    pytest.skip("TensorFlow, Keras or the oracle's PyTorch is not installed", allow_module_level=True)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

DOUBLE = Setting("tensorflow", "float64")
SMALL = TensorflowBlocksKernel(budget=3000)
LONG = ((40_000, 8), (40_000, 8), (40_000, 3))


@dataclass(frozen=True)
class OnTensorFlow(DenseKernel):
    """The dense kernel, for the tensors of one library."""

    libraries: ClassVar[tuple[str, ...]] = ("tensorflow",)


@pytest.mark.long
class TestDenseOnTensorFlow(KernelContract):
    kernel = OnTensorFlow()
    quadratic = True


@pytest.mark.long
class TestTensorflowBlocks(KernelContract):
    kernel = SMALL


KERNELS = pytest.mark.parametrize("kernel", ["dense", SMALL], ids=["dense", "blocks"])


@KERNELS
@settings(max_examples=cases(20), deadline=None)
@given(
    score=st.sampled_from(sorted(SCORES)),
    normalizer=st.sampled_from(sorted(NORMALIZERS)),
    mask=st.sampled_from(sorted(MASKS)),
    shape=st.sampled_from(sorted(SHAPES)),
    dropout=st.sampled_from([0.0, 0.4]),
)
def test_output_and_gradients_are_those_of_the_equation(
    kernel: Any, score: str, normalizer: str, mask: str, shape: str, dropout: float
) -> None:
    if normalizer == "sum" and score not in NONNEGATIVE:
        score = "similarity"
    case = Case(score, normalizer, mask, shape, dropout)
    slack = 10.0 if score in ("epanechnikov", "triangular") else 1.0  # steep at the boundary of their support
    assert_agrees(run(case.call(), DOUBLE, kernel), oracle(case, "float64"), DOUBLE, str(case), slack)


@KERNELS
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_masked_nan_and_infinity_leak_neither_into_output_nor_into_gradients(number: float, kernel: Any) -> None:
    hidden = np.isin(np.arange(11), [1, 4, 10])
    call = replace(Case("additive").call(), mask=masks.AllowedKeys(~hidden))
    hurt = replace(call, key=call.key.copy(), value=call.value.copy())
    hurt.key[..., hidden, :], hurt.value[..., hidden, :] = number, number
    assert_agrees(run(hurt, DOUBLE, kernel), oracle_of(call, DOUBLE), DOUBLE)


@KERNELS
def test_function_that_tensorflow_compiles_gives_the_same_output_and_gradients(kernel: Any) -> None:
    import tensorflow as tf

    rng = np.random.default_rng(0)
    x, weight, bias = (tf.Variable(rng.normal(size=shape)) for shape in ((2, 7, 4), (4, 4), (2, 7, 1)))

    def step(seed: Any, kernel: Any = kernel) -> Any:
        with tf.GradientTape() as tape:
            score = scores.Biased(scores.Bilinear(weight), bias * tf.range(7.0, dtype=tf.float64))
            out = qkv.attend(x, x, x, score=score, mask=masks.Causal(), dropout=0.3, seed=seed, kernel=kernel)
            loss = tf.reduce_sum(out**2)
        return loss, *tape.gradient(loss, [x, weight, bias])

    run = tf.function(step)
    dense, eager, compiled = step(7, "dense"), step(7), run(tf.constant(7))
    for wanted, one, other in zip(dense, eager, compiled, strict=True):
        assert_close(one, to_float64(wanted), 1e-11, min_scale=0.1)
        assert_close(other, to_float64(wanted), 1e-11, min_scale=0.1)
    assert to_float64(run(tf.constant(8))[0]) != to_float64(eager[0])


def test_one_tensor_as_query_key_and_value_gets_the_sum_of_their_gradients() -> None:
    import tensorflow as tf

    x = tf.constant(np.random.default_rng(0).normal(size=(7, 4)))

    def gradient(kernel: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = qkv.attend(x, x, x, kernel=kernel)
        return tape.gradient(output, x, output_gradients=x)

    assert_close(gradient(SMALL), to_float64(gradient("dense")), 1e-12)


def test_gradient_of_a_gradient_is_that_of_the_dense_kernel() -> None:
    import tensorflow as tf

    x = tf.constant(np.random.default_rng(0).normal(size=(7, 4)))

    def second(kernel: Any) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = tf.reduce_sum(qkv.attend(x, x, x, mask=masks.Causal(), kernel=kernel) ** 2)
            of_first = tf.reduce_sum(inner.gradient(loss, x) ** 2)
        return outer.gradient(of_first, x)

    small = TensorflowBlocksKernel(budget=300)
    assert "row blocks of 2 queries" in str(qkv.explain(x, x, x, kernel=small))
    assert_close(second(small), to_float64(second("dense")), 1e-10)


def test_planner_chooses_it_where_dense_needs_more_memory_than_allowed() -> None:
    plan = qkv.explain(*LONG, library="tensorflow", gradient=True)
    assert plan.kernel.name == "tensorflow_blocks"
    assert plan.cost.peak <= plan.requested.memory
    assert qkv.explain((64, 8), (64, 8), (64, 8), library="tensorflow", gradient=True).kernel.name == "dense"


def test_readouts_of_long_calls_are_refused_with_a_reason() -> None:
    with pytest.raises(RefusedError, match="tensorflow_blocks: it computes no readouts"):
        qkv.explain(*LONG, library="tensorflow", readouts=[readouts.Entropy()])


def test_unknown_dimensions_are_refused_with_what_supports_them() -> None:
    import tensorflow as tf

    function = tf.function(lambda x: qkv.attend(x, x, x), input_signature=[tf.TensorSpec((None, 4, 2))])
    # TensorFlow raises an exception of its own with the message of ours.
    with pytest.raises(Exception, match=r"ShapeError: .* known dimensions in tf.function, .* use qkv.interop.keras"):
        function(tf.ones((3, 4, 2)))


def test_lengths_that_exceed_the_memory_are_refused() -> None:
    with pytest.raises(RefusedError, match=r"dense cannot run .* more than the 512 MiB allowed"):
        qkv.explain((40_000, 8), (40_000, 8), (40_000, 8), library="tensorflow", kernel="dense")


MEMORY = """
import resource, numpy as np, tensorflow as tf, qkv
n = 4000
rng = np.random.default_rng(0)
arrays = [rng.normal(size=(n, 8)).astype("float32") for _ in range(3)]
variables = [tf.Variable(x) for x in arrays]

def step():
    with tf.GradientTape() as tape:
        output = qkv.attend(*variables)
    return output, tape.gradient(output, variables)

qkv.attend(*(x[:8] for x in variables))  # loads modules
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for function in (step, tf.function(step)):
    output, gradients = function()
    np.testing.assert_allclose(output[:50], qkv.attend(arrays[0][:50], *arrays[1:]), atol=1e-5)
    np.testing.assert_allclose(tf.reduce_sum(gradients[2]), n * 8, rtol=1e-4)  # the weights of each row add up to 1
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.long
def test_gradient_of_4000_tokens_needs_less_memory_than_half_an_array_of_pairs() -> None:
    assert int(run_python("-c", MEMORY)) < 4000 * 4000 * 4 / 2**20 / 2
