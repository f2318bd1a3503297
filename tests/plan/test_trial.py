"""The trial of functions that users write, on drawn arrays: what it finds, refuses and leaves alone."""

import random
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

import qkv
from qkv import masks, normalizers, readouts, scores
from qkv.core.arrays import namespace
from qkv.core.function_part import key_of_code
from qkv.errors import GradientError, OptionError, RefusedError, ShapeError
from qkv.plan import trial
from qkv.testing.libraries import LIBRARIES, Setting


def product(q, k):
    return namespace(q).matmul(q, namespace(k).matrix_transpose(k))


def softmax(z, axis):
    e = namespace(z).exp(z)
    return e / namespace(z).sum(e, axis=axis, keepdims=True)


def mean(x, axis):
    return namespace(x).mean(x, axis=axis, keepdims=True)


SCORES = {
    "softmax over the queries": (lambda q, k: softmax(product(q, k), -2), "the other queries", "LogSumExp"),
    "mean of the queries": (lambda q, k: product(q - mean(q, -2), k), "the other queries", "dense"),
    "mean of the keys": (lambda q, k: product(q, k - mean(k, -2)), "the other keys", "before the call"),
    "softmax over the keys": (lambda q, k: softmax(product(q, k), -1), "the other keys", "before the call"),
    "share of the keys": (lambda q, k: product(q, k) / k.shape[-2], "the number of keys", "Pass the number"),
    "logarithm of the queries": (lambda q, k: product(q, k) * np.log(q.shape[-2]), "the number of queries", "Pass the"),
    "mean of the heads": (lambda q, k: product(q - mean(q, 1), k), "the other batch elements", "before the call"),
    "a weak dependence": (lambda q, k: product(q, k) + 0.05 * mean(k, (-1, -2)), "the other keys", "before the call"),
    "the last key": (lambda q, k: product(q, k - k[..., -1:, :]), "the other keys", "before the call"),
}
LOCAL = {
    "product": lambda q, k: product(q, k),
    "distance": lambda q, k: -namespace(q).sum((q[..., :, None, :] - k[..., None, :, :]) ** 2, axis=-1),
    "of the key alone": lambda q, k: namespace(k).sum(k, axis=-1)[..., None, :],
    "constant": lambda q, k: product(q, k) * 0,
    "infinite": lambda q, k: namespace(q).where(product(q, k) > 0, product(q, k), -np.inf),
    "only for four heads": lambda q, k: product(q, k) + namespace(q).asarray(np.ones((4, 1, 1)), dtype=q.dtype),
}


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda q, k: (q * q).sum(-1), (5, 5, 3)),  # would broadcast to the pairs of five batch elements
        (lambda q, k: (q * k).sum(-1), (4, 4, 3)),
        (lambda q, k: product(2 * k, q), (7, 3)),
    ],
)
def test_logits_that_fit_only_because_lengths_are_equal_are_refused(library, function, shape):
    x = Setting(library, "float32").array(np.random.default_rng(0).normal(size=shape))
    with pytest.raises(ShapeError, match=r"must have shape \(\*batch, q, k\), here .* in a trial"):
        qkv.attend(x, x, x, score=scores.Custom(function))


def test_a_function_that_contains_an_array_of_all_pairs_is_left_alone():
    bias, x = np.arange(25.0).reshape(5, 5), np.ones((5, 3))
    for function in (lambda q, k: bias, lambda q, k: product(q, k) + bias):
        qkv.attend(x, x, x, score=scores.Custom(function))


