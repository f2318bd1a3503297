"""Tests that cached plans are used for the right calls when parts hold arrays which the caller changes."""

import gc
from collections.abc import Callable

import pytest

import qkv
from qkv import masks, normalizers, scores
from qkv.core.equation import attend_dense
from qkv.core.typing import Float, Tensor
from qkv.masks import Mask
from qkv.normalizers import Normalizer, Softmax
from qkv.plan import cache
from qkv.plan.cache import PLANS
from qkv.scores import ScaledDot, Score

torch = pytest.importorskip("torch")

Parts = tuple[Score, Normalizer, Mask | None]


def _wanted(x: Tensor, parts: Parts) -> Float[Tensor, "batch heads q width"]:
    """Return the output of the dense reference in float64."""
    score, normalizer, mask = (None if part is None else part.map_arrays(_double) for part in parts)
    assert isinstance(score, Score)
    assert isinstance(normalizer, Normalizer)
    assert mask is None or isinstance(mask, Mask)
    sides = [x.double()] * 3
    return torch.as_tensor(attend_dense(*sides, score=score, normalizer=normalizer, mask=mask).output)


def _double(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def _check(x: Tensor, parts: Parts) -> None:
    score, normalizer, mask = parts
    got = qkv.attend(x, x, x, score=score, normalizer=normalizer, mask=mask)
    torch.testing.assert_close(got.double(), _wanted(x, parts), atol=1e-5, rtol=1e-5)


def _keys() -> tuple[Parts, Callable[[], object]]:
    keep = torch.tensor([[[True, True, False, True, False]]])
    return (ScaledDot(), Softmax(), masks.AllowedKeys(keep)), lambda: keep.logical_not_()


def _lengths() -> tuple[Parts, Callable[[], object]]:
    lengths = torch.tensor([[2], [4]])
    return (ScaledDot(), Softmax(), masks.Lengths(lengths)), lambda: lengths.sub_(2)  # the first is then empty


def _pairs() -> tuple[Parts, Callable[[], object]]:
    allowed = torch.ones(5, 5, dtype=torch.bool)
    return (ScaledDot(), Softmax(), masks.AllowedPairs(allowed)), lambda: allowed[2].zero_()


def _causal_keys() -> tuple[Parts, Callable[[], object]]:
    keep = torch.ones(1, 1, 5, dtype=torch.bool)
    return (ScaledDot(), Softmax(), masks.Causal() & masks.AllowedKeys(keep)), lambda: keep[..., 0].zero_()


def _additive() -> tuple[Parts, Callable[[], object]]:
    weights = torch.randn(6, 4), torch.randn(6, 4), torch.randn(6)
    score = scores.Additive(weights[0], weights[1], None, weights[2])
    return (score, Softmax(), None), lambda: [x.mul_(-2) for x in weights]


def _bandwidth() -> tuple[Parts, Callable[[], object]]:
    bandwidth = torch.tensor([[1.0], [2.0]])
    return (scores.Gaussian(bandwidth), Softmax(), None), lambda: bandwidth.mul_(0.5)


def _temperature() -> tuple[Parts, Callable[[], object]]:
    temperature = torch.tensor([[1.0], [2.0]])
    return (ScaledDot(), Softmax(temperature), None), lambda: temperature.mul_(0.25)


def _sigmoid() -> tuple[Parts, Callable[[], object]]:
    bias = torch.tensor([[0.5], [1.0]])
    return (scores.Cosine(), normalizers.Sigmoid(bias), None), bias.neg_


def _few_keys() -> tuple[Parts, Callable[[], object]]:
    slope = torch.tensor([[0.5], [-1.0]]).expand(2, 3).clone()
    return (scores.ALiBi(ScaledDot(), slope), normalizers.TopK(9), None), slope.neg_


def _few_keys_of_some() -> tuple[Parts, Callable[[], object]]:
    keep = torch.ones(1, 1, 5, dtype=torch.bool)
    mask = masks.AllowedKeys(keep)
    return (scores.Gaussian(torch.tensor([[1.0], [2.0]])), normalizers.TopK(5), mask), lambda: keep[..., 0].zero_()


def _negated_twice() -> tuple[Parts, Callable[[], object]]:
    keep = torch.ones(1, 1, 5, dtype=torch.bool)
    return (ScaledDot(), Softmax(), ~~masks.AllowedKeys(keep)), lambda: keep[..., 0].zero_()


def _bias_of_all_queries() -> tuple[Parts, Callable[[], object]]:
    bias = torch.randn(1, 5)
    return (scores.Biased(ScaledDot(), bias), normalizers.TopK(7), masks.Window(9, 9)), bias.neg_


CASES = [
    _keys,
    _lengths,
    _pairs,
    _causal_keys,
    _additive,
    _bandwidth,
    _temperature,
    _sigmoid,
    _few_keys,
    _few_keys_of_some,
    _negated_twice,
    _bias_of_all_queries,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__.strip("_"))
def test_array_changed_in_place_changes_the_output_of_a_cached_plan(case: Callable) -> None:
    x = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(1))
    parts, change = case()
    for _ in range(3):
        _check(x, parts)
    change()
    size = len(PLANS)
    for _ in range(2):
        _check(x, parts)
    assert len(PLANS) == size


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__.strip("_"))
def test_new_part_with_other_elements_uses_the_cached_plan_but_its_own_elements(case: Callable) -> None:
    x = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(2))
    parts, _ = case()
    _check(x, parts)
    size = len(PLANS)
    for _ in range(3):
        parts, change = case()
        change()
        _check(x, parts)
    assert len(PLANS) == size


