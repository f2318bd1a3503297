"""Scores that call a function of the user, in the batched kernel."""

import weakref

import pytest
import torch

import qkv
from qkv import masks, normalizers, scores

MASKS = {
    "none": None,
    "causal": masks.Causal(),
    "lengths": masks.Lengths(torch.tensor([3, 0])),
    "keys": masks.AllowedKeys(torch.tensor([[True, False, True, True, False], [False] * 5])),
}


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("mask", MASKS)
def test_functions_of_the_user_have_the_first_and_second_derivatives_of_the_dense_kernel(
    mask: str, scale: float
) -> None:
    torch.manual_seed(0)
    weight = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    score = scores.Custom(lambda q, k, w: (q @ w @ k.mT).tanh() * 3, parameters=(weight,))
    options = {"score": score, "mask": MASKS[mask], "normalizer": normalizers.Softmax(1 / scale)}
    sides = [torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    towards = torch.randn(2, 5, 4, dtype=torch.float64)
    found = []
    for kernel in ("batched", "batched", "dense"):  # the second call is prepared
        output = qkv.attend(*sides, kernel=kernel, **options)
        leaves = [*sides, weight]
        first = torch.autograd.grad(output, leaves, towards, create_graph=True)
        second = torch.autograd.grad(sum(x.square().sum() for x in first), leaves)
        found.append([output, *first, *second])
    for batched in found[:2]:
        for one, other in zip(batched, found[2], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_the_graph_keeps_no_logits_that_the_function_of_the_user_does_not_keep() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    def logits(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        found = q @ k.mT
        alive.append(weakref.ref(found))
        return found

    score = scores.Custom(logits)
    sides = [torch.randn(2, 6, 4, requires_grad=True) for _ in range(3)]
    outputs = [qkv.attend(*sides, score=score, kernel="batched") for _ in range(2)]
    assert len(alive) >= 2
    assert alive[-1]() is None
    del outputs


@pytest.mark.thinned
@pytest.mark.parametrize("q", [3, 40])
@pytest.mark.parametrize("keys", [1, 4, 12, 20])
@pytest.mark.parametrize("normalizer", [normalizers.Softmax(), normalizers.TopK(3), normalizers.Sparsemax()], ids=str)
def test_a_table_that_the_function_of_the_user_returns_is_not_overwritten(
    normalizer: normalizers.Normalizer, keys: int, q: int
) -> None:
    """Short rows are computed as columns, in place: a table in the memory layout of columns must be copied before."""
    for table in (torch.randn(50, keys, q).mT, torch.randn(50, q, keys)):
        before = table.clone()
        score = scores.Custom(lambda query, key, table=table: table)
        query, key = torch.randn(50, q, 4), torch.randn(50, keys, 4)
        for gradient in (False, False, True, True):
            query.requires_grad_(gradient)
            output = qkv.attend(query, key, key, score=score, normalizer=normalizer, kernel="batched")
            assert torch.equal(table, before)
            torch.testing.assert_close(output.detach(), normalizer.weights(table) @ key)
