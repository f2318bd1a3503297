"""Scores of squared distances at all magnitudes agree with float64 differences, in every kernel and library."""

from typing import Any

import numpy as np
import pytest

import qkv
from qkv import normalizers, scores
from qkv.errors import RefusedError
from qkv.testing.libraries import turn
from tests.effort import LONG
from tests.random_calls.magnitudes import LAYOUTS, coordinates

EPSILON = float(np.finfo(np.float32).eps)
LIBRARIES = {
    "numpy": (None, "dense", "numpy_blocks"),
    "torch": (None, "dense", "batched", "fused", "tiled", "row_blocks"),
    "jax": (None, "dense", "jax_loops"),
    "tensorflow": (None, "dense", "tensorflow_blocks"),
}


def squares(query: Any, key: Any) -> Any:
    return np.sum((query[..., :, None, :] - key[..., None, :, :]) ** 2, axis=-1)


def right_output(logits: Any, value: Any) -> Any:
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights @ value / weights.sum(axis=-1, keepdims=True)


def allowed_error(logits: Any) -> Any:
    """Return the largest error of weights in each row: that of logits, 4 eps (1 + |logit|), of keys with weight."""
    near = logits >= logits.max(axis=-1, keepdims=True) - 20
    return 4 * EPSILON * (1 + np.where(near, abs(logits), 0).max(axis=-1, keepdims=True))


def draw(number: int, layout: str | None = None) -> tuple[Any, Any, Any, float]:
    rng = np.random.default_rng(number)
    width, q, k = int(rng.choice([1, 1, 2, 3, 8, 16, 64])), int(rng.integers(1, 40)), int(rng.choice([2, 7, 40, 301]))
    batch = ((), (2,), (2, 3))[rng.integers(3)]
    layout = layout or LAYOUTS[number % len(LAYOUTS)]
    q = k if layout == "queries are keys" else q
    if layout == "far cloud":  # as long rows as the short calls of PyTorch may have
        batch, q, k, width = (), int(rng.integers(1, 300)), int(rng.integers(1, 2500)), int(rng.integers(1, 4))
    query, key, bandwidth = coordinates(rng, (*batch, q, width), (*batch[1:], k, width), layout)
    value = rng.uniform(-1, 1, size=(k, 3))
    with np.errstate(all="ignore"):
        return *(x.astype(np.float32) for x in (query, key, value)), bandwidth


def arrays_of(name: str) -> Any:
    if name == "numpy":
        return np.asarray
    if name == "torch":
        return pytest.importorskip("torch").tensor
    if name == "jax":
        return pytest.importorskip("jax.numpy").asarray
    return pytest.importorskip("tensorflow").constant


def check(name: str, kernel: str | None, number: int) -> str | None:
    query, key, value, bandwidth = draw(number)
    array = arrays_of(name)
    exact = [x.astype(np.float64) for x in (query, key, value)]
    logits = squares(*exact[:2]) * (-0.5 / bandwidth**2)
    tolerance = 4 * allowed_error(logits) + 8 * EPSILON
    got = qkv.attend(*map(array, (query, key, value)), score=scores.Gaussian(bandwidth), kernel=kernel)
    wrong = abs(np.asarray(got, np.float64) - right_output(logits, exact[2])) > tolerance
    wrong &= allowed_error(logits) < 0.1
    if not wrong.any():
        return None
    error = (abs(np.asarray(got, np.float64) - right_output(logits, exact[2])) / tolerance)[wrong].max()
    return f"call {number}, {LAYOUTS[number % len(LAYOUTS)]}, {name}, {kernel}: {error:.3g} × the bound"


@pytest.mark.parametrize("name", LIBRARIES)
def test_weights_of_distances_are_within_the_bound_at_every_magnitude(name: str) -> None:
    kernels = LIBRARIES[name]
    count = 32 if LONG else 8 if name in ("numpy", "torch") else 1
    found = [check(name, kernel, number) for kernel in kernels for number in {*range(count), 31}]  # 31: a far cloud
    assert [each for each in found if each] == []


