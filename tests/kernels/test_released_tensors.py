"""Tensors of a call are freed when the call is over, not when Python's garbage collector runs."""

import gc

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


def attend(case: Case, kernel: str) -> None:
    call = case.call()
    query, key, value = (torch.tensor(x, requires_grad=True) for x in (call.query, call.key, call.value))
    score, normalizer, mask = (
        None if part is None else part._map(lambda x, _: torch.tensor(x))
        for part in (call.score, call.normalizer, call.mask)
    )
    output = qkv.attend(
        query,
        key,
        value,
        score=score,
        normalizer=normalizer,
        mask=mask,
        positions=None if mask is None else call.positions,
        kernel=kernel,
    )
    output.sum().backward()


@pytest.mark.parametrize(("kernel", "case"), CASES)
def test_no_tensor_of_a_call_waits_for_the_garbage_collector(kernel: str, case: Case) -> None:
    attend(case, kernel)
    gc.collect()
    gc.disable()
    try:
        before = {id(x) for x in gc.get_objects() if type(x) is torch.Tensor}
        attend(case, kernel)
        assert not [x.shape for x in gc.get_objects() if type(x) is torch.Tensor and id(x) not in before]
    finally:
        gc.enable()