def test_a_plan_whose_rewrites_leave_the_arrays_of_parts_alone_is_prepared() -> None:
    x = torch.randn(2, 3, 5, 9)
    PLANS.clear()
    _check(x, (scores.Gaussian(torch.tensor([[1.0], [2.0]])), normalizers.TopK(5), masks.Window(9, 9)))
    (cached,) = PLANS.values()
    assert len(cached.plan.rewrites) == 2
    assert cached.prepared is not None
    assert isinstance(cached.parts[1], Softmax)
    assert cached.parts[2] is None
    assert cached.takes_arrays == (True, False, False)


def test_gradient_requested_after_the_first_call_is_computed() -> None:
    x = torch.randn(1, 3, 5, 4)
    bandwidth = torch.tensor(1.5)
    score = scores.Gaussian(bandwidth)
    assert not qkv.attend(x, x, x, score=score).requires_grad
    bandwidth.requires_grad_()
    output = qkv.attend(x, x, x, score=score)
    (gradient,) = torch.autograd.grad(output.square().sum(), bandwidth)
    with torch.no_grad():
        step = 1e-3
        bandwidth.add_(step)
        above = qkv.attend(x, x, x, score=score).square().sum()
        bandwidth.sub_(2 * step)
        below = qkv.attend(x, x, x, score=score).square().sum()
    assert gradient.item() == pytest.approx(((above - below) / (2 * step)).item(), rel=1e-2)


def test_array_that_gets_another_dtype_or_shape_in_place_gets_another_plan() -> None:
    x = torch.randn(2, 3, 5, 4)
    slope = torch.nn.Parameter(torch.rand(1, 3), requires_grad=False)
    score = scores.ALiBi(ScaledDot(), slope)
    for _ in range(2):
        qkv.attend(x, x, x, score=score)
    slope.data = slope.data.double()
    _check(x, (score, Softmax(), None))
    keep = torch.ones(5, dtype=torch.bool)
    mask = masks.AllowedKeys(keep)
    for _ in range(2):
        _check(x, (ScaledDot(), Softmax(), mask))
    keep.data = torch.tensor([[[False, False, True, True, True]], [[True] * 5]])
    _check(x, (ScaledDot(), Softmax(), mask))


def test_part_that_is_no_longer_used_is_removed_from_the_cache() -> None:
    x = torch.randn(1, 1, 5, 4)
    before = len(cache._KNOWN)
    for n in range(50):
        qkv.attend(x, x, x, mask=masks.AllowedKeys(torch.arange(5) <= n))
    gc.collect()
    assert len(cache._KNOWN) <= before + 10


def test_observation_shows_the_arrays_of_its_own_call() -> None:
    x = torch.randn(1, 2, 5, 4)
    for n in (2.0, 3.0):
        score = scores.Gaussian(torch.tensor([[n, n]]))
        for _ in range(2):
            plan = qkv.observe(x, x, x, score=score).plan
            assert plan.problem.score is score or plan.problem.score.arrays()[0] is score.bandwidth


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("bad", [None, float("nan"), float("inf")], ids=str)
@pytest.mark.parametrize(
    ("score", "mask"),
    [
        (ScaledDot(), None),
        (ScaledDot(), masks.Lengths(torch.tensor([[2], [5]]))),
        (scores.Laplace(2.0), masks.Causal()),
        (scores.RelativePosition(ScaledDot(), torch.linspace(-1, 1, 32)), masks.Window(2, 1)),
        (scores.RelativePosition(ScaledDot(), torch.linspace(-1, 1, 32).half()), masks.Causal()),
        (scores.Custom(lambda q, k: -(q[..., :, None, :] - k[..., None, :, :]).abs().sum(-1)), masks.Causal()),
    ],
)
def test_repeated_calls_in_half_precision_return_what_the_first_call_does(
    dtype: torch.dtype, bad: float | None, score: Score, mask: Mask | None
) -> None:
    torch.manual_seed(0)
    sides = [torch.randn(2, 3, 5, 16, dtype=dtype) for _ in range(3)]
    if bad is not None:
        sides[2][1, 0, 3, 0] = bad
    wanted = attend_dense(
        *(x.double() for x in sides), score=score.map_arrays(_double), normalizer=Softmax(), mask=mask
    ).output
    PLANS.clear()
    found = []
    for _ in range(3):
        leaves = [x.clone().requires_grad_() for x in sides]
        output = qkv.attend(*leaves, score=score, mask=mask)
        assert output.dtype == dtype
        torch.testing.assert_close(output.double(), wanted, atol=2e-2, rtol=2e-2, equal_nan=True)
        with torch.no_grad():
            # Without a gradient, bfloat16 is multiplied as such where the processor does.
            again = qkv.attend(*leaves, score=score, mask=mask)
            torch.testing.assert_close(again, output, rtol=1.6e-2, atol=4e-3, equal_nan=True)
        gradients = torch.autograd.grad(output[:1].sum(), leaves)
        assert all(x.dtype == dtype for x in gradients)
        found.append((output.detach(), *gradients))
    for again in found[1:]:
        torch.testing.assert_close(again, found[0], equal_nan=True)
