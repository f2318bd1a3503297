"""Top-k of a row: exactly k keys, ties to the first, for any ranks."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv import masks, normalizers, readouts, scores
from qkv.core.equation import attend_dense
from qkv.errors import RefusedError

torch = pytest.importorskip("torch")

from qkv.kernels.row_blocks import kernel as row_blocks  # noqa: E402
from qkv.kernels.row_blocks.candidates import select_top_k  # noqa: E402
from tests.effort import cases  # noqa: E402

GROUPS = 16
RANKS = st.sampled_from([-np.inf, -3.5, -1.0, -1e-40, -0.0, 0.0, 1e-40, 0.5, 0.5000001, 2.0, 3e38])


@settings(max_examples=cases(60), deadline=None)
@given(st.lists(st.lists(RANKS, min_size=32, max_size=32), min_size=1, max_size=4), st.integers(1, 20))
def test_top_k_equals_the_first_entries_of_a_stable_sort(rows, count):
    ranks = torch.tensor(rows)
    largest = ranks.view(len(ranks), -1, GROUPS).amax(dim=1)
    floor = torch.full((len(ranks), 1), torch.finfo(torch.float32).min)
    keys, found = select_top_k(ranks, largest, floor, count, max_candidates=64)
    for row in range(len(ranks)):
        there = int((ranks[row] > -np.inf).sum())
        wanted = np.argsort(-ranks[row].numpy(), kind="stable")[: min(count, there)]
        real = found[row] > -np.inf
        assert sorted(keys[row, real].tolist()) == sorted(wanted.tolist())
        assert (found[row, real] == ranks[row, keys[row, real].long()]).all()
        assert (keys[row, ~real] == 0).all()


def test_too_many_keys_that_reach_the_bound_give_none():
    ranks = torch.zeros(2, 64)
    largest, floor = ranks.view(2, -1, GROUPS).amax(dim=1), torch.zeros(2, 1)
    assert select_top_k(ranks, largest, floor, 4, max_candidates=32) is None
    assert select_top_k(ranks, largest, floor, 4, max_candidates=64) is not None


@pytest.mark.parametrize("normalizer", [normalizers.TopK(7), normalizers.Hard(), normalizers.Sample(0.7)])
def test_top_k_weights_equal_those_of_the_equation_with_ties(normalizer):
    """Values are rows of the identity: the output is the weights."""
    rng = torch.Generator().manual_seed(0)
    query = torch.randint(-3, 3, (40, 1), generator=rng).float()
    key = torch.randint(-3, 3, (300, 1), generator=rng).float()
    options = {"score": scores.Dot(), "normalizer": normalizer, "seed": 3}
    got = qkv.attend(query, key, torch.eye(300), kernel="row_blocks", **options)
    wanted = attend_dense(query, key, torch.eye(300), **options).output
    assert ((got != 0) == (wanted != 0)).all()
    assert torch.allclose(got, wanted, atol=1e-6)


@pytest.mark.parametrize("normalizer", [normalizers.Softmax(), normalizers.TopK(6), normalizers.Hard()])
@pytest.mark.parametrize("case", ["repeated keys", "equal weights of unequal logits", "large logits", "nan", "masked"])
@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_the_largest_weights_of_many_tiles_are_those_of_all_weights(normalizer, case, library, monkeypatch):
    monkeypatch.setattr(row_blocks, "_SELECTION_KEYS", 1)
    rng = torch.Generator().manual_seed(0)
    query, key = torch.randn(5, 4, generator=rng), torch.randn(9000, 4, generator=rng)
    mask = None
    if case == "repeated keys":
        key = key[:30].repeat(300, 1)
    elif case == "equal weights of unequal logits":
        query, key = torch.full((5, 1), 1e-5), torch.arange(9000.0)[:, None] * 1e-7
    elif case == "large logits":
        query = query * 40
    elif case == "nan":
        key[7000] = torch.nan
    else:
        mask = masks.AllowedKeys(key[:, 0] > 1.5)
    value = torch.randn(9000, 2, generator=rng)
    arrays = [x if library == "torch" else x.numpy() for x in (query, key, value)]
    if library == "numpy" and mask is not None:
        mask = masks.AllowedKeys(key[:, 0].numpy() > 1.5)
    options = {"score": scores.Dot(), "normalizer": normalizer, "mask": mask, "readouts": [readouts.TopWeights(4)]}
    wanted = qkv.observe(*arrays, kernel="dense", **options)
    kernels = ["numpy_blocks"] if library == "numpy" else ["tiled", "row_blocks"]
    for kernel in kernels:
        found = qkv.observe(*arrays, kernel=kernel, **options)
        assert (found.readouts[0].keys == wanted.readouts[0].keys).all()
        for one, other in ((found.output, wanted.output), (found.readouts[0].weights, wanted.readouts[0].weights)):
            assert torch.allclose(torch.as_tensor(one), torch.as_tensor(other), rtol=1e-4, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("bias", [-3.0, torch.tensor([[-3.0, 5.0]])], ids=["number", "array"])
def test_keys_are_selected_by_their_logits_which_a_bias_of_the_sigmoid_would_round(bias):
    query, key, value = (torch.randn(1, 2, n, 4, generator=torch.Generator().manual_seed(n)) for n in (5, 700, 700))
    call = {"score": scores.Dot(1e-9), "normalizer": normalizers.TopK(3, normalizers.Sigmoid(bias))}
    chosen = (query @ key.mT).topk(3).indices
    weights = torch.sigmoid(torch.as_tensor(bias))[..., None, None].expand(1, 2, 5, 3)
    wanted = torch.zeros(1, 2, 5, 700).scatter(-1, chosen, weights) @ value
    found = {}
    for kernel in ("dense", "row_blocks", "tiled", None):
        with suppress(RefusedError):  # a kernel that adds the bias first
            found[kernel] = qkv.attend(query, key, value, kernel=kernel, **call)
    assert len(found) >= 3
    for each in found.values():
        torch.testing.assert_close(each, wanted)
