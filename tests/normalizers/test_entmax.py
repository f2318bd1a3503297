"""Entmax with any alpha: its limits, its peers, and the gradients by logits and alpha."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkv
from qkv.core.equation import attend_dense
from qkv.normalizers import Entmax, Entmax15, Softmax, Sparsemax
from qkv.scores import Dot

ROWS = st.lists(st.floats(-30, 30), min_size=1, max_size=8)
ALPHAS = st.floats(1.01, 5)


@given(ROWS, ALPHAS)
def test_weights_sum_to_1_and_satisfy_the_condition_of_optimality(row, alpha):
    """Check that l − ∂(Tsallis entropy)/∂w is equal on the support, and not larger outside."""
    x = np.array(row)
    w = Entmax(alpha).weights(x[None])[0]
    assert abs(w.sum() - 1) < 1e-14
    on = w > 0
    slack = x - w ** (alpha - 1) / (alpha - 1)
    assert np.ptp(slack[on]) < 1e-9 * max(1.0, np.abs(x).max()) / min(1.0, (alpha - 1))
    assert (x[~on] <= slack[on].max() + 1e-9).all()


@given(ROWS)
def test_alpha_2_is_sparsemax_and_1_5_is_entmax15_and_close_to_1_is_softmax(row):
    x = np.array(row)[None]
    assert np.abs(Entmax(2.0).weights(x) - Sparsemax().weights(x)).max() < 1e-12
    assert np.abs(Entmax(1.5).weights(x) - Entmax15().weights(x)).max() < 1e-7  # Entmax15 loses digits near τ
    assert np.abs(Entmax(1 + 1e-6).weights(x) - Softmax().weights(x)).max() < 1e-3


@given(ROWS, st.floats(1.05, 1.9), st.floats(0.05, 1))
def test_a_larger_alpha_gives_weight_to_no_more_keys(row, alpha, more):
    x = np.array(row)[None]
    assert (Entmax(alpha + more).weights(x) > 0).sum() <= (Entmax(alpha).weights(x) > 0).sum()


def test_equals_the_bisection_of_the_package_entmax_with_its_gradients():
    torch, entmax = pytest.importorskip("torch"), pytest.importorskip("entmax")
    generator = torch.Generator().manual_seed(0)
    for alpha in (1.01, 1.2, 1.5, 1.8, 2.0, 2.5):
        for k, scale in ((1, 1), (7, 0.1), (50, 5), (500, 30)):
            x = (scale * torch.randn(6, k, dtype=torch.float64, generator=generator)).requires_grad_()
            a = torch.full((6, 1), alpha, dtype=torch.float64, requires_grad=True)
            ours = Entmax(a[:, 0]).weights(x[:, None])[:, 0]
            theirs = entmax.entmax_bisect(x, a, dim=-1, n_iter=60)
            g = torch.randn(6, k, dtype=torch.float64, generator=generator)
            assert float((ours - theirs).detach().abs().max()) < 1e-9
            pairs = zip(torch.autograd.grad(ours, (x, a), g), torch.autograd.grad(theirs, (x, a), g), strict=True)
            assert all(float((one - other).abs().max()) < 1e-7 * (1 + float(other.abs().max())) for one, other in pairs)


def test_gradients_by_alpha_are_those_of_finite_differences_on_every_kernel_of_pytorch():
    torch = pytest.importorskip("torch")
    draw = np.random.default_rng(0)
    q, k, v = (torch.tensor(draw.normal(size=(2, 3, 20, 4)), requires_grad=True) for _ in range(3))
    alpha = torch.tensor([[1.1, 1.6, 2.4]], dtype=torch.float64, requires_grad=True)
    cotangent = torch.tensor(draw.normal(size=(2, 3, 20, 4)))

    def loss(alpha, kernel):
        call = {"score": Dot(), "normalizer": Entmax(alpha)}
        output = (
            attend_dense(q, k, v, **call).output if kernel == "oracle" else qkv.attend(q, k, v, kernel=kernel, **call)
        )
        return (output * cotangent).sum()

    step = 1e-6
    numeric = []
    for head in range(3):
        moved = [alpha.detach().clone() for _ in range(2)]
        moved[0][0, head] += step
        moved[1][0, head] -= step
        numeric.append((loss(moved[0], "oracle") - loss(moved[1], "oracle")).item() / (2 * step))
    wanted = torch.autograd.grad(loss(alpha, "oracle"), (q, k, v, alpha))
    assert np.abs(wanted[3].numpy()[0] - numeric).max() < 1e-5
    for kernel in ("dense", "row_blocks", None):
        got = torch.autograd.grad(loss(alpha, kernel), (q, k, v, alpha))
        assert max(float((a - b).abs().max()) for a, b in zip(got, wanted, strict=True)) < 1e-9


def test_second_derivatives_by_logits_and_alpha_are_those_of_finite_differences():
    torch = pytest.importorskip("torch")
    draw = np.random.default_rng(1)
    x = torch.tensor(draw.normal(size=(2, 1, 5)), requires_grad=True)
    alpha = torch.tensor([1.3, 1.7], dtype=torch.float64, requires_grad=True)

    def weights(x, alpha):
        return Entmax(alpha).weights(x)

    assert torch.autograd.gradgradcheck(weights, (x, alpha), atol=1e-4)


@pytest.mark.parametrize("alpha", [1.1, 1.5, 3.0])
@pytest.mark.parametrize("row", [[math.nan, 0.0], [math.inf, 0.0]])
def test_what_is_no_number_shows_in_the_weights(alpha, row):
    with np.errstate(invalid="ignore"):
        assert np.isnan(Entmax(alpha).weights(np.array([row]))).any()


@pytest.mark.parametrize("alpha", [1.05, 1.25, 2.5])
def test_long_rows_in_single_precision_agree_with_double_precision(alpha):
    row = np.random.default_rng(0).normal(size=(4, 50_000)) * 3
    exact = Entmax(alpha).weights(row)
    single = Entmax(alpha).weights(row.astype(np.float32))
    assert np.abs(single.sum(axis=-1) - 1).max() < 1e-5
    assert np.abs(single - exact).max() < 2e-3 * exact.max()


def test_jitted_weights_are_those_of_numpy():
    jax = pytest.importorskip("jax")
    rows = np.random.default_rng(0).normal(size=(40, 300)).astype(np.float32) * 4
    jitted = jax.jit(lambda x, a: Entmax(a).weights(x))
    for alpha in (1.05, 1.3, 1.9, 2.5):
        got = jitted(rows, np.float32(alpha))
        assert np.abs(np.asarray(got) - Entmax(alpha).weights(rows.astype(np.float64))).max() < 1e-3


def test_learned_alphas_of_two_heads_move_towards_those_of_the_teacher():
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(4, 2, 12, 6, generator=generator, dtype=torch.float64) for _ in range(3))
    teacher = torch.tensor([[1.15, 1.9]], dtype=torch.float64)
    target = qkv.attend(q, k, v, normalizer=Entmax(teacher))
    alpha = torch.nn.Parameter(torch.full((1, 2), 1.5, dtype=torch.float64))
    optimizer = torch.optim.Adam([alpha], lr=0.02)
    for _ in range(150):
        optimizer.zero_grad()
        (qkv.attend(q, k, v, normalizer=Entmax(alpha)) - target).square().mean().backward()
        optimizer.step()
    assert float((alpha - teacher).detach().abs().max()) < 0.03


def test_entmax_is_exported_with_lengths_that_the_graph_does_not_know() -> None:
    torch = pytest.importorskip("torch")

    class Module(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return qkv.attend(x, x, x, normalizer=Entmax(1.3))

    lengths = ({1: torch.export.Dim("n")},)
    exported = torch.export.export(Module(), (torch.randn(1, 5, 4),), dynamic_shapes=lengths).module()
    for n in (3, 40):
        x = 3 * torch.randn(1, n, 4)
        torch.testing.assert_close(exported(x), Module()(x), atol=1e-5, rtol=0)
