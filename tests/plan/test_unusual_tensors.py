"""Sparse, nested, quantized, fake and meta tensors raise errors of this package, wherever they are given."""

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import qkv
from qkv import masks, nn, normalizers, readouts, scores
from qkv.errors import KindError, QkvError

EYE = torch.eye(3)


def unusual() -> dict[str, Any]:
    return {
        "sparse": EYE.to_sparse(),
        "compressed": EYE.to_sparse_csr(),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "quantized": torch.quantize_per_tensor(EYE, 0.1, 0, torch.qint8),
        "meta": torch.ones(3, 3, device="meta"),
    }


def calls(x: Any, s: Any) -> dict[str, Any]:
    """Return a call for each place in which a tensor may be given."""
    mask = s if s.is_quantized or s.is_nested or s.layout == torch.sparse_csr else s.bool()
    return {
        "query": lambda: qkv.attend(s, x, x),
        "value": lambda: qkv.observe(x, x, s, readouts=[readouts.Entropy()]),
        "pairs": lambda: qkv.attend(x, x, x, mask=masks.AllowedPairs(mask)),
        "keys": lambda: qkv.attend(x, x, x, mask=masks.AllowedKeys(mask)),
        "lengths": lambda: qkv.attend(x, x, x, mask=masks.Causal() & masks.Lengths(s)),
        "blocks": lambda: qkv.attend(x, x, x, mask=masks.Blocks(mask, 1)),
        "documents": lambda: qkv.attend(x, x, x, mask=masks.Documents(s, s)),
        "bias": lambda: qkv.attend(x, x, x, score=scores.Biased(scores.Dot(), s)),
        "weight": lambda: qkv.attend(x, x, x, score=scores.Softcap(scores.Bilinear(s), 2.0)),
        "parameter": lambda: qkv.attend(x, x, x, score=scores.Custom(lambda q, k, p: q @ k.mT + p, (s,))),
        "temperature": lambda: qkv.attend(x, x, x, normalizer=normalizers.Softmax(s)),
        "positions": lambda: qkv.attend(x, x, x, mask=masks.Causal(), positions=qkv.Positions(query_start=s)),
        "cache": lambda: nn.KeyValueCache().append(s, s),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["sparse", "compressed", "nested", "quantized", "meta"])
def test_a_tensor_that_holds_no_plain_numbers_is_refused_with_a_remedy(kind: str) -> None:
    x = torch.randn(3, 3)
    for name, call in calls(x, unusual()[kind]).items():
        if (kind, name) in (("quantized", "lengths"), ("quantized", "documents")):
            continue  # the annotations that are checked in tests refuse them first
        with pytest.raises(QkvError) as caught:
            call()
        assert "." in str(caught.value), name


def test_calls_and_modules_return_the_shape_of_fake_tensors_or_refuse_them_with_a_remedy() -> None:
    attention = nn.MultiHeadAttention(4, 2, device="meta")
    for module in (attention, nn.EncoderLayer(4, 2, device="meta")):
        with pytest.raises(QkvError, match=r"must hold data, got a tensor on the device meta\. Call qkv\.explain"):
            module(torch.ones(1, 3, 4, device="meta"))
    with FakeTensorMode():
        x = torch.randn(1, 3, 4)
        fake = nn.MultiHeadAttention(4, 2)
        made = (
            lambda: qkv.attend(x, x, x),
            lambda: qkv.observe(x, x, x, readouts=[readouts.Entropy()]),
            lambda: qkv.attend(x, x, x, score=scores.Gaussian(1.0), kernel="tiled"),
            lambda: fake(x),
        )
        for call in made:
            error, shape = "", (1, 3, 4)
            try:
                found: Any = call()
                shape = tuple(getattr(found, "output", found).shape)
            except KindError as raised:
                error = str(raised)
            assert shape == (1, 3, 4)
            assert "must hold data, got a fake tensor. Call qkv.explain" in error or not error
