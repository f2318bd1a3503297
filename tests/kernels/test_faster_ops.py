"""Operations that are chosen by microbenchmark get operands that they compute quickly."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import qkv  # noqa: E402
from qkv.kernels.runtime import faster_ops  # noqa: E402
from qkv.scores import ScaledDot, Softcap  # noqa: E402


class RightOperands(TorchDispatchMode):
    """Notes the right operand of every product that oneDNN computes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "_linear_pointwise" in str(func):
            self.seen.append(args[1])
        return func(*args, **(kwargs or {}))


def test_onednn_gets_rows_without_gaps_for_one_head_of_keys_in_the_layout_of_a_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faster = faster_ops.FasterOps(exp2=True, sigmoid_tanh=True, onednn=True)
    monkeypatch.setattr(faster_ops, "_faster_ops", lambda dtype, device: faster)
    query, key, value = (torch.randn(1, 600, 2, 16).transpose(1, 2) for _ in range(3))
    with RightOperands() as products:
        output = qkv.attend(query, key, value, score=Softcap(ScaledDot(), 5.0), kernel="tiled")
    assert products.seen, "oneDNN computed no product: the test does not show anything"
    assert all(right.is_contiguous() or right.mT.is_contiguous() for right in products.seen)
    logits = 5.0 * torch.tanh(query.double() @ key.double().mT / 4.0 / 5.0)
    expected = logits.softmax(-1) @ value.double()
    assert (output - expected).abs().max() < 1e-5