@pytest.mark.thinned
@pytest.mark.parametrize("exponent", [-66, 63])
@pytest.mark.parametrize("name", LIBRARIES)
def test_vectors_whose_squares_leave_the_range_of_float32_give_what_vectors_of_usual_lengths_give(
    name: str, exponent: int
) -> None:
    rng, array, unit = np.random.default_rng(0), arrays_of(name), 2.0**exponent
    query, key, value = (rng.normal(size=(n, 4)).astype(np.float32) for n in (9, 40, 40))

    def drawn(unit: float) -> list[Any]:
        kernels = [scores.Gaussian(unit), scores.Laplace(unit), scores.Epanechnikov(4 * unit), scores.Dot(unit**-2)]
        return [*kernels, scores.ALiBi(scores.ScaledDot(unit**-2), 0.1)]

    for number, (score, usual) in enumerate(zip(drawn(unit), drawn(1.0), strict=True)):
        for normalizer in turn((normalizers.Softmax(), normalizers.Sparsemax()), number, 2):
            at = {"normalizer": normalizer, "positions": qkv.Positions("end")}
            right = qkv.attend(*(x.astype(np.float64) for x in (query, key, value)), score=usual, **at)
            for kernel in LIBRARIES[name]:
                sides = [array(x * np.float32(unit)) for x in (query, key)]
                try:
                    got = qkv.attend(*sides, array(value), score=score, kernel=kernel, **at)
                except RefusedError:
                    continue
                assert np.allclose(np.asarray(got), right, atol=1e-5), (score, normalizer, kernel)


def test_a_call_in_half_precision_that_is_repeated_gives_the_same() -> None:
    query, key, value = np.random.default_rng(0).normal(size=(3, 256, 8)).astype(np.float16)
    for score in (scores.Gaussian(0.3), scores.Laplace(0.3), scores.Dot()):
        for kernel in LIBRARIES["numpy"]:
            first, *others = (qkv.attend(query, key, value, score=score, kernel=kernel) for _ in range(3))
            assert all(np.array_equal(first, other) for other in others), (score, kernel)


@pytest.mark.parametrize("kernel", LIBRARIES["torch"])
def test_gradients_of_distances_are_within_the_bound_at_every_magnitude(kernel: str | None) -> None:
    torch = pytest.importorskip("torch")
    layouts = [*LAYOUTS, *(["queries are keys"] * 3)]
    for number, layout in enumerate(layouts * 3 if LONG else layouts):
        query, key, value, bandwidth = draw(number, layout)
        exact = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (query, key, value)]
        logits = (exact[0][..., :, None, :] - exact[1][..., None, :, :]).square().sum(-1) * (-0.5 / bandwidth**2)
        logits.retain_grad()
        bound = torch.tensor(allowed_error(logits.detach().numpy()))
        upstream = (bound < 0.1).double() * torch.tensor(np.random.default_rng(number).normal(size=(1, 3)))
        right = logits.softmax(-1) @ exact[2]
        right.backward(upstream.expand_as(right))
        sides = [torch.tensor(x, requires_grad=True) for x in (query, key, value)]
        got = qkv.attend(*sides, score=scores.Gaussian(bandwidth), kernel=kernel)
        got.backward(upstream.expand_as(right).float())
        # The sums of the gradients without their signs, to which errors are relative.
        terms = (logits.grad.abs() + 1e-30)[..., None] * (
            exact[0].detach()[..., :, None, :] - exact[1][..., None, :, :]
        ).abs()
        sizes = [terms.sum(-2) / bandwidth**2, terms.sum(-3) / bandwidth**2]
        most = float(torch.where(bound < 0.1, bound, 0.0).max())
        for side, wanted, size in zip(sides, exact, sizes, strict=False):
            size = size.expand(*logits.shape[:-2], *size.shape[-2:]).sum_to_size(side.shape).detach()
            error = (side.grad.double() - wanted.grad).abs()
            assert bool((error <= (16 * most + 64 * EPSILON) * size.max() + 1e-30).all()), (number, layout, kernel)


