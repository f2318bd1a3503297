"""The four verbs, and requirements A3, A8, A9, A10, B1, B9, C3 and C4 about the equation itself."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import qkv
from qkv import masks, normalizers, readouts, scores
from qkv.errors import GradientError, KindError, OptionError, RefusedError, ShapeError
from qkv.kernels import KERNELS, DenseKernel, NumpyBlocksKernel, RowBlocksKernel, TiledKernel
from qkv.plan import Kernel
from qkv.testing.libraries import LIBRARIES, Setting

torch = pytest.importorskip("torch")

TORCH: list[Kernel | str] = [
    DenseKernel(),
    TiledKernel(budget=12, row_block_budget=3000),
    RowBlocksKernel(budget=3000),
    "fused",
]
LEARNING = TORCH[:3]
READING: list[Kernel] = [DenseKernel(), NumpyBlocksKernel(budget=12, row_block_budget=3000)]


def normal(*shape: int, seed: int = 0) -> Any:
    """Return float64 numbers that require a gradient."""
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.requires_grad_()


# -- the verbs -------------------------------------------------------------------------------------------


def test_attend_observe_and_prepare_give_one_answer() -> None:
    rng = np.random.default_rng(0)
    query, key, value = rng.normal(size=(2, 3)), rng.normal(size=(5, 3)), rng.normal(size=(5, 1))
    output = qkv.attend(query, key, value)
    seen = qkv.observe(query, key, value)
    assert (seen.output == output).all()
    assert seen.readouts == ()
    assert (
        qkv.prepare(qkv.Spec(), ((2, 3), (5, 3), (5, 1)), dtype="float64")(query, key, value).output == output
    ).all()
    assert str(seen.plan) == str(qkv.explain(query, key, value))


INSTALLED = [
    kernel
    for kernel in KERNELS
    if kernel.libraries[0] in LIBRARIES
    and kernel.name not in ("triton", "flex", "triton_products", "triton_readouts", "triton_traced", "jax_fused")
]
"""Kernels that run any score without a GPU."""


@pytest.mark.parametrize("kernel", INSTALLED, ids=lambda kernel: kernel.name)
def test_plan_names_the_kernel_that_ran(kernel: Kernel) -> None:
    x = Setting(kernel.libraries[0], "float32").array(np.ones((4, 3)))
    normalizer = normalizers.Identity() if kernel.name == "linear" else None
    assert qkv.observe(x, x, x, normalizer=normalizer, kernel=kernel.name).plan.kernel.name == kernel.name


def test_lists_and_integers_are_converted_to_arrays() -> None:
    output = qkv.attend([[0]], [[0], [0]], [[1], [2]])
    assert output.tolist() == [[1.5]]


def test_default_normalizer_is_the_score_s_own() -> None:
    people, income = np.array(["Li", "Hu", "Li"], dtype=object), np.array([[1.0], [2.0], [5.0]])
    assert qkv.attend(people[:1], people, income, score=scores.Exact()).tolist() == [[3.0]]


@pytest.mark.parametrize(
    ("error", "said", "arrays"),
    [
        (KindError, "arrays of numpy and torch", (np.ones((1, 2)), torch.ones(3, 2), torch.ones(3, 1))),
        (
            KindError,
            "must be of the same kind, got text and numbers",
            (np.array(["a"], object), np.ones((3, 2)), np.ones((3, 1))),
        ),
        (
            KindError,
            "value must hold real numbers, got object elements",
            (np.ones((1, 2)), np.ones((3, 2)), np.full((3, 1), "a", object)),
        ),
        (
            KindError,
            "query must hold real numbers, got complex128",
            (np.ones((1, 2), complex), np.ones((3, 2)), np.ones((3, 1))),
        ),
        (
            KindError,
            "query and key must be numbers for the score",
            (np.array(["a"]), np.array(["b"]), np.ones((1, 1))),
        ),
        (ShapeError, r"value must have shape .*got shape \(3,\)", (np.ones((1, 2)), np.ones((3, 2)), np.ones(3))),
    ],
)
def test_arrays_of_the_wrong_kind_raise(error: type[Exception], said: str, arrays: Any) -> None:
    with pytest.raises(error, match=said):
        qkv.attend(*arrays)


@pytest.mark.parametrize("seed", [1.5, "1", True])
def test_seed_that_is_not_an_integer_is_refused(seed: Any) -> None:
    x = np.ones((2, 2))
    with pytest.raises(OptionError, match="seed must be an int"):
        qkv.attend(x, x, x, dropout=0.5, seed=seed)


def test_seeds_of_numpy_and_negative_ones_are_seeds() -> None:
    x = np.ones((8, 2))
    outputs = [qkv.attend(x, x, np.eye(8), dropout=0.5, seed=seed) for seed in (np.int64(3), 3, -3)]
    assert (outputs[0] == outputs[1]).all()
    assert (outputs[0] != outputs[2]).any()


def test_torch_draws_its_own_seed_and_manual_seed_reproduces_it() -> None:
    x = torch.ones(8, 2)

    def drawn(seed: int) -> Any:
        torch.manual_seed(seed)
        return [qkv.attend(x, x, torch.eye(8), dropout=0.5) for _ in range(2)]

    with torch.random.fork_rng():
        one, same, other = drawn(1), drawn(1), drawn(2)
    assert all((a == b).all() for a, b in zip(one, same, strict=True))
    assert (one[0] != one[1]).any()
    assert (one[0] != other[0]).any()


# -- A3: top-k -------------------------------------------------------------------------------------------


def test_a3_top_k_is_the_dense_answer_with_the_others_zero_and_the_rest_renormalised() -> None:
    rng = np.random.default_rng(1)
    query, key, value = rng.normal(size=(3, 7, 4)), rng.normal(size=(3, 20, 4)), rng.normal(size=(3, 20, 5))
    weights = qkv.observe(query, key, value, readouts=[readouts.Dense()]).readouts[0]
    kept = np.where(weights >= np.sort(weights, axis=-1)[..., -4:-3], weights, 0)
    wanted = kept / kept.sum(-1, keepdims=True) @ value
    for kernel in READING:
        assert qkv.attend(query, key, value, normalizer=normalizers.TopK(4), kernel=kernel) == pytest.approx(wanted)
    tensors = [torch.tensor(x) for x in (query, key, value)]
    for tested in LEARNING:
        got = qkv.attend(*tensors, normalizer=normalizers.TopK(4), kernel=tested)
        assert got.numpy() == pytest.approx(wanted)


# -- A8: average pooling ---------------------------------------------------------------------------------


def test_a8_equal_scores_give_the_mean_of_the_values() -> None:
    rng = np.random.default_rng(2)
    query, key, value = rng.normal(size=(2, 3)), rng.normal(size=(9, 3)), rng.normal(size=(9, 4))
    for options in ({"score": scores.Constant()}, {"normalizer": normalizers.Mean()}):
        assert qkv.attend(query, key, value, **options) == pytest.approx(np.tile(value.mean(0), (2, 1)))


# -- A9: hard attention and REINFORCE --------------------------------------------------------------------


@pytest.mark.parametrize("kernel", LEARNING, ids=str)
def test_a9_reinforce_agrees_with_the_exact_gradient_in_expectation(kernel: Any) -> None:
    # 4000 independent rows of the same query: each draws a key, whose value is the reward.
    draws, key, reward = (
        4000,
        normal(5, 3, seed=1),
        torch.tensor([[1.0], [-2.0], [0.5], [3.0], [0.0]]).double(),
    )
    query = normal(1, 3, seed=2)
    exact = torch.autograd.grad(qkv.attend(query, key, reward).sum(), query)[0]
    rows = query.detach().expand(draws, 3).clone().requires_grad_()
    seen = qkv.observe(
        rows,
        key.detach(),
        reward,
        normalizer=normalizers.Sample(),
        seed=7,
        readouts=[readouts.LogProbability()],
        kernel=kernel if not isinstance(kernel, TiledKernel) else TiledKernel(),
    )
    baseline = qkv.attend(query, key, reward).detach()
    surrogate = ((seen.output.detach() - baseline)[:, 0] * seen.readouts[0]).sum()
    estimates = torch.autograd.grad(surrogate, rows)[0]  # one estimate per row
    error = estimates.mean(0) - exact[0]
    # The mean of independent estimates lies within four standard errors for all but 1 in 5,000 seeds.
    assert (error.abs() < 4 * estimates.std(0) / math.sqrt(draws)).all()
    assert (estimates.std(0) / math.sqrt(draws) < 0.1 * exact.abs().max()).all()


def test_a9_no_gradient_reaches_the_logits_through_the_draw_itself() -> None:
    query, key, value = normal(4, 3), normal(6, 3), normal(6, 2)
    output = qkv.attend(query, key, value, normalizer=normalizers.Sample(), seed=1)
    found = torch.autograd.grad(output.sum(), (query, key, value), allow_unused=True, materialize_grads=True)
    assert not found[0].any()
    assert not found[1].any()
    assert found[2].sum() == pytest.approx(4 * 2)  # one key per query, two columns


# -- A10: the gradient is a covariance -------------------------------------------------------------------


@pytest.mark.parametrize("kernel", TORCH, ids=str)
def test_a10_gradient_is_the_covariance_of_the_keys_under_the_weights(kernel: Any) -> None:
    query, key = normal(3, 4, seed=3), normal(11, 4, seed=4)
    weights = torch.softmax(query @ key.mT, -1).detach()
    mean = weights @ key
    covariance = torch.einsum("qk,ki,kj->qij", weights, key, key) - mean[:, :, None] * mean[:, None, :]
    output = qkv.attend(query, key, key.detach(), score=scores.Dot(), kernel=kernel)
    rows = [torch.autograd.grad(output[:, i].sum(), query, retain_graph=True)[0] for i in range(4)]
    assert (torch.stack(rows, 1) - covariance).abs().max() < 1e-12


# -- B1, B9: shapes --------------------------------------------------------------------------------------


def test_b1_lengths_differ_and_values_are_wider_than_keys() -> None:
    query, key, value = (np.ones(shape) for shape in ((100, 10, 5), (100, 20, 5), (100, 20, 10)))
    seen = qkv.observe(query, key, value, score=scores.Dot(), readouts=[readouts.Dense()])
    assert seen.output.shape == (100, 10, 10)
    assert seen.readouts[0].shape == (100, 10, 20)


def test_b9_unequal_widths_meet_through_linear_maps() -> None:
    query, key, value = (np.ones(shape) for shape in ((100, 10, 7), (100, 20, 5), (100, 20, 10)))
    score = scores.Projected(scores.ScaledDot(), np.ones((6, 7)), np.ones((6, 5)))
    seen = qkv.observe(query, key, value, score=score, readouts=[readouts.Dense()])
    assert seen.output.shape == (100, 10, 10)
    assert seen.readouts[0].shape == (100, 10, 20)
    with pytest.raises(ShapeError, match=r"same width for ScaledDot, got widths 7 and 5.*Project them"):
        qkv.attend(query, key, value)


# -- C3, C4: masks ---------------------------------------------------------------------------------------


def test_c3_causal_rows_see_what_came_before_and_add_up_to_1() -> None:
    x = np.random.default_rng(3).normal(size=(2, 6, 4))
    weights = qkv.observe(x, x, x, mask=masks.Causal(), readouts=[readouts.Dense()]).readouts[0]
    assert not np.triu(weights, 1).any()
    assert weights.sum(-1) == pytest.approx(np.ones((2, 6)))
    assert (np.tril(weights) == weights).all()
    assert (weights[..., np.arange(6), np.arange(6)] > 0).all()


@pytest.mark.parametrize("kernel", ["dense", "numpy_blocks"])
def test_c3_reproduces_the_printed_rows_from_a_stored_tensor(kernel: str) -> None:
    x = np.array([[194, 305, 723, 549, 192], [516, 560, 322, 733, 333], [384, 451, 363, 510, 503]]) / 1000
    weights = qkv.observe(x, x, x, mask=masks.Causal(), readouts=[readouts.Dense()], kernel=kernel).readouts[0]
    assert weights.round(4).tolist() == [[1, 0, 0], [0.4597, 0.5403, 0], [0.3136, 0.3519, 0.3345]]


@pytest.mark.parametrize("kernel", ["dense", "numpy_blocks"])
def test_c4_padding_mask_of_four_axes_gives_padded_keys_no_weight(kernel: str) -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(2, 3, 5, 4))
    keep = np.array([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]], dtype=bool)[:, None, None, :]
    x[0, :, 3:] = np.nan  # padded keys may have any value
    x[1, :, 3:] = np.nan
    query = np.nan_to_num(x)
    seen = qkv.observe(query, x, x, mask=masks.AllowedPairs(keep), readouts=[readouts.Dense()], kernel=kernel)
    assert not seen.readouts[0][0, ..., 3:].any()
    assert seen.readouts[0][0].sum(-1) == pytest.approx(np.ones((3, 5)))
    assert not seen.readouts[0][1].any()
    assert not seen.output[1].any()
    assert np.isfinite(seen.output).all()


def test_c4_mask_of_pairs_is_one_for_all_batch_elements() -> None:
    x = np.random.default_rng(5).normal(size=(2, 3, 4))
    pairs = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0]], dtype=bool)
    weights = qkv.observe(x, x, x, mask=masks.AllowedPairs(pairs), readouts=[readouts.Dense()]).readouts[0]
    assert ((weights > 0) == pairs).all()


# -- arrays without a gradient ----------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [*LEARNING, None], ids=str)
def test_custom_score_that_closes_over_a_parameter_is_an_error(kernel: Any) -> None:
    scale, x = normal(1), normal(4, 3)
    hidden = scores.Custom(lambda query, key: query @ key.mT * scale)
    with pytest.raises(GradientError, match=r"close over a tensor that requires a gradient.*parameters="):
        qkv.attend(x, x, x, score=hidden, kernel=kernel)
    with pytest.raises(GradientError, match="parameters="):
        qkv.attend(x.detach(), x.detach(), x.detach(), score=hidden, kernel=kernel)


@pytest.mark.parametrize("kernel", [*LEARNING, None], ids=str)
def test_custom_score_with_declared_parameter_gets_its_gradient(kernel: Any) -> None:
    scale, x = normal(1), normal(4, 3)
    handed = scores.Custom(lambda query, key, scale: query @ key.mT * scale, (scale,))
    output = qkv.attend(x, x, x, score=handed, kernel=kernel)
    wanted = torch.softmax(x @ x.mT * scale, -1) @ x
    for got, right in zip(
        torch.autograd.grad(output.sum(), (scale, x)),
        torch.autograd.grad(wanted.sum(), (scale, x)),
        strict=True,
    ):
        assert (got - right).abs().max() < 1e-12


def test_score_that_closes_over_a_parameter_runs_without_gradient() -> None:
    scale, x = normal(1), normal(4, 3)
    hidden = scores.Custom(lambda query, key: query @ key.mT * scale)
    with torch.no_grad():
        for kernel in LEARNING:
            assert qkv.attend(x, x, x, score=hidden, kernel=kernel).shape == (4, 3)


def test_autocast_changes_nothing() -> None:
    x = normal(6, 3).float()
    plain = [qkv.attend(x, x, x, kernel=kernel) for kernel in TORCH]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = [qkv.attend(x, x, x, kernel=kernel) for kernel in TORCH]
    for one, other in zip(plain, inside, strict=True):
        assert one.dtype == other.dtype
        assert (one - other).abs().max() < 1e-6


def test_named_kernel_of_another_library_is_refused() -> None:
    x = np.ones((2, 2))
    with pytest.raises(
        RefusedError, match="kernel tiled cannot run this call: it supports torch arrays, not numpy arrays"
    ):
        qkv.attend(x, x, x, kernel="tiled")


WRONG_ARRAYS: dict[str, tuple[Callable[[], Any], str]] = {
    "8-bit floating-point numbers": (lambda: _torch_ones().to(torch.float8_e4m3fn), "got float8_e4m3fn elements"),
    "a sparse tensor": (lambda: _torch_ones().to_sparse(), "in the layout sparse_coo"),
    "a compressed tensor": (lambda: _torch_ones()[0].to_sparse_csr(), "in the layout sparse_csr"),
    "a tensor without data": (lambda: _torch_ones().to("meta"), "on the device meta"),
    "a quantized tensor": (
        lambda: torch.quantize_per_tensor(_torch_ones(), 0.1, 0, torch.qint8),
        "got a quantized tensor",
    ),
    "a nested tensor": (lambda: torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(2, 4)]), "a nested tensor"),
    "a jagged tensor": (
        lambda: torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(2, 4)], layout=torch.jagged),
        "a nested tensor",
    ),
    "dates": (lambda: np.full((3, 4), "2020-01-01", "datetime64[D]"), r"got datetime64\[D\] elements"),
    "durations": (lambda: np.full((3, 4), 1, "timedelta64[s]"), r"got timedelta64\[s\] elements"),
    "a masked array": (lambda: np.ma.masked_array(np.ones((3, 4)), np.eye(3, 4)), "got a MaskedArray"),
    "a matrix": (lambda: np.asmatrix(np.ones((3, 4))), "got a matrix of NumPy"),
    "complex numbers": (lambda: np.ones((3, 4)) * 1j, "got complex128 elements"),
    "rows of different lengths": (lambda: [[1.0, 2.0], [3.0]], "got different lengths"),
}


def _torch_ones() -> Any:
    return torch.ones(2, 3, 4)


@pytest.mark.parametrize(
    "options",
    [
        {"score": scores.Bilinear(np.eye(4) * 1j)},
        {"score": scores.Biased(scores.Dot(), np.ones((3, 3)) * 1j)},
        {"normalizer": normalizers.Softmax(np.array(1 + 1j))},
        {"score": scores.Bilinear(np.eye(4, dtype=object))},
    ],
)
def test_parameters_that_are_not_real_numbers_are_refused(options: Any) -> None:
    with pytest.raises(KindError, match=r"each array of .* must hold real numbers, got"):
        qkv.attend(*[np.ones((3, 4))] * 3, **options)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("name", WRONG_ARRAYS)
def test_array_of_an_unsupported_kind_is_refused_in_one_sentence(name: str, cached: bool) -> None:
    make, said = WRONG_ARRAYS[name]
    given = make()
    if cached and isinstance(given, torch.Tensor) and given.dtype == torch.float32 and not given.is_nested:
        qkv.attend(*[torch.ones(given.shape)] * 3)  # a plan for the same shapes and dtypes is now cached
    for verb in (qkv.attend, qkv.observe):
        with pytest.raises((KindError, ShapeError), match=said) as raised:
            verb(given, given, given)
        assert re.fullmatch(r"\w.* must .*, got .*\. [A-Z].*\.", str(raised.value)), str(raised.value)


@pytest.mark.parametrize("given", [qkv.readouts.Dense(), 3, None], ids=str)
def test_readout_without_a_list_is_refused_by_every_verb(given: Any) -> None:
    x, shape = np.ones((3, 4)), (3, 4)
    for run in (
        lambda: qkv.observe(x, x, x, readouts=given),
        lambda: qkv.explain(x, x, x, readouts=given),
        lambda: qkv.explain(shape, shape, shape, readouts=given),
        lambda: qkv.prepare(qkv.Spec(), (shape, shape, shape), readouts=given),
    ):
        with pytest.raises(KindError, match="readouts must be a list or tuple of readouts"):
            run()


def test_kernel_and_memory_that_cannot_be_hashed_are_refused() -> None:
    x = np.ones((3, 4))
    with pytest.raises(OptionError, match="kernel must be a name, a Kernel or None"):
        qkv.attend(x, x, x, kernel=["tiled"])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="memory must be a positive amount"):
        qkv.attend(x, x, x, memory=[1])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("attn_mask", r"masks\.AllowedPairs\(attn_mask\) .*scores\.Biased\(scores\.ScaledDot\(\), attn_mask\)"),
        ("is_causal", r"mask=masks\.Causal\(\)"),
        ("dropout_p", "Pass dropout"),
        ("scale", r"score=scores\.Dot\(scale\)"),
        ("key_padding_mask", r"masks\.AllowedKeys\(~key_padding_mask\)"),
    ],
)
def test_arguments_of_pytorch_s_attention_function_are_refused_with_what_to_pass(name: str, remedy: str) -> None:
    x = torch.ones(2, 3, 4)
    for verb in (qkv.attend, qkv.observe):
        with pytest.raises(
            KindError, match=rf"{verb.__name__} must have names of qkv, got PyTorch's '{name}'.*{remedy}"
        ):
            verb(x, x, x, **{name: True})


def test_advice_for_a_mask_of_pytorch_gives_pytorch_s_output() -> None:
    query, key, value = (normal(2, n, 4, seed=n).detach() for n in (5, 7, 8))
    value = value[:, :7]
    allowed = torch.rand(5, 7, generator=torch.Generator().manual_seed(1)) < 0.7
    allowed[:, 0] = True
    wanted = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed)
    assert torch.allclose(qkv.attend(query, key, value, mask=masks.AllowedPairs(allowed)), wanted)
    bias = normal(5, 7, seed=3).detach()
    wanted = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    assert torch.allclose(qkv.attend(query, key, value, score=scores.Biased(scores.ScaledDot(), bias)), wanted)
