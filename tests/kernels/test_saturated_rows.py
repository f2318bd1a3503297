"""Gradients of the tiled kernel where one key of a row has all the weight, compared with those of the dense kernel."""

from collections.abc import Callable

import pytest

import qkv
from qkv import masks, normalizers, scores
from qkv.core.equation import attend_dense
from qkv.kernels import TiledKernel

torch = pytest.importorskip("torch")

KERNELS = [TiledKernel(), TiledKernel(budget=4096)]


def _errors(
    score: Callable[..., scores.Score], arrays: list[torch.Tensor], kernels: list[object], **parts: object
) -> list[list[float]]:
    """Return the largest errors of the gradients in float32 of each kernel."""
    towards = torch.randn(arrays[0].shape[:-1] + arrays[2].shape[-1:])

    def gradients(dtype: torch.dtype, kernel: object) -> list[torch.Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in arrays]
        options = {"score": score(*leaves[3:]), **parts}
        if kernel is None:
            output = attend_dense(*leaves[:3], **{"normalizer": normalizers.Softmax(), **options}).output
        else:
            output = qkv.attend(*leaves[:3], **options, kernel=kernel)
        return [x.double() for x in torch.autograd.grad(output, leaves, towards.to(dtype))]

    def errors(kernel: object) -> list[float]:
        pairs = zip(gradients(torch.float32, kernel), wanted, strict=True)
        return [float((mine - theirs).abs().max()) for mine, theirs in pairs]

    wanted = gradients(torch.float64, None)
    return [errors(kernel) for kernel in kernels]


@pytest.mark.thinned
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("mask", [None, masks.Causal("end")], ids=str)
def test_gradients_of_saturated_rows_that_must_be_zero_are_zero(mask: masks.Mask | None, seed: int) -> None:
    torch.manual_seed(seed)
    arrays = [torch.randn(n, 16) for n in (300, 400, 400)] + [torch.tensor(0.003)]
    for errors in _errors(scores.Gaussian, arrays, KERNELS, mask=mask):
        query, key, _, bandwidth = errors
        assert query < 1e-5
        assert key < 1e-5
        assert bandwidth < 1e-2


@pytest.mark.parametrize("scale", [1e3, 1e4])
def test_gradients_of_saturated_rows_are_as_exact_as_those_of_the_dense_kernel(scale: float) -> None:
    torch.manual_seed(0)
    total = torch.zeros(3, 4)
    for _ in range(8):
        sides = [torch.randn(n, 16) * scale**0.5 for n in (300, 400)]
        arrays = [*sides, torch.randn(400, 16), torch.randn(16, 16)]
        total += torch.tensor(_errors(scores.Bilinear, arrays, ["dense", *KERNELS]))
    dense, *tiled = total
    for errors in tiled:
        assert bool((errors <= 3 * dense).all()), f"{errors} is more than 3 times {dense}"


def test_gradients_of_logits_of_1e10_are_finite_where_a_score_is_differentiated_tile_by_tile() -> None:
    torch.manual_seed(0)
    arrays = [torch.randn(40, 1) * 1e10, torch.randn(40, 1) * 1e10, torch.randn(40, 2), torch.tensor(1.8203)]
    parts = {"normalizer": normalizers.Softmax(1.574)}
    (errors,) = _errors(scores.Laplace, arrays, [TiledKernel(budget=900)], **parts)
    assert all(error < 1e-5 for error in errors)
