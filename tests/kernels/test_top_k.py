"""Top-k of a row: exactly k keys, ties to the first, for any ranks."""

import pytest

import qkv
from qkv import normalizers, scores
from qkv.core.equation import attend_dense

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("normalizer", [normalizers.TopK(7), normalizers.Hard(), normalizers.Sample(0.7)])
@pytest.mark.parametrize("levels", [3, 50], ids=["many ties", "few ties"])
def test_top_k_weights_equal_those_of_the_equation_with_ties(normalizer, levels):
    """Values are rows of the identity: the output is the weights."""
    rng = torch.Generator().manual_seed(0)
    query = torch.randint(-levels, levels, (40, 1), generator=rng).float()
    key = torch.randint(-levels, levels, (300, 1), generator=rng).float()
    options = {"score": scores.Dot(), "normalizer": normalizer, "seed": 3}
    got = qkv.attend(query, key, torch.eye(300), kernel="row_blocks", **options)
    wanted = attend_dense(query, key, torch.eye(300), **options).output
    assert ((got != 0) == (wanted != 0)).all()
    assert torch.allclose(got, wanted, atol=1e-6)
