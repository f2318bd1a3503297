"""Samples of attention from PyTorch's own test suites, run through qkv; see `torch_samples.py`."""

import json
from collections import Counter

import pytest

from tests.processes import run_python

# Short runs compare with PyTorch in `test_torch_parity.py`, and with its operators in `peers/test_torch_operators.py`.
pytestmark = pytest.mark.long

# Deliberate differences, and how many samples of each dtype show them.
DRAWS = "dropout draws differ"
EMPTY = "an empty row is 0, not NaN"


@pytest.fixture(scope="module")
def results() -> list[list[str]]:
    pytest.importorskip("expecttest", reason="torch.testing._internal wants expecttest")
    found: list[list[str]] = json.loads(run_python("-m", "tests.nn.torch_samples"))
    return found


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_samples_of_scaled_dot_product_attention_agree(results: list[list[str]], dtype: str) -> None:
    """25 a dtype. Their twelve with dropout draw other numbers: there the means agree, and what is kept."""
    mine = [r for r in results if r[:2] == ["scaled_dot_product_attention", f"torch.{dtype}"]]
    wrong = [r for r in mine if r[3] not in ("agrees", DRAWS)]
    assert not wrong
    assert Counter(r[3] for r in mine) == {"agrees": 13, DRAWS: 12}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_samples_of_multi_head_attention_agree(results: list[list[str]], dtype: str) -> None:
    """64 in training and 64 in eval, output, weights and gradients of the inputs; none has an empty row."""
    mine = [r for r in results if r[:2] == ["MultiheadAttention", f"torch.{dtype}"]]
    wrong = [r for r in mine if r[3] not in ("agrees", EMPTY)]
    assert not wrong
    assert Counter(r[3] for r in mine) == {"agrees": 128}


def test_no_other_samples_were_run(results: list[list[str]]) -> None:
    assert len(results) == 4 * 25 + 2 * 128
