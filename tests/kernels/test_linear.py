"""The kernel of linear attention."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import qkv
from qkv import masks, normalizers, scores
from qkv.core.equation import attend_dense
from qkv.errors import NegativeScoreError
from qkv.kernels import LinearKernel
from qkv.kernels.linear import decay, recurrence
from qkv.kernels.linear import kernel as linear_kernel
from qkv.testing.cases import Call, Case
from qkv.testing.execution import oracle_of, run, run_eagerly
from qkv.testing.kernel_harness import assert_agrees
from qkv.testing.kernels import KernelContract
from qkv.testing.libraries import Setting, assert_close, to_float64
from tests.effort import LONG, cases, sample

KERNEL = LinearKernel()


class TestLinear(KernelContract):
    kernel = KERNEL

    def test_runs_scaled_dot_product_attention(self, setting: Setting) -> None:
        case = Case("scaled dot", "identity", "causal at the end")  # under softmax there is no product form
        assert self.accepts(case.call(), setting)
        self.check_cases(setting, [case])


@st.composite
def calls(draw: Any) -> Call:
    """Draw a call that has a product form."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    q, k, width, value_width = (draw(st.integers(*bounds)) for bounds in ((0, 40), (0, 40), (1, 5), (1, 4)))
    batch, shared = draw(st.sampled_from([((), ()), ((3,), (3,)), ((2, 3), (2, 1)), ((2, 3), ()), ((2, 1), (2, 3))]))
    positions = draw(
        st.sampled_from([qkv.Positions(align="start"), qkv.Positions(align="end")])
        | st.builds(qkv.Positions, query_start=st.integers(-9, 45))
    )
    whole = np.broadcast_shapes(batch, shared)
    kinds = [None, masks.AllowedKeys(rng.random((k,)) < 0.6), masks.Lengths(rng.integers(0, k + 1, whole))]
    kinds.append(~masks.AllowedKeys(rng.random((*whole, k)) < 0.5))
    mask = draw(st.sampled_from(kinds))
    if draw(st.booleans()):
        mask = masks.Causal() if mask is None else masks.Causal() & mask
    query, key = rng.normal(size=(*batch, q, width)), rng.normal(size=(*shared, k, width))
    normalizer = draw(st.sampled_from([normalizers.Sum(), normalizers.Identity()]))
    score = draw(
        st.sampled_from(
            [
                scores.Features(),
                scores.Features("relu"),
                scores.Features(lambda x, w: (x @ w) ** 2, (rng.normal(size=(width, 3)),), 3),
            ]
            + [scores.Gaussian(1.5), scores.Bilinear(rng.normal(size=(width, width))), scores.Dot(0.3)]
            * (not normalizer.sums_to_one)
        )
    )
    if draw(st.booleans()) and k > 2:
        key[..., 1:, :] = -1.0  # under relu the sums of some rows are 0
    return Call(query, key, rng.normal(size=(*shared, k, value_width)), score, normalizer, mask, positions)


@st.composite
def decayed_calls(draw: Any) -> Call:
    """Draw a call with a causal mask and decays: a number per head, per key, or per key and feature."""
    call = draw(calls())
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    score = draw(st.sampled_from([call.score, scores.Dot()])) if not call.normalizer.sums_to_one else call.score
    batch, k = np.broadcast_shapes(call.query.shape[:-2], call.key.shape[:-2]), call.key.shape[-2]
    own = draw(st.sampled_from([(), batch, (1,) * len(batch)]))
    # Under Sum, strong decays make sums so small that float64 has few digits for them.
    strength = draw(st.sampled_from([0.0, 0.1, 3.0] if call.normalizer.sums_to_one else [0.0, 0.1, 3.0, 200.0]))
    widths = [1]
    if score.form.lift == "exact":
        widths.append(score.lifted_width(call.query.shape[-1], call.key.shape[-1]))
    shape = draw(st.sampled_from([own, *((*own, k, width) for width in widths)]))
    decay = np.asarray(-strength * rng.random(shape))
    per_key = len(shape) > len(own)
    score = scores.Decay(score, log_decay_per_key=decay) if per_key else scores.Decay(score, decay)
    mask = call.mask
    if mask is None or mask.key_only:
        mask = masks.Causal() if mask is None else masks.Causal() & mask
    return replace(call, score=score, mask=mask)


