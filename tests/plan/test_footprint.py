"""The number of array elements per logit of scores that users write."""

import warnings
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv import masks, normalizers, scores
from qkv.core.axes import Axes
from qkv.core.equation import attend_dense
from qkv.plan import problem
from qkv.plan.problem import elements_by_trial
from qkv.scores.base import GeneralScore
from tests.effort import cases

WIDTH = 64


def l1(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return -(q[..., :, None, :] - k[..., None, :, :]).abs().sum(-1)


@dataclass(frozen=True, eq=False)
class L1(GeneralScore):
    def compare(self, query, key):  # type: ignore[no-untyped-def]
        return l1(query, key)


def measured(score: scores.Score, shape: tuple[int, ...] = (2, 300, WIDTH), dtype: str = "float32") -> int | None:
    problem._TRIALS.clear()
    return elements_by_trial(score, Axes.of(shape, shape, shape), dtype)


@pytest.mark.parametrize(
    ("function", "elements"),
    [
        (l1, WIDTH),
        (lambda q, k: -torch.cdist(q, k, p=1.0), 1),
        (lambda q, k: (q @ k.mT).square(), 1),
        (lambda q, k: (q[..., :, None, :32] * k[..., None, :, :32]).sum(-1), 32),
        (lambda q, k: torch.einsum("...qd,...kd->...qk", q, k), 1),
        (lambda q, k: torch.stack([q @ k.mT, k.sum(-1)[..., None, :].expand(*q.shape[:-1], k.shape[-2])]).amax(0), 2),
        (lambda q, k: k.sum(-1)[..., None, :], 1),
        (lambda q, k: (q[..., :, None, :] > k[..., None, :, :]).sum(-1).float(), WIDTH // 4),
    ],
)
def test_the_trial_finds_the_size_of_the_largest_array_of_pairs(function: object, elements: int) -> None:
    assert measured(scores.Custom(function)) == elements  # type: ignore[arg-type]
    assert measured(scores.Softcap(scores.Custom(function), 5.0)) == elements  # type: ignore[arg-type]
    assert measured(scores.Projected(scores.Custom(function), torch.eye(WIDTH))) == elements  # type: ignore[arg-type]


@settings(max_examples=cases(25), deadline=None)
@given(
    st.lists(st.sampled_from([1, 2, 11, 13, 22, 26, 143]), max_size=3),
    st.sampled_from([1, 11, 13, 26, 33, 143, 187]),
    st.sampled_from([11, 26, 64, 143, 286]),
    st.sampled_from(["float32", "float64", "bfloat16"]),
)
def test_axes_that_are_multiples_of_the_trial_lengths_are_not_mistaken_for_pairs(
    batch: list[int], width: int, hidden: int, dtype: str
) -> None:
    weight = torch.ones(width, hidden)

    def function(q: torch.Tensor, k: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (q @ w.to(q)) @ (k @ w.to(k)).mT

    assert measured(scores.Custom(function, (weight,)), (*batch, 3000, width), dtype) == 1


def test_a_class_of_the_user_is_tried_and_one_that_states_its_elements_is_not() -> None:
    class Stated(L1):
        def elements_per_logit(self, query_width: int, key_width: int) -> int:
            return 3

    assert measured(L1()) == WIDTH
    assert measured(Stated()) is None
    assert measured(scores.Custom(l1, elements=7)) is None
    assert measured(scores.ScaledDot()) is None


def test_the_function_is_tried_once_for_each_signature_even_if_it_is_defined_anew() -> None:
    calls = []

    def attend(n: int, scale: float) -> int:
        before = len(calls)

        def function(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            calls.append((q.shape[-2], k.shape[-2]))
            return scale * (q @ k.mT)

        sides = [torch.ones(1, n, WIDTH) for _ in range(3)]
        with torch.no_grad():  # with gradients, one more call checks what the function closes over
            qkv.attend(*sides, score=scores.Custom(function), kernel="batched")
        return len([call for call in calls[before:] if max(call) > 32 or call == (11, 13)])  # without `plan/trial.py`

    problem._TRIALS.clear()
    assert [attend(n, 1.0) for n in (300, 300, 301, 64)] == [2, 1, 1, 1]
    assert attend(300, 2.0) == 2


def test_a_trial_leaves_the_random_state_warnings_and_gradients_of_the_caller_unchanged() -> None:
    def function(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        if q.shape[-2] < 300:
            warnings.warn("a warning", stacklevel=1)
            assert not torch.is_grad_enabled()
        return (q @ k.mT) + torch.rand(())

    state = torch.random.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert measured(scores.Custom(function)) == 1
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.is_grad_enabled()


def test_a_function_that_fails_on_made_up_rows_runs_with_the_assumed_number() -> None:
    bias = torch.randn(300, 300)

    def function(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return q @ k.mT + bias  # other lengths do not broadcast

    sides = [torch.randn(300, WIDTH) for _ in range(3)]
    assert measured(scores.Custom(function), (300, WIDTH)) is None
    with torch.no_grad():  # with gradients, the function is also called on one pair
        output = qkv.attend(*sides, score=scores.Custom(function), kernel="dense")
    wanted = torch.softmax(sides[0] @ sides[1].mT + bias, -1) @ sides[2]
    torch.testing.assert_close(output, wanted)


def test_calls_under_vmap_and_compile_agree_with_the_reference() -> None:
    torch.manual_seed(0)
    sides = [torch.randn(2, 200, WIDTH, dtype=torch.float64) for _ in range(3)]
    score = scores.Custom(l1)
    wanted = attend_dense(*sides, score=score, normalizer=normalizers.Softmax(), mask=masks.Causal()).output

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return qkv.attend(q, k, v, score=score, mask=masks.Causal(), memory="4 GiB")  # type: ignore[return-value]

    torch.testing.assert_close(torch.func.vmap(attend)(*sides), wanted)
    torch.testing.assert_close(torch.compile(attend, backend="eager")(*sides), wanted)


def test_a_function_of_products_is_planned_as_one_array_of_pairs() -> None:
    sides = [(2, 768, 128)] * 3
    wide = qkv.explain(*sides, score=scores.Custom(l1), library="torch", gradient=True)
    narrow = qkv.explain(*sides, score=scores.Custom(lambda q, k: q @ k.mT), library="torch", gradient=True)
    assert narrow.cost.seconds < wide.cost.seconds
    peak = qkv.explain(*sides, score=scores.Custom(lambda q, k: q @ k.mT), library="torch", kernel="dense").cost.peak
    assert peak < 2 * 768 * 768 * 4 * 20
