"""The programs for gated products and sparse normalizers, run by Triton's interpreter on tensors of the CPU."""

import numpy as np
import pytest
import torch

import qkv
from qkv import masks, normalizers, scores
from qkv.kernels.triton import product_programs
from qkv.kernels.triton.product_kernel import TritonProductsKernel
from qkv.plan import Kernel
from qkv.testing.libraries import turn
from tests.kernels.interpreted import (
    InterpretedContract,
    NoProgram,
    Run,
    check_nothing_is_read_back,
    errors,
    program_names,
)

KERNEL = TritonProductsKernel(interpreted=True, block=(16, 16))
NORMALIZERS = {
    "softmax": normalizers.Softmax(0.7),
    "sparsemax": normalizers.Sparsemax(),
    "entmax15": normalizers.Entmax15(),
    "top-3": normalizers.TopK(3),
}


@pytest.mark.long
class TestGated(InterpretedContract):
    kernel = KERNEL
    in_place_of_products = "gated"


def product_call(
    q: int,
    k: int,
    normalizer: normalizers.Normalizer,
    *,
    gated: bool = False,
    width: int = 5,
    values: int = 6,
    scale: float = 1.0,
    offset: float = 0.0,
    mask: masks.Mask | None = None,
    seed: int = 0,
) -> Run:
    """Return a function that computes the output and all gradients of a call, by a kernel and in a dtype."""
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=(2, n, w)) for n, w in ((q, width), (k, width), (k, values))]
    arrays[0] *= scale
    arrays[1][..., 0] = 1.0  # the same for all keys, so that an offset of the queries cancels
    arrays[0][..., 0] += offset
    if gated:
        arrays += [rng.normal(size=width), rng.normal(size=width), rng.normal(size=())]
    given = rng.normal(size=(2, q, values))

    def run(kernel: Kernel | str, dtype: torch.dtype) -> list[torch.Tensor]:
        rounded = dtype if dtype.itemsize < 4 else torch.float64
        tensors = [torch.tensor(x).to(rounded).to(dtype).requires_grad_() for x in arrays]
        score = scores.Gated(*tensors[3:]) if gated else scores.ScaledDot()
        positions = qkv.Positions("end") if mask is not None else None
        options = {"normalizer": normalizer, "mask": mask, "positions": positions, "kernel": kernel}
        output = qkv.attend(*tensors[:3], score=score, **options)
        gradients = torch.autograd.grad(output, tensors, torch.tensor(given).to(output.dtype))
        return [x.detach().double() for x in (output, *gradients)]

    return run


@pytest.mark.parametrize("name", list(NORMALIZERS))
def test_calls_drawn_at_random_agree_with_the_reference(name: str) -> None:
    rng = np.random.default_rng(list(NORMALIZERS).index(name))
    top = 2 if name == "top-3" else 0  # sorting takes the interpreter long
    keys = masks.AllowedKeys(rng.random((2, 19)) < 0.6)
    drawn = list(enumerate((None, masks.Causal() & keys, masks.Lengths(np.array([0, 13])))))[top:]
    for seed, mask in turn(drawn, list(NORMALIZERS).index(name), 1 if top else 2):
        run = product_call(21, 19, NORMALIZERS[name], gated=name == "softmax" or seed == 1, mask=mask, seed=seed)
        assert errors(run, KERNEL, torch.float32).max() < 1e-5, (name, mask)


@pytest.mark.parametrize(
    ("name", "scale", "offset"),
    [
        ("sparsemax", 0.05, 0.0),
        ("entmax15", 0.05, 0.0),
        ("entmax15", 30.0, 0.0),
        ("sparsemax", 1.0, 500.0),
        pytest.param("entmax15", 1.0, 500.0, marks=pytest.mark.long),
        pytest.param("sparsemax", 30.0, 0.0, marks=pytest.mark.long),
        ("top-3", 1.0, 500.0),
        pytest.param("top-3", 30.0, 0.0, marks=pytest.mark.long),
    ],
)
def test_errors_are_at_most_twice_those_of_the_eager_reference(name: str, scale: float, offset: float) -> None:
    """Also where weights are almost equal or almost all 0, and where logits are large but their differences are not."""
    run = product_call(9, 14 if name == "top-3" else 20, NORMALIZERS[name], scale=scale, offset=offset)
    mine, eager = errors(run, KERNEL, torch.float32), errors(run, "dense", torch.float32)
    rounding = np.finfo(np.float32).eps / 2 * offset  # of a logit
    assert (mine <= 2 * eager + 3e-6 + rounding).all(), (mine, eager)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_accumulated_in_single_precision(dtype: torch.dtype) -> None:
    for name in ("softmax", "entmax15"):
        run = product_call(9, 20, NORMALIZERS[name], gated=name == "softmax", mask=masks.Causal())
        for x, y in zip(run(KERNEL, dtype), run("dense", dtype), strict=True):
            assert (x - y).abs().max() < 4 * torch.finfo(dtype).eps * y.abs().max()