@pytest.mark.parametrize("library", ["numpy", "torch", pytest.param("jax", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("shape", [(2, 4, 6, 3), (2, 4, 70, 3)])
def test_a_score_that_looks_at_more_than_its_pair_is_refused_at_any_length(library, name, shape):
    pytest.importorskip(library)
    function, finding, remedy = SCORES[name]
    x = Setting(library, "float32").array(np.random.default_rng(0).normal(size=shape))
    for score in (scores.Custom(function), scores.Softcap(scores.Custom(function), 3.0)):
        with pytest.raises(RefusedError, match=f"got one that depends on {finding}, in a trial.*{remedy}"):
            qkv.attend(x, x, x, score=score)


@pytest.mark.parametrize("library", ["numpy", "torch", pytest.param("jax", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", LOCAL)
def test_a_score_of_pairs_is_computed(library, name):
    pytest.importorskip(library)
    x = np.random.default_rng(0).normal(size=(2, 4, 9, 3))
    logits = LOCAL[name](x, x)
    e = np.exp(np.broadcast_to(logits, (2, 4, 9, 9)))
    total = e.sum(-1, keepdims=True)
    y = Setting(library, "float32").array(x)
    got = np.asarray(qkv.attend(y, y, y, score=scores.Custom(LOCAL[name])))
    assert np.allclose(got, (e / np.where(total == 0, 1, total)) @ x, atol=1e-4)


def test_the_dense_kernel_computes_a_function_of_an_array_of_all_pairs_and_tiles_name_the_remedy():
    torch = pytest.importorskip("torch")
    edges, x = torch.randn(40, 40, 2, requires_grad=True), torch.randn(40, 3)

    def edge_logits(q, k, edges):
        return product(q, k) + edges.sum(-1)

    score = scores.Custom(edge_logits, (edges,))
    outputs = qkv.attend(x, x, x, score=score, kernel="dense"), edge_logits(x, x, edges).softmax(-1) @ x
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(*(torch.autograd.grad(each.square().sum(), edges) for each in outputs))
    with pytest.raises(ShapeError, match=r"got \(40, 40\)\. Make an array of all pairs a field .*array_field"):
        qkv.attend(x, x, x, score=score, kernel="tiled")
    weighted = scores.Custom(lambda q, k, weights: product(q, k) * weights, (torch.randn(40),))
    with pytest.raises(ShapeError, match=r'Make an array of all keys a field .*array_field\("k"\)'):
        qkv.attend(x, x, x, score=weighted, kernel="tiled")
    with pytest.raises(GradientError, match="must not close over"):
        qkv.attend(x, x, x, score=scores.Custom(lambda q, k: edge_logits(q, k, edges)), kernel="dense")


def test_the_dense_kernel_computes_a_function_of_all_pairs_at_once():
    x = np.random.default_rng(0).normal(size=(40, 3))
    logits = softmax(product(x, x), -2)
    got = qkv.attend(x, x, x, score=scores.Custom(SCORES["softmax over the queries"][0]), kernel="dense")
    assert np.allclose(got, softmax(logits, -1) @ x)


@pytest.mark.parametrize(
    ("function", "mask", "finding"),
    [
        (lambda z: softmax(z, -2), None, "the other queries"),
        (lambda z: softmax(z, 1), None, "the other batch elements"),
        (lambda z: np.maximum(z, 0) / z.shape[-1], masks.Causal(), "the excluded keys of its row"),
        (lambda z: np.maximum(z, 0) / z.shape[-1], None, None),
        (lambda z: np.maximum(z, 0) / (1 + np.isfinite(z).sum(-1, keepdims=True)), masks.Causal(), None),
    ],
)
def test_a_normalizer_may_depend_on_its_own_row_alone(function, mask, finding):
    x = np.random.default_rng(0).normal(size=(2, 4, 9, 3))
    call = partial(qkv.attend, x, x, x, normalizer=normalizers.Custom(function), mask=mask)
    if finding is None:
        assert np.isfinite(call()).all()
    else:
        with pytest.raises(RefusedError, match=f"each weight of the normalizer .* depends on {finding}"):
            call()


@pytest.mark.parametrize(
    ("function", "side"),
    [
        (lambda q, k: k > k.max() - 3, "keys"),
        (lambda q, k: k >= k.shape[-1] // 2, "keys"),
        (lambda q, k: np.tril(np.ones((q.shape[0], k.shape[1]), bool)), "queries"),
        (lambda q, k: (k <= q) & (q < q.min() + 5), "queries"),
    ],
)
def test_a_mask_may_depend_on_the_positions_of_its_pair_alone(function, side):
    x = np.random.default_rng(0).normal(size=(9, 3))
    with pytest.raises(RefusedError, match=f"each element of the mask .* depends on the number of {side}"):
        qkv.attend(x, x, x, mask=masks.Custom(function) & masks.Causal())


@dataclass(frozen=True, eq=False)
class Centred(scores.GeneralScore):
    def compare(self, query, key):
        return product(query, key - mean(key, -2))


def test_a_score_of_a_class_of_the_user_is_tried_too():
    x = np.random.default_rng(0).normal(size=(9, 3))
    with pytest.raises(RefusedError, match=r"score Centred\(\) .* depends on the other keys"):
        qkv.attend(x, x, x, score=Centred())


def test_a_function_beside_a_table_of_classes_is_tried_and_divided_among_heads():
    torch = pytest.importorskip("torch")
    x, scale = torch.randn(2, 3, 9, 4), torch.tensor([1.0, 2.0, 3.0])
    classes = torch.zeros(2, 3), torch.arange(9) % 2, torch.arange(9) % 3
    near = scores.ClassTable(scores.Custom(lambda q, k, s: q @ k.mT * s[:, None, None], (scale,)), *classes)
    assert torch.allclose(qkv.attend(x, x, x, score=near, kernel="tiled"), qkv.attend(x, x, x, score=near), atol=1e-5)
    with pytest.raises(RefusedError, match="depends on the other keys"):
        qkv.attend(x, x, x, score=scores.ClassTable(scores.Custom(SCORES["mean of the keys"][0]), *classes))


def test_a_random_function_runs_and_the_plan_says_that_it_cannot_be_judged():
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(0)
    for noise in (torch.rand, lambda *n: torch.tensor(generator.random(n)), lambda *n: torch.full(n, random.random())):

        def function(q, k, noise=noise):
            return q @ k.mT + noise(q.shape[-2], k.shape[-2])

        x = torch.randn(2, 9, 3)
        assert qkv.attend(x, x, x, score=scores.Custom(function)).shape == x.shape
        assert "the function is random" in str(qkv.explain(x, x, x, score=scores.Custom(function)))


def test_gradients_of_a_random_function_are_those_of_its_output():
    torch = pytest.importorskip("torch")
    drawn = []

    def function(q, k):
        drawn.append(torch.rand(q.shape[-2], k.shape[-2], dtype=q.dtype))
        return q @ k.mT * drawn[-1]

    x = torch.randn(40, 3, dtype=torch.float64, requires_grad=True)
    got = qkv.attend(x, x, x, score=scores.Custom(function))
    (found,) = torch.autograd.grad(got.sin().sum(), x)
    wanted = (x @ x.mT * drawn[-1]).softmax(-1) @ x
    assert torch.allclose(got, wanted)
    assert torch.allclose(found, torch.autograd.grad(wanted.sin().sum(), x)[0])
    with pytest.raises(RefusedError, match=r"kernel must be 'dense' for gradients of a random function, got 'tiled'\."):
        qkv.attend(x, x, x, score=scores.Custom(function), kernel="tiled")


def test_global_random_generators_are_left_as_they_were():
    torch = pytest.importorskip("torch")

    def function(q, k):
        return q @ k.mT + torch.rand(()) + np.random.rand() + random.random()

    trial._TRIALS.clear()
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    x = torch.zeros(2, 9, 3)
    qkv.explain(x, x, x, score=scores.Custom(function))
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def test_a_function_is_tried_once_and_sees_no_data_of_the_call():
    seen = []

    def make(scale):
        def function(q, k):
            seen.append((q.shape[-2], float(abs(q).max())))
            return scale * product(q, k)

        return function

    x = np.full((2, 300, 4), 1e6)
    trial._TRIALS.clear()
    for n in (300, 299, 298):
        qkv.attend(x[:, :n], x, x, score=scores.Custom(make(1e-12)))
    drawn = [n for n, most in seen if most < 1e5]
    assert 0 < len(drawn) <= 8
    assert max(drawn) <= 32
    assert [n for n, most in seen if most > 1e5 and n <= 32] == []


def recursive(q, k, depth=3):
    return product(q, k) if depth == 0 else recursive(q, k, depth - 1)


def test_functions_of_every_kind_have_a_key_that_is_the_same_for_the_same_code():
    def local(depth):
        def again(q, k):
            return product(q, k) if depth == 0 else again(q, k)

        return again

    class Held:
        def score(self, q, k):
            return product(q, k)

    held = Held()
    for make in (
        lambda: local(0),
        lambda: partial(recursive, depth=2),
        lambda: held.score,
        lambda: lambda q, k: product(q, k),
    ):
        assert key_of_code(scores.Custom(make())) == key_of_code(scores.Custom(make()))
    assert key_of_code(partial(softmax, axis=-1)) != key_of_code(partial(softmax, axis=-2))


def test_batch_axes_that_the_trial_cannot_find_must_be_given():
    torch = pytest.importorskip("torch")

    def function(q, k, s):
        if q.shape[-2] == 32:
            raise ValueError
        return q @ k.mT * s[:, None, None]

    x, s = torch.randn(4, 320, 3), torch.tensor([1.0, 2.0, 3.0, 4.0])
    wanted = (x @ x.mT * s[:, None, None]).softmax(-1) @ x
    assert torch.allclose(qkv.attend(x, x, x, score=scores.Custom(function, (s,)), kernel="batched"), wanted, atol=1e-5)
    with pytest.raises(ShapeError, match=r"batch_axes of Custom must be given .* shape \(4,\).* got None. Pass"):
        qkv.attend(x, x, x, score=scores.Custom(function, (s,)), kernel="tiled")
    given = scores.Custom(function, (s,), batch_axes=(1,))
    assert torch.allclose(qkv.attend(x, x, x, score=given, kernel="tiled"), wanted, atol=1e-5)


def test_wrong_batch_axes_are_refused_in_one_sentence():
    x = np.zeros((2, 4, 9, 3))
    with pytest.raises(OptionError, match="batch_axes of Custom must be one integer"):
        scores.Custom(product, (np.ones(4),), batch_axes=(2,))
    with pytest.raises(ShapeError, match="the first 1 axes of parameter 0 of Custom must broadcast"):
        qkv.attend(x, x, x, score=scores.Custom(lambda q, k, s: product(q, k), (np.ones(3),), batch_axes=(1,)))


@pytest.mark.parametrize("library", LIBRARIES)
def test_softmax_over_the_queries_is_two_calls(library):
    setting, rng = Setting(library, "float64" if library != "jax" else "float32"), np.random.default_rng(0)
    q, k, v = (rng.normal(size=(2, n, m)) for n, m in ((7, 8), (50, 8), (50, 3)))
    query, key, value = (setting.array(x) for x in (q, k, v))
    lse = qkv.observe(key, query, query[..., :1], readouts=[readouts.LogSumExp()]).readouts[0]
    got = qkv.attend(query, key, value, score=scores.Biased(scores.ScaledDot(), per_key=-lse))
    shares = softmax(product(q, k) / np.sqrt(8), -2)
    wanted = (shares / shares.sum(-1, keepdims=True)) @ v
    assert np.allclose(np.asarray(got), wanted, rtol=0, atol=1e-5 if library == "jax" else 1e-14)


def test_gradients_of_a_softmax_over_the_queries_are_those_of_all_pairs_and_its_memory_is_linear():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.randn(2, n, 4, dtype=torch.float64, requires_grad=True) for n in (5, 300, 300))
    lse = qkv.observe(k, q, q[..., :1], readouts=[readouts.LogSumExp()]).readouts[0]
    got = qkv.attend(q, k, v, score=scores.Biased(scores.ScaledDot(), per_key=-lse))
    shares = (q @ k.mT / 2).softmax(-2)
    wanted = (shares / shares.sum(-1, keepdim=True)) @ v
    for x, y in zip(*(torch.autograd.grad(out.sin().sum(), (q, k, v)) for out in (got, wanted)), strict=True):
        assert torch.allclose(x, y, rtol=0, atol=1e-13)

    def scratch(n):
        options = {"library": "torch", "gradient": True}
        score = scores.Biased(scores.ScaledDot(), per_key=torch.zeros(n))
        first = qkv.explain((n, 64), (n, 64), (n, 1), readouts=[readouts.LogSumExp()], **options)
        return first.cost.scratch + qkv.explain((n, 64), (n, 64), (n, 64), score=score, **options).cost.scratch

    assert scratch(2**18) < 2.1 * scratch(2**17)
