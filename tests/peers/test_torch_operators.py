"""Samples of PyTorch's attention operators, run through qkv; see `torch_operators.py`.

243 for each of two dtypes: 192 of `multi_head_attention_forward`, 25 of `scaled_dot_product_attention`, 18 of
memory-efficient attention, 8 of FlashAttention.
"""

import json
from collections import Counter

import pytest

from tests.processes import run_python

pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="torch.testing._internal needs expecttest")

COUNTS = {
    "nn.functional.multi_head_attention_forward": 192,
    "nn.functional.scaled_dot_product_attention": 25,
    "_efficient_attention_forward": 18,
    "_flash_attention_forward": 8,
}


@pytest.mark.long
def test_samples_of_attention_operators_agree_with_their_gradients() -> None:
    found: list[list[str]] = json.loads(run_python("-m", "tests.peers.torch_operators"))
    assert not [row for row in found if row[3] != "agrees"]
    dtypes = ("torch.float64", "torch.float32")
    assert Counter((row[0], row[1]) for row in found) == {(n, d): m for n, m in COUNTS.items() for d in dtypes}
