"""Scores that call a function of the user, in the batched kernel."""

from __future__ import annotations

import weakref

import pytest
import torch

import qkv
from qkv import normalizers, scores


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
