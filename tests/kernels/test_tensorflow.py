"""TensorFlow, through the dense kernel: eager and in `tf.function`. The contract is in the long run."""

import importlib.util
import os
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

import qkv
from qkv import masks, scores
from qkv.errors import RefusedError
from qkv.kernels import DenseKernel
from qkv.testing.cases import NORMALIZERS, Case
from qkv.testing.execution import oracle, oracle_of, run
from qkv.testing.kernel_harness import assert_agrees
from qkv.testing.kernels import KernelContract
from qkv.testing.libraries import Setting, assert_close, to_float64
from tests.effort import sample

if not all(importlib.util.find_spec(name) for name in ("tensorflow", "keras", "torch")):
    pytest.skip("TensorFlow, Keras or the oracle's PyTorch is not installed", allow_module_level=True)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

DOUBLE = Setting("tensorflow", "float64")


@dataclass(frozen=True)
class OnTensorFlow(DenseKernel):
    """The dense kernel, for the tensors of one library."""

    libraries: ClassVar[tuple[str, ...]] = ("tensorflow",)


@pytest.mark.long
class TestDenseOnTensorFlow(KernelContract):
    kernel = OnTensorFlow()
    quadratic = True


CASES = [
    *(Case("similarity", name, "causal at the end", dropout=0.4) for name in NORMALIZERS),
    *(Case(name, mask="pairs") for name in ("additive per head", "gaussian", "relative position", "class table")),
]


@pytest.mark.parametrize("case", sample(CASES, 3), ids=str)
def test_output_and_gradients_are_those_of_the_equation(case: Case) -> None:
    assert_agrees(run(case.call(), DOUBLE, "dense"), oracle(case, "float64"), DOUBLE, str(case))


def test_masked_nan_and_infinity_leak_neither_into_output_nor_into_gradients() -> None:
    hidden = np.isin(np.arange(11), [1, 4, 10])
    call = replace(Case("additive").call(), mask=masks.AllowedKeys(~hidden))
    hurt = replace(call, key=call.key.copy(), value=call.value.copy())
    hurt.key[..., hidden, :], hurt.value[..., hidden, :] = np.nan, np.inf
    assert_agrees(run(hurt, DOUBLE, "dense"), oracle_of(call, DOUBLE), DOUBLE)


def test_function_that_tensorflow_compiles_gives_the_same_output_and_gradients() -> None:
    import tensorflow as tf

    rng = np.random.default_rng(0)
    x, weight = (tf.Variable(rng.normal(size=shape)) for shape in ((2, 5, 4), (4, 4)))

    def step(seed: Any) -> Any:
        with tf.GradientTape() as tape:
            score = scores.Bilinear(weight)
            out = qkv.attend(x, x, x, score=score, mask=masks.Causal(), dropout=0.3, seed=seed)
            loss = tf.reduce_sum(out**2)
        return loss, *tape.gradient(loss, [x, weight])

    eager, compiled = step(7), tf.function(step)(tf.constant(7))
    for got, wanted in zip(compiled, eager, strict=True):
        assert_close(got, to_float64(wanted), 1e-12)
    assert to_float64(tf.function(step)(tf.constant(8))[0]) != to_float64(eager[0])


def test_unknown_dimensions_are_refused_with_what_supports_them() -> None:
    import tensorflow as tf

    function = tf.function(lambda x: qkv.attend(x, x, x), input_signature=[tf.TensorSpec((None, 4, 2))])
    # TensorFlow raises an exception of its own with the message of ours.
    with pytest.raises(Exception, match=r"ShapeError: .* known dimensions in tf.function, .* use qkv.interop.keras"):
        function(tf.ones((3, 4, 2)))


def test_lengths_that_exceed_the_memory_are_refused() -> None:
    with pytest.raises(RefusedError, match=r"dense cannot run .* more than the 512 MiB allowed"):
        qkv.explain((40_000, 8), (40_000, 8), (40_000, 8), library="tensorflow", kernel="dense")
