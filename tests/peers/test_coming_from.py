"""Calls of libraries that the pages `docs/coming-from` replace by formulas, compared with the libraries themselves.

`pip install -c constraints.txt -e ".[bench]"` installs them.
"""

import numpy as np
import pytest

import qkv
from qkv import masks, normalizers, readouts, scores
from tests.processes import run_python

BANDWIDTH = 0.4


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of statsmodels, about its random numbers
def test_local_constant_kernel_regression_is_that_of_statsmodels_in_two_variables() -> None:
    KernelReg = pytest.importorskip("statsmodels.nonparametric.kernel_regression").KernelReg
    x, y, new = random(50, 2), random(50, 1, seed=1), random(6, 2, seed=2)
    widths = np.array([0.4, 0.9])
    expected, effects = KernelReg(y[:, 0], x, "cc", reg_type="lc", bw=widths).fit(new)
    ours = qkv.attend(new / widths, x / widths, y, score=scores.Gaussian(1.0))
    np.testing.assert_allclose(ours[:, 0], expected, rtol=1e-9)
    assert effects.shape == new.shape


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of statsmodels, about its random numbers
def test_local_linear_regression_of_a_table_is_that_of_statsmodels() -> None:
    KernelReg = pytest.importorskip("statsmodels.nonparametric.kernel_regression").KernelReg
    x, y = random(60), random(60, seed=1)
    expected, _ = KernelReg(y, x, "c", reg_type="ll", bw=[BANDWIDTH]).fit(np.array([0.3]))
    table = qkv.Database.open({"x": x, "y": y}, key="x", value="y")
    ours = table.ask(0.3, score=scores.Gaussian(BANDWIDTH), fit="local-linear").value
    np.testing.assert_allclose(ours, expected[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("index", ["IndexFlatIP", "IndexFlatL2"])
def test_the_largest_weights_are_the_neighbours_that_faiss_finds(index: str) -> None:
    faiss = pytest.importorskip("faiss")
    keys, queries = random(300, 16).astype(np.float32), random(5, 16, seed=1).astype(np.float32)
    theirs = getattr(faiss, index)(16)
    theirs.add(keys)
    _, expected = theirs.search(queries, 10)
    score = scores.Dot() if index == "IndexFlatIP" else scores.Gaussian()
    found = qkv.observe(queries, keys, keys, score=score, readouts=[readouts.TopWeights(10)]).readouts[0].keys
    np.testing.assert_array_equal(found, expected)


@pytest.mark.long  # KeOps compiles each formula, which takes seconds
def test_reductions_of_keops_are_calls_and_readouts() -> None:
    LazyTensor = pytest.importorskip("pykeops.numpy").LazyTensor
    x, y, b = random(20, 3), random(30, 3, seed=1), random(30, 2, seed=2)
    distance = ((LazyTensor(x[:, None]) - LazyTensor(y[None])) ** 2).sum(-1)
    logits, h = -distance / (2 * BANDWIDTH**2), BANDWIDTH
    result = qkv.observe(
        x, y, b, score=scores.Gaussian(h), readouts=[readouts.LogSumExp(), readouts.TopWeights(3)], kernel="dense"
    )
    np.testing.assert_allclose(result.output, logits.sumsoftmaxweight(LazyTensor(b[None]), dim=1), rtol=1e-9)
    np.testing.assert_allclose(result.readouts[0], logits.logsumexp(dim=1)[:, 0], rtol=1e-9)
    np.testing.assert_array_equal(result.readouts[1].keys, distance.argKmin(3, dim=1))

    def gauss(q: np.ndarray, k: np.ndarray) -> np.ndarray:
        difference = q[..., :, None, :] - k[..., None, :, :]
        return np.asarray(np.exp(-(difference**2).sum(-1) / (2 * h**2)))

    ours = qkv.attend(x, y, b, score=scores.Custom(gauss), normalizer=normalizers.Identity())
    np.testing.assert_allclose(ours, logits.exp() @ b, rtol=1e-9)


@pytest.mark.long  # Keras and its backend take many seconds to load
def test_layers_of_keras_are_scores() -> None:
    pytest.importorskip("keras")
    code = f"from tests.peers.{__name__.rsplit('.', 1)[-1]} import compare_keras; compare_keras()"
    run_python("-c", code, KERAS_BACKEND="torch")


def compare_keras() -> None:
    """Compare `Attention` and `AdditiveAttention` of Keras with the calls of the page, in a process of its own."""
    import keras

    query, value, scale = random(2, 4, 8), random(2, 6, 8, seed=1), random(8, seed=2)
    keep = np.arange(6) < np.array([[6], [3]])
    additive = keras.layers.AdditiveAttention(dtype="float64")
    additive.build([query.shape, value.shape])
    additive.set_weights([scale])
    cases = [
        (keras.layers.Attention(dtype="float64"), {}, scores.Dot(), None),
        (keras.layers.Attention(dtype="float64"), {"mask": [None, keep]}, scores.Dot(), masks.AllowedKeys(keep)),
        (keras.layers.Attention(dtype="float64"), {"use_causal_mask": True}, scores.Dot(), masks.Causal("start")),
        (additive, {}, scores.Additive(np.eye(8), np.eye(8), None, scale), None),
    ]
    for layer, options, score, mask in cases:
        expected = keras.ops.convert_to_numpy(layer([query, value], **options))
        np.testing.assert_allclose(
            qkv.attend(query, value, value, score=score, mask=mask), expected, rtol=1e-6, atol=1e-6
        )
