"""Samples of PyTorch's attention operators, run through qkv; see `torch_operators.py`.

218 for each of two dtypes: 192 of `multi_head_attention_forward`, 18 of memory-efficient attention, 8 of
FlashAttention.
The 25 of `scaled_dot_product_attention`, in four dtypes, are run by `tests/nn/test_torch_suites.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.effort import LONG

pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="torch.testing._internal needs expecttest")

ROOT = Path(__file__).parent.parent.parent
COUNTS = {
    "nn.functional.multi_head_attention_forward": 192 if LONG else 64,
    "_efficient_attention_forward": 18,
    "_flash_attention_forward": 8,
}


def test_samples_of_attention_operators_agree_with_their_gradients() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(["src", *sys.path])}
    done = subprocess.run(
        [sys.executable, "-m", "tests.peers.torch_operators"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[list[str]] = json.loads(done.stdout)
    assert not [row for row in found if row[3] != "agrees"]
    dtypes = ("torch.float64", "torch.float32")
    assert Counter((row[0], row[1]) for row in found) == {(n, d): m for n, m in COUNTS.items() for d in dtypes}
