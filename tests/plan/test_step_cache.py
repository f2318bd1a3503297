"""Tests that decoding steps with different numbers of keys share plans, and get the results of plans of their own."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv import engine, masks, normalizers, scores
from qkv.core.arrays import is_array
from qkv.core.equation import attend_dense
from qkv.plan import step_cache
from qkv.plan.cache import PLANS
from qkv.plan.step_cache import STEPS
from tests.effort import LONG, cases, sample

torch = pytest.importorskip("torch")

HEADS, WIDTH = 2, 3
END = qkv.Positions(align="end")


def _parts(name: str, batch: int, k: int, generator: Any) -> dict[str, Any]:
    """Return score, normalizer, mask and positions of a step over `k` keys; arrays per key are new in every step."""

    def draw(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    weights = torch.Generator().manual_seed(1)
    fixed = [torch.randn(1, HEADS, 4, WIDTH, generator=weights, dtype=torch.float64) for _ in range(2)]
    vector = torch.randn(1, HEADS, 4, generator=weights, dtype=torch.float64)
    return {
        "plain": dict,
        "additive": lambda: {"score": scores.Additive(*fixed, None, vector)},
        "distance": lambda: {"score": scores.Laplace(2.0)},
        "custom": lambda: {"score": scores.Custom(lambda q, k: -abs(q[..., None, :] - k[..., None, :, :]).sum(-1))},
        "bias per key": lambda: {"score": scores.Biased(scores.ScaledDot(), draw(1, k))},
        "positions": lambda: {"score": scores.ALiBi(scores.ScaledDot(), draw(1, HEADS).abs()), "positions": END},
        "top-k": lambda: {"normalizer": normalizers.TopK(20)},
        "entmax": lambda: {"normalizer": normalizers.Entmax(1 + draw(1, HEADS).sigmoid())},
        "sigmoid": lambda: {"normalizer": normalizers.Sigmoid()},
        "lengths": lambda: {"mask": masks.Lengths(torch.randint(0, k + 1, (batch, 1), generator=generator))},
        "keys": lambda: {"mask": masks.AllowedKeys(draw(batch, 1, k) > 0), "score": scores.Gaussian(1.5)},
        "window": lambda: {"mask": masks.Causal() & masks.Window(9, 0), "positions": END},
    }[name]()


NAMES = ("plain", "additive", "distance", "custom", "bias per key", "positions", "top-k", "entmax", "sigmoid",
         "lengths", "keys", "window")  # fmt: skip


@settings(max_examples=cases(60), derandomize=True, deadline=None)
@given(data=st.data())
def test_steps_over_any_numbers_of_keys_equal_the_dense_reference(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(NAMES))
    batch, q = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 1, 1, 4]))
    dtype = data.draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
    gradient, bad = data.draw(st.booleans()), data.draw(st.sampled_from([None, None, math.nan, math.inf]))
    k = data.draw(st.integers(q, 40))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 9)))
    for growth in data.draw(st.lists(st.integers(0, 5), min_size=3, max_size=8)):
        k += growth
        sides = [
            torch.randn(batch, HEADS, n, WIDTH, generator=generator, dtype=torch.float64).to(dtype) for n in (q, k, k)
        ]
        if bad is not None:
            sides[data.draw(st.integers(1, 2))][0, 0, k // 2, 0] = bad
        parts = _parts(name, batch, k, generator)
        full = {"score": scores.ScaledDot(), "normalizer": normalizers.Softmax(), **parts}
        exact = [x.double().requires_grad_(gradient) for x in sides]
        want = torch.as_tensor(attend_dense(*exact, **full).output)
        options = {key: x if dtype == torch.float64 else _cast(x, dtype) for key, x in parts.items()}
        for x in sides:
            x.requires_grad_(gradient)
        got = qkv.attend(*sides, **options)
        loose = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2}[dtype]
        torch.testing.assert_close(got.double(), want, rtol=loose, atol=loose, equal_nan=True)
        if gradient and bad is None and dtype == torch.float64:
            towards = torch.randn(want.shape, generator=generator, dtype=torch.float64)
            pairs = zip(
                torch.autograd.grad(got, sides, towards, allow_unused=True),
                torch.autograd.grad(want, exact, towards, allow_unused=True),
                strict=True,
            )
            for ours, theirs in pairs:
                torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-7)


def _cast(part: Any, dtype: Any) -> Any:
    return part.map_arrays(lambda x: x.to(dtype) if x.is_floating_point() else x)


def _count(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which the number of keys of every call that is planned is added."""
    planned, plan = [], engine.plan_problem

    def counted(problem: Any, *args: Any) -> Any:
        planned.append(problem.axes.k)
        return plan(problem, *args)

    monkeypatch.setattr(engine, "plan_problem", counted)
    return planned