@pytest.mark.parametrize("library", ["torch", "numpy"])
@settings(max_examples=cases(30), suppress_health_check=list(HealthCheck))
@given(call=decayed_calls(), chunk=st.sampled_from([1, 8, 32]), least=st.sampled_from([1, 4, 32]))
def test_decays_agree_with_the_equation_with_gradients(library: str, call: Call, chunk: int, least: int) -> None:
    setting = Setting(library, "float64")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decay, "CHUNK_OF_DECAYS", chunk)
        patch.setattr(decay, "_LEAST", least)
        patch.setattr(decay, "_BLOCK_PAIRS", 2**9)
        assert_agrees(run(call, setting, KERNEL), oracle_of(call, setting), setting, f"{call.score} {call.mask}")


def recurrent(query: Any, key: Any, value: Any, log_decay: Any) -> torch.Tensor:
    """Return the outputs of the recurrence of RetNet, GLA and Mamba-2, step by step, as their papers define it."""
    state = torch.zeros(*value.shape[:-2], key.shape[-1], value.shape[-1], dtype=value.dtype)
    outputs = []
    for t in range(query.shape[-2]):
        state = log_decay[..., t, :].exp()[..., None] * state + key[..., t, :, None] * value[..., t, None, :]
        outputs.append((query[..., t, None, :] @ state)[..., 0, :])
    return torch.stack(outputs, dim=-2)


@pytest.mark.thinned
@pytest.mark.parametrize("kind", ["RetNet", "GLA", "Mamba-2", "strong", "one large decay in each chunk"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_chunked_scan_agrees_with_a_recurrence_in_float64_with_gradients(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 333, 8, dtype=torch.float64) for _ in range(3))
    raw = torch.randn(2, 3, 333, 1 if kind in ("RetNet", "Mamba-2") else 8, dtype=torch.float64)
    gates = {
        "RetNet": torch.log1p(-(2.0 ** (-5 - torch.arange(3, dtype=torch.float64)))),
        "GLA": torch.nn.functional.logsigmoid(raw) / 16,
        "Mamba-2": -torch.nn.functional.softplus(raw),
        "strong": -100 * raw.abs(),
        "one large decay in each chunk": torch.where((torch.arange(333) % 32 == 5)[:, None], -7.9, -1e-3 * raw.abs()),
    }[kind]
    whole = gates[:, None, None].expand(2, 3, 333, 1) if kind == "RetNet" else gates
    towards = torch.randn(2, 3, 333, 8, dtype=torch.float64)

    def gradients(function: Any, dtype: torch.dtype) -> list[torch.Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in (query, key, value, gates if function is qkv_ else whole)]
        output = function(*leaves)
        return [output.detach(), *torch.autograd.grad(output, leaves, towards.to(dtype))]

    def qkv_(q: Any, k: Any, v: Any, g: Any) -> torch.Tensor:
        score = scores.Decay(scores.Dot(), g[None]) if kind == "RetNet" else scores.Decay(scores.Dot(), None, g)
        return qkv.attend(q, k, v, score=score, normalizer=normalizers.Identity(), mask=masks.Causal(), kernel=KERNEL)

    found, wanted = gradients(qkv_, dtype), gradients(recurrent, torch.float64)
    if kind == "RetNet":
        wanted[-1] = wanted[-1].sum((0, 2, 3))
    limit = 1e-12 if dtype == torch.float64 else 5e-6
    for mine, theirs in zip(found, wanted, strict=True):
        assert float((mine - theirs).abs().max() / theirs.abs().max()) < limit


def test_decays_that_grow_are_computed_pair_by_pair() -> None:
    x = torch.ones(1, 3, 1)
    seen = qkv.observe(
        x, x, x, score=scores.Decay(scores.Dot(), None, torch.full((1, 3, 1), 0.5)), mask=masks.Causal(), kernel=KERNEL
    )
    assert "above 0" in seen.plan.guards_taken[0]
    assert float(seen.output[0, 2, 0]) == pytest.approx(1 + np.exp(0.5) + np.e)


def test_planner_takes_the_scan_for_long_causal_calls_with_decays() -> None:
    shape, parts = (4, 4096, 64), {"mask": masks.Causal(), "library": "torch"}
    for score in (scores.Decay(scores.Dot(), -0.1), scores.Decay(scores.Dot(), None, torch.zeros(4, 4096, 64))):
        plan = qkv.explain(shape, shape, shape, score=score, gradient=True, **parts)
        assert plan.kernel.name == "linear"
        assert "the state decays at each key" in str(plan)
    without = qkv.explain(shape, shape, shape, score=scores.Decay(scores.Dot(), -0.1), library="torch")
    assert without.kernel.name != "linear"


@pytest.mark.parametrize("library", ["torch", "numpy"])
@settings(max_examples=cases(150), suppress_health_check=list(HealthCheck))
@given(call=calls(), chunk=st.sampled_from([1, 3, 8, 32]), pairs=st.sampled_from([1, 64, 2**16]))
def test_output_and_gradients_agree_with_the_equation(library: str, call: Call, chunk: int, pairs: int) -> None:
    setting = Setting(library, "float64")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recurrence, "CHUNK", chunk)
        patch.setattr(recurrence, "BLOCK_PAIRS", pairs)
        patch.setattr(recurrence, "CHUNK_OF_LOOPS", chunk)
        assert_agrees(run(call, setting, KERNEL), oracle_of(call, setting), setting, str(call.mask))