def test_ties_go_to_the_lowest_key_across_tiles() -> None:
    """Keys 3, 15, 16 and 30 tie, in two tiles, and key 20 is larger."""
    key = torch.zeros(35, 1)
    key[[3, 15, 16, 30]], key[20] = 1.0, 2.0
    key.requires_grad_()
    query = torch.ones(3, 1, requires_grad=True)
    value = torch.eye(35, requires_grad=True)
    for top, kept in ((4, [3, 15, 16, 20]),):
        run = {"normalizer": normalizers.TopK(top), "score": scores.Dot()}
        got, wanted = (qkv.attend(query, key, value, **run, kernel=kernel) for kernel in (KERNEL, "dense"))
        assert got[0].nonzero().squeeze(-1).tolist() == kept
        for x, y in zip(
            (got, *torch.autograd.grad(got[:, 3].sum(), (query, key, value))),
            (wanted, *torch.autograd.grad(wanted[:, 3].sum(), (query, key, value))),
            strict=True,
        ):
            assert torch.allclose(x, y, atol=1e-6)


@pytest.mark.parametrize("name", ["softmax", "entmax15", pytest.param("top-3", marks=pytest.mark.long)])
def test_rows_without_keys_are_0_and_what_is_not_finite_reaches_only_who_reads_it(name: str) -> None:
    query, key, value = torch.randn(3, 20, 4)
    key[2], value[11, 2], value[15, 1] = torch.nan, torch.nan, -torch.inf
    query.requires_grad_()
    score = scores.Gated(torch.ones(4), torch.ones(4)) if name == "softmax" else scores.Dot()
    for mask in (
        masks.Causal() & masks.AllowedKeys(torch.arange(20) > 2),
        masks.AllowedKeys(torch.zeros(20, dtype=torch.bool)),
    ):
        run = {"score": score, "mask": mask, "normalizer": NORMALIZERS[name], "positions": qkv.Positions("end")}
        wanted = qkv.attend(query, key, value, **run, kernel="dense")
        got = qkv.attend(query, key, value, **run, kernel=KERNEL)
        assert (got[:3] == 0).all()
        assert torch.allclose(got, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)
        (gradient,) = torch.autograd.grad(got[:3].sum(), query)
        assert (gradient[:3] == 0).all()
    reads_all = qkv.attend(query, key, value, score=score, normalizer=NORMALIZERS[name], kernel=KERNEL)
    assert reads_all.isnan().all()


def test_two_runs_are_equal_to_the_last_bit() -> None:
    run = product_call(9, 17, normalizers.Sparsemax(), gated=True)
    first, second = run(KERNEL, torch.float32), run(KERNEL, torch.float32)
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


@pytest.mark.parametrize("name", NORMALIZERS)
def test_nothing_is_read_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for program in program_names(product_programs):
        monkeypatch.setattr(product_programs, program, NoProgram())
    # Of distances one number is read, which decides between products and differences.
    score = scores.Gated(torch.ones(4), torch.ones(4)) if name == "softmax" else scores.Cosine()
    check_nothing_is_read_back("triton_products", {"score": score, "normalizer": NORMALIZERS[name]})


def test_sparse_normalizers_and_gates_are_planned_for_gpus_and_never_for_cpus() -> None:
    shape = (8, 16, 4096, 64)
    gated = scores.Gated(np.ones(64), np.ones(64))
    for score, normalizer in (
        (gated, None),
        (None, normalizers.Sparsemax()),
        (None, normalizers.Entmax15()),
        (None, normalizers.TopK(32)),
        (gated, normalizers.TopK(32)),
    ):
        for gradient in (False, True):
            options = {"score": score, "normalizer": normalizer, "library": "torch", "gradient": gradient}
            plan = qkv.explain(shape, shape, shape, **options, dtype="bfloat16", device="H200")
            assert plan.kernel.name == "triton_products", str(plan)
            assert qkv.explain(shape, shape, shape, **options, memory="64 GiB").kernel.name != "triton_products"
    refused = {
        "keeps up to 64 keys": normalizers.TopK(65),
        "runs on PyTorch's operators": None,
        "supports softmax, sparsemax": normalizers.Sigmoid(),
    }
    for reason, normalizer in refused.items():
        options = {"normalizer": normalizer, "library": "torch", "device": "H200"}
        with pytest.raises(qkv.errors.RefusedError, match=reason):
            qkv.explain(shape, shape, shape, kernel="triton_products", **options)
