"""The four verbs."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import qkv
from qkv import masks, normalizers, scores
from qkv.errors import GradientError, KindError, OptionError, ShapeError
from qkv.kernels import KERNELS, DenseKernel, RowBlocksKernel, TiledKernel
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
        (KindError, "query and key must be numbers for the score", (np.array(["a"]), np.array(["b"]), np.ones((1, 1)))),
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


# -- arrays without a gradient ----------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [*LEARNING, None], ids=str)
def test_custom_score_that_closes_over_a_parameter_is_an_error(kernel: Any) -> None:
    scale, x = normal(1), normal(4, 3)
    hidden = scores.Custom(lambda query, key: query @ key.mT * scale)
    with pytest.raises(GradientError, match=r"close over a tensor that requires a gradient.*parameters="):
        qkv.attend(x, x, x, score=hidden, kernel=kernel)
    with pytest.raises(GradientError, match="parameters="):
        qkv.attend(x.detach(), x.detach(), x.detach(), score=hidden, kernel=kernel)


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


def test_arrays_of_several_dtypes_give_the_dtype_to_which_they_are_promoted() -> None:
    sides = [normal(3, 2).detach().to(dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16)]
    assert qkv.attend(*sides).dtype == torch.float64
    assert qkv.attend(sides[2], sides[2], sides[0]).dtype == torch.float32
    assert qkv.attend(*(x.float().numpy().astype(d) for x, d in zip(sides, "fde", strict=True))).dtype == np.float64