@pytest.mark.parametrize("name", sample(["additive", "distance", "entmax", "positions", "lengths"], 2))
def test_two_hundred_steps_need_few_plans(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    STEPS.clear()
    PLANS.clear()
    planned = _count(monkeypatch)
    generator = torch.Generator().manual_seed(0)
    for k in range(100, 300):
        query, key = (torch.randn(1, HEADS, n, WIDTH, dtype=torch.float64) for n in (1, k))
        qkv.attend(query, key, key, **_parts(name, 1, k, generator))
    # Ranges 96–111, 112–127, 128–159, …, 256–319: one plan of the first call, and one of all others.
    assert len(planned) == 14


def test_a_single_call_is_planned_for_its_own_number_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    STEPS.clear()
    PLANS.clear()
    planned = _count(monkeypatch)
    query, key = torch.randn(1, 4), torch.randn(1000, 4)
    for _ in range(2):
        qkv.attend(query, key, key)
    assert planned == [1000]


def test_plans_of_steps_hold_no_arrays_and_do_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    STEPS.clear()
    monkeypatch.setattr(step_cache, "_MAX_PLANS", 64)
    for width in range(1, 100):
        for k in (16, 17):
            x = torch.randn(k, width)
            qkv.attend(x[:1], x, x, score=scores.Bilinear(torch.randn(width, width)))
    assert len(STEPS) == 64
    for step in STEPS.values():
        if step is not None:
            spec = (*step.cached.plan.requested.spec.arrays(), *step.cached.plan.problem.spec.arrays())
            assert not any(is_array(x) for x in spec)
            assert all(x.untyped_storage().nbytes() <= 8 for x in step.problem.spec.arrays())


def test_a_step_that_needs_more_than_the_budget_at_a_larger_length_runs_within_it() -> None:
    needed = qkv.explain((1, 8), (1024, 8), (1024, 8), library="torch", kernel="dense").cost.scratch
    for k in (1024, 1025, 1026):
        query, key = torch.randn(1, 8), torch.randn(k, 8)
        found = qkv.attend(query, key, key, memory=int(needed * 1.1), kernel="dense")
        torch.testing.assert_close(found, torch.as_tensor(qkv.attend(query.numpy(), key.numpy(), key.numpy())))


def _positioned(t: int, k: int) -> dict[str, dict[str, Any]]:
    """Return options of a query at position `t`, which all exclude the keys after it among `k` keys."""
    return {
        "causal, integer": {"mask": masks.Causal(), "positions": qkv.Positions(query_start=t)},
        "causal, tensor": {"mask": masks.Causal(), "positions": qkv.Positions(query_start=torch.tensor(t))},
        "causal, per batch": {
            "mask": masks.Causal(), "positions": qkv.Positions(query_start=torch.full((1, HEADS), t)),
        },
        "length": {"mask": masks.Lengths(max(0, t + 1))},
        "lengths": {"mask": masks.Lengths(torch.tensor([[max(0, t + 1)] * HEADS]))},
        "pairs": {"mask": masks.AllowedPairs((torch.arange(k) <= t)[None])},
    }  # fmt: skip


@pytest.mark.thinned
@pytest.mark.parametrize("name", _positioned(0, 1))
@pytest.mark.parametrize("score", [None, scores.Gaussian(1.0), scores.Laplace(1.0), scores.ALiBi(scores.Dot(), 0.1)])
def test_steps_at_any_position_of_a_static_buffer_equal_the_dense_reference(
    name: str, score: scores.Score | None
) -> None:
    generator, k = torch.Generator().manual_seed(0), 40
    sides = [torch.randn(1, HEADS, n, 4, generator=generator, dtype=torch.float64) for n in (1, k, k)]
    for t in (-2, -1, *range(0, k + 3, 2 if LONG else 6), k - 1, k, k + 1):
        options = {"positions": qkv.Positions(query_start=t)} | _positioned(t, k)[name] | {"score": score}
        broken = [x.clone() for x in sides]
        if 0 <= t < k - 1:
            broken[1][..., t + 1 :, :], broken[2][..., t + 1 :, :] = torch.nan, torch.inf
        for given_ in (sides, broken):
            found = [qkv.attend(*given_, **options, kernel=kernel) for kernel in (None, "dense")]
            torch.testing.assert_close(*found)
        broken[1][..., 0, :] = torch.nan
        found = [qkv.attend(*broken, **options, kernel=kernel, seed=1) for kernel in (None, "dense")]
        torch.testing.assert_close(*found, equal_nan=True)
        leaves = [x.clone().requires_grad_() for x in sides]
        outputs = [qkv.attend(*leaves, **options, kernel=kernel).square().sum() for kernel in (None, "dense")]
        allowed = {"allow_unused": True, "materialize_grads": True}
        gradients = [torch.autograd.grad(x, leaves, **allowed) for x in outputs]
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", ["causal, integer", "length"])
def test_steps_of_a_static_buffer_are_planned_once_for_a_quarter_more_keys(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides, planned, plan = [torch.randn(1, HEADS, n, 4) for n in (1, 600, 600)], [], engine.plan_call
    monkeypatch.setattr(engine, "plan_call", lambda *args, **more: planned.append(0) or plan(*args, **more))
    for t in range(512, 560):
        qkv.attend(*sides, **_positioned(t, 600)[name])
    assert len(planned) <= 2