@pytest.mark.parametrize("kind", sample(["per feature", None, "number", "per key"], 4))
def test_jax_agrees_with_the_equation_with_a_loop_over_chunks_and_a_rest(kind: str | None) -> None:
    pytest.importorskip("jax")
    rng = np.random.default_rng(0)
    setting = Setting("jax", "float32")
    score = {
        None: scores.Features(),
        "number": scores.Decay(scores.Features(), -0.1),
        "per key": scores.Decay(scores.Features(), None, -rng.random((300, 1))),
        "per feature": scores.Decay(scores.Features(), None, -rng.random((300, 4))),
    }[kind]
    hidden = masks.Causal() & masks.AllowedKeys(rng.random(300) < 0.7)
    pairs = list(itertools.product((normalizers.Sum(), normalizers.Identity()), (None, hidden)))
    # Each call compiles for seconds.
    for normalizer, mask in pairs if LONG else pairs[-1:]:
        shapes = (2, 3, 290, 4), (2, 1, 300, 4), (300, 3)
        query, key, value = (rng.normal(size=shape) for shape in shapes)
        call = Call(query, key, value, score, normalizer, mask, qkv.Positions(align="end"))
        assert_agrees(run(call, setting, KERNEL), oracle_of(call, setting), setting, str(call.mask))


