"""Tensors of a call are freed when the call is over, not when Python's garbage collector runs."""

import gc
import weakref

import pytest

import qkv
from qkv.testing.cases import Case

torch = pytest.importorskip("torch")

CASES = [
    ("dense", Case("additive", "entmax15")),
    ("batched", Case("additive", mask="causal from the start")),
    ("tiled", Case("gaussian", mask="window")),
    ("row_blocks", Case("scaled dot", mask="prefix")),
    ("fused", Case("projected", mask="lengths")),
]


def attend(case: Case, kernel: str) -> list[weakref.ref[object]]:
    """Run a call with gradients and return weak references to its inputs, gradients and output."""
    call = case.call()
    sides = [torch.tensor(x, requires_grad=True) for x in (call.query, call.key, call.value)]
    score, normalizer, mask = (
        None if part is None else part._map(lambda x, _: torch.tensor(x))
        for part in (call.score, call.normalizer, call.mask)
    )
    positions = None if mask is None else call.positions
    output = qkv.attend(*sides, score=score, normalizer=normalizer, mask=mask, positions=positions, kernel=kernel)
    output.sum().backward()
    return [weakref.ref(x) for x in (*sides, *(x.grad for x in sides), output)]


@pytest.mark.parametrize(("kernel", "case"), CASES)
def test_no_tensor_of_a_call_waits_for_the_garbage_collector(kernel: str, case: Case) -> None:
    gc.disable()
    try:
        assert [each() for each in attend(case, kernel)] == [None] * 7
    finally:
        gc.enable()
