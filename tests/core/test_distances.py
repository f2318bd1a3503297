"""Distances of all pairs."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.core.distances import distances
from tests.effort import cases


@given(
    st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(1, 4)),
    st.sampled_from([((), ()), ((2,), (1,)), ((3, 1), (2,))]),
    st.sampled_from([1e-3, 1.0, 1e4]),
    st.integers(0, 2**31),
)
def test_distances_and_gradients_of_torch_are_those_of_the_definition(
    lengths: tuple[int, int, int], batches: tuple[tuple[int, ...], tuple[int, ...]], shift: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    q, k, width = lengths
    query, key = (rng.normal(size=(*batch, n, width)) + shift for batch, n in zip(batches, (q, k), strict=True))
    if q and k:
        key[..., 0, :] = query[(0,) * len(batches[0])][0]
    wanted = np.sqrt(((query[..., :, None, :] - key[..., None, :, :]) ** 2).sum(-1))
    np.testing.assert_allclose(distances(query, key), wanted, rtol=1e-12)
    sides = [torch.tensor(x, requires_grad=True) for x in (query, key)]
    found = distances(*sides)
    np.testing.assert_allclose(found.detach(), wanted, rtol=1e-12)
    direction = rng.normal(size=wanted.shape)
    if wanted.size:
        found.backward(torch.tensor(direction))
        unit = (query[..., :, None, :] - key[..., None, :, :]) / np.where(wanted == 0, np.inf, wanted)[..., None]
        slope = direction[..., None] * unit
        for x, total in ((sides[0], slope.sum(-2)), (sides[1], -slope.sum(-3))):
            lead = tuple(range(total.ndim - x.ndim))
            summed = total.sum(lead)
            shared = tuple(n for n, size in enumerate(x.shape) if size != summed.shape[n])
            summed = summed.sum(shared, keepdims=True)
            np.testing.assert_allclose(x.grad, summed, atol=1e-9)


@pytest.mark.parametrize(("q", "width"), [(3, 3), (40, 16)])
@pytest.mark.parametrize("needed", [(True, True), (True, False), (False, True)])
def test_second_derivatives_of_distances_pass_gradgradcheck(needed: tuple[bool, bool], q: int, width: int) -> None:
    torch.manual_seed(0)
    sides = [
        torch.randn(2, n, width, dtype=torch.float64, requires_grad=x) for n, x in zip((q, q + 1), needed, strict=True)
    ]
    assert torch.autograd.gradcheck(distances, sides, fast_mode=True)
    assert torch.autograd.gradgradcheck(distances, sides, fast_mode=True)


def test_distances_are_mapped_and_differentiated_by_torch_func() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(3, 2, 4), torch.randn(3, 5, 4)
    torch.testing.assert_close(torch.func.vmap(distances)(query, key), torch.cdist(query, key))
    slope = torch.func.grad(lambda x: distances(x, key).sum())(query)
    leaf = query.clone().requires_grad_()
    torch.cdist(leaf, key).sum().backward()
    torch.testing.assert_close(slope, leaf.grad)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_distances_of_half_precision_keep_their_dtype(dtype: torch.dtype) -> None:
    x = torch.tensor([[3.0, 4.0]], dtype=dtype)
    found = distances(x, torch.zeros(1, 2, dtype=dtype))
    assert (found.dtype, float(found)) == (dtype, 5.0)


@settings(max_examples=cases(60))
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 40), st.sampled_from([12, 16, 33, 64])),
    st.sampled_from(["apart", "some equal", "all equal", "clusters", "one at the centre"]),
    st.sampled_from([0.0, 1e4]),
    st.sampled_from([1e-3, 1.0, 1e3, 1e-10, 1e13]),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 2**31),
)
def test_distances_of_wide_vectors_and_their_gradients_are_exact_to_rounding(
    lengths: tuple[int, int, int, int], kind: str, shift: float, size: float, dtype: torch.dtype, seed: int
) -> None:
    (batch, q, k, width), rng = lengths, np.random.default_rng(seed)
    query, key = (torch.tensor(rng.normal(size=(batch, n, width))) for n in (q, k))
    if kind == "clusters":
        query, key = (x * 1e-3 + torch.tensor(rng.integers(0, 3, size=(*x.shape[:2], 1))) for x in (query, key))
    if kind in ("some equal", "all equal"):
        count = min(q, k) if kind == "all equal" else 1
        query[:, :count] = key[:, :count]
    query, key = ((x + shift) * size for x in (query, key))
    if kind == "one at the centre":
        query[:, 0] = key.mean(dim=1)
    sides = [x.to(dtype).requires_grad_() for x in (query, key)]
    exact = [x.detach().double() for x in sides]
    difference = exact[0][:, :, None] - exact[1][:, None]
    wanted = torch.linalg.vector_norm(difference, dim=-1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qkv.core.distances._MIN_ELEMENTS", 0)
        patch.setattr("qkv.core.distances._MAX_NEAR_SHARE", 0.5)
        found = distances(*sides)
        direction = torch.tensor(rng.normal(size=found.shape))
        gradients = torch.autograd.grad(found, sides, direction.to(dtype))
    eps = torch.finfo(dtype).eps
    assert ((found.detach() - wanted).abs() <= 32 * eps * wanted).all()
    weight = direction.to(dtype).double() / wanted.where(wanted > 0, torch.inf)
    for gradient, parts in zip(
        gradients, (weight[..., None] * difference, -weight[..., None] * difference), strict=True
    ):
        axis = 2 if gradient is gradients[0] else 1
        assert ((gradient - parts.sum(axis)).abs() <= 64 * eps * direction.abs().sum(axis)[..., None] + 1e-300).all()


def test_distances_that_are_not_finite_or_overflow_are_those_of_cdist() -> None:
    query, key = torch.randn(1, 40, 64), torch.randn(1, 40, 64)
    for bad in (torch.nan, torch.inf, 1e25):
        query[0, 3, 5] = bad
        wanted = torch.cdist(query, key, compute_mode="donot_use_mm_for_euclid_dist")
        torch.testing.assert_close(distances(query, key), wanted, equal_nan=True)