@pytest.mark.parametrize("width", [1, 2])
def test_second_derivatives_with_decays_are_right(width: int) -> None:
    torch.manual_seed(0)

    def attend(x: torch.Tensor, y: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        score = scores.Decay(scores.Dot(), None, -gates.square())
        return qkv.attend(x, x, y, score=score, mask=masks.Causal(), kernel=KERNEL)

    x, y, gates = (torch.randn(2, 40, n, dtype=torch.float64, requires_grad=True) for n in (2, 2, width))
    assert torch.autograd.gradcheck(attend, (x, y, gates), fast_mode=True)
    assert torch.autograd.gradgradcheck(attend, (x, y, gates), fast_mode=True)


@pytest.mark.parametrize("normalizer", [normalizers.Sum(), normalizers.Identity()], ids=str)
@pytest.mark.parametrize("mask", [None, masks.Causal()], ids=str)
def test_second_derivatives_are_right_also_for_one_tensor_in_several_roles(mask: Any, normalizer: Any) -> None:
    torch.manual_seed(0)

    def attend(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return qkv.attend(x, x, y, score=scores.Features(), normalizer=normalizer, mask=mask, kernel=KERNEL)

    x, y = (torch.randn(2, 40, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(attend, (x, y), fast_mode=True)
    assert torch.autograd.gradgradcheck(attend, (x, y), fast_mode=True)


@pytest.mark.parametrize("library", ["torch", "numpy", "jax"])
def test_negative_features_are_computed_pair_by_pair_so_that_negative_scores_raise(library: str) -> None:
    if library == "jax":
        pytest.importorskip("jax")
    setting = Setting(library, "float32")
    query, key, value = (
        setting.array(np.array(x)) for x in ([[-1.0, -2.0]], [[-1.0, 0.0], [0.0, -3.0]], [[1.0], [2.0]])
    )
    seen = qkv.observe(query, key, value, score=scores.Dot(), normalizer=normalizers.Sum(), kernel=KERNEL)
    assert float(seen.output[0, 0]) == pytest.approx((1 * 1 + 2 * 6) / 7)
    assert "negative" in seen.plan.guards_taken[0]
    if library == "jax":  # compiled loops give NaN in place of an error
        options = {"score": scores.Dot(), "normalizer": normalizers.Sum(), "kernel": KERNEL}
        assert np.isnan(np.asarray(qkv.attend(-query, key, value, **options))).all()
        return
    with pytest.raises(NegativeScoreError):
        qkv.attend(-query, key, value, score=scores.Dot(), normalizer=normalizers.Sum(), kernel=KERNEL)


def test_jitted_jax_takes_the_pairs_only_for_data_without_a_product_form() -> None:
    jax = pytest.importorskip("jax")

    @jax.jit
    def attend(key: Any) -> Any:
        options = {"normalizer": normalizers.Sum(), "mask": masks.Causal(), "kernel": KERNEL}
        return qkv.attend(jax.numpy.ones((3, 1)), key, key, score=scores.Dot(), **options)

    assert np.allclose(attend(np.array([[1.0], [2.0], [3.0]])), [[1.0], [5 / 3], [14 / 6]])
    hurt = np.asarray(attend(np.array([[1.0], [2.0], [np.nan]])))
    assert np.allclose(hurt[:2], [[1.0], [5 / 3]])
    assert np.isnan(hurt[2])


@settings(max_examples=cases(60), suppress_health_check=list(HealthCheck))
@given(call=calls(), bad=st.sampled_from([0.0, -3.0, np.nan, np.inf]))
def test_long_elements_without_a_gradient_agree_with_the_equation(call: Call, bad: float) -> None:
    """Long elements are computed one by one, also if one number of the data has no product form."""
    setting = Setting("torch", "float64")
    if call.value.size:
        call.value[(0,) * call.value.ndim] = bad
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(linear_kernel, "_LEAST", 1)
        got = to_float64(run_eagerly(call, setting, KERNEL).output)
    assert_close(got, oracle_of(call, setting).output, 1e-11, min_scale=0.1)


@pytest.mark.thinned
@pytest.mark.parametrize("mask", [None, masks.Causal()], ids=str)
@pytest.mark.parametrize("normalizer", [normalizers.Sum(), normalizers.Identity()], ids=str)
def test_single_precision_is_as_exact_as_the_tiles(mask: Any, normalizer: Any) -> None:
    """Sums of thousands of keys in float32, against float64: at most twice the error of the tiled kernel."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 2000, 32, requires_grad=True) for _ in range(3))
    parts = {"score": scores.Features(), "normalizer": normalizer, "mask": mask}
    towards = torch.randn(1, 2000, 32)

    def outcome(attend: Any, *leaves: torch.Tensor) -> list[torch.Tensor]:
        output = attend(*leaves)
        return [output.detach(), *torch.autograd.grad(output, leaves, towards.to(output.dtype))]

    exact = outcome(
        lambda *x: attend_dense(*x, **parts).output,
        *(x.detach().double().requires_grad_() for x in (query, key, value)),
    )
    errors = {}
    for kernel in ("linear", "tiled"):
        found = outcome(lambda *x, kernel=kernel: qkv.attend(*x, **parts, kernel=kernel), query, key, value)
        errors[kernel] = [float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, exact, strict=True)]
    for mine, theirs in zip(errors["linear"], errors["tiled"], strict=True):
        assert mine <= max(2 * theirs, 2e-6), errors


@pytest.mark.parametrize("mask", [None, masks.Causal()], ids=str)
def test_gradients_are_right_where_the_sums_of_logits_are_tiny(mask: Any) -> None:
    x = torch.full((3, 2), -25.0, requires_grad=True)  # features of 1e-11, sums of 1e-22, in float32
    value = torch.arange(6.0).reshape(3, 2)
    for kernel in ("linear", "dense"):
        output = qkv.attend(x, x, value, score=scores.Features(), mask=mask, kernel=kernel)
        (gradient,) = torch.autograd.grad(output.square().sum(), x)
        if kernel == "linear":
            found = gradient
    assert gradient.isfinite().all()
    torch.testing.assert_close(found, gradient, rtol=1e-4, atol=1e-5)


def test_planned_memory_of_a_causal_call_with_gradients_grows_linearly() -> None:
    peaks = []
    for n in (4096, 8192):
        shape = (8, n, 64)
        plan = qkv.explain(
            shape, shape, shape, score=scores.Features(), mask=masks.Causal(), library="torch", gradient=True
        )
        assert plan.kernel.name == "linear"
        peaks.append(plan.cost.peak)
    assert peaks[1] < 2.1 * peaks[0]


def test_plan_states_the_product_form_and_its_operations() -> None:
    shape = (1, 8, 4096, 64)
    plan = qkv.explain(shape, shape, shape, score=scores.Features(), mask=masks.Causal(), library="torch")
    assert "rewritten as φ(Q) (φ(K)ᵀ V) with 64 features" in str(plan)
    by_hand = 2 * 2 * 8 * 4096 * 64 * 64
    assert by_hand < plan.cost.flop < 2 * by_hand
    assert dict(plan.slower)["tiled"].flop > 20 * plan.cost.flop


@pytest.mark.parametrize("library", ["torch", "numpy", "jax"])
def test_planner_takes_the_product_form_only_where_it_is_cheaper(library: str) -> None:
    def chosen(q: int, k: int) -> str:
        options = {"score": scores.Features(), "library": library}
        return qkv.explain((4, q, 64), (4, k, 64), (4, k, 64), **options).kernel.name

    assert chosen(4096, 4096) == "linear"
    assert chosen(1, 8192) != "linear"