@pytest.mark.parametrize("coefficient", [1e-4, 0.1, 3.0])
@pytest.mark.parametrize("kernel", [None, "fused", "tiled", "batched"])
def test_quadratic_penalties_and_their_gradients_are_right_at_long_distances(
    coefficient: float, kernel: str | None
) -> None:
    torch = pytest.importorskip("torch")
    n, generator = 700, torch.Generator().manual_seed(0)
    value, upstream = (torch.randn(n, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    zeros = torch.zeros(n, 1)
    distances = torch.arange(n)[:, None] - torch.arange(n)
    c = torch.tensor(coefficient, dtype=torch.float64, requires_grad=True)
    right = (-c * distances.double().square()).softmax(-1) @ value
    fixed = scores.QuadraticPosition(scores.Dot(), coefficient)
    got = qkv.attend(zeros, zeros, value.float(), score=fixed, kernel=kernel)
    assert float((got - right.detach()).abs().max()) < 4e-6
    learned = torch.tensor(coefficient, requires_grad=True)
    score = scores.QuadraticPosition(scores.Dot(), learned)
    got = qkv.attend(zeros, zeros, value.float(), score=score, kernel=None if kernel == "fused" else kernel)
    found = torch.autograd.grad((got * upstream.float()).sum(), learned)[0]
    slopes = torch.autograd.grad(((-distances.double().square() * c).softmax(-1) @ value * upstream).sum(), c)[0]
    assert abs(float(found) / float(slopes) - 1) < (1e-4 if coefficient >= 0.1 else 0.1)  # sums of large terms


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_key_of_few_coordinates_is_its_own_nearest_key(name: str) -> None:
    rng, array = np.random.default_rng(0), arrays_of(name)
    for width, normalizer in ((1, normalizers.Hard()), (2, normalizers.TopK(1)), (1, normalizers.TopK(1))):
        key = np.unique((rng.uniform(0, 30, size=(1500, width)) + rng.choice([0, 1e3])).astype(np.float32), axis=0)
        value = np.arange(len(key), dtype=np.float32)[:, None]
        score = scores.Gaussian(10 ** rng.uniform(-1, 1))
        got = qkv.attend(*map(array, (key, key, value)), score=score, normalizer=normalizer)
        assert np.allclose(np.asarray(got), value, rtol=1e-6)  # TensorFlow's softmax of one logit may be 1 − 6e-8


def test_one_huge_coordinate_gives_the_value_of_the_nearest_key_in_every_library() -> None:
    keys, values = np.arange(8.0)[:, None], np.arange(8.0)[:, None] * 10
    for name in LIBRARIES:
        array = arrays_of(name)
        sizes = [(np.float32, 1e20), (np.float32, 3e38)]
        if name != "jax":
            sizes += [(np.float64, 1e155), (np.float64, 1e300)]
        for dtype, huge in sizes:
            query = np.array([[huge], [-huge], [3.0], [0.0], [1.0], [2.0]], dtype)
            got = qkv.attend(*map(array, (query, keys.astype(dtype), values.astype(dtype))), score=scores.Gaussian(0.1))
            assert np.allclose(np.ravel(got), [70, 0, 30, 0, 10, 20], atol=1e-6), (name, huge)


def test_steps_of_a_cache_agree_with_the_full_pass_at_far_positions() -> None:
    torch = pytest.importorskip("torch")
    from qkv import masks, nn

    n, score = 200, scores.Gaussian(0.5)
    x, value = torch.arange(n, dtype=torch.float32)[None, :, None], torch.randn(1, n, 2)
    attention, cache = nn.Attention(score=score, mask=masks.Causal()), nn.KeyValueCache()
    with torch.no_grad():
        steps = [attention(*(y[:, i : i + 1] for y in (x, x, value)), cache=cache) for i in range(n)]
        right = qkv.attend(x.double(), x.double(), value.double(), score=score, mask=masks.Causal())
    assert float((torch.cat(steps, dim=1) - right).abs().max()) < 1e-6
