"""Vectors with large means or many near copies are compared as exactly in a store as in memory."""

import numpy as np
import pyarrow as pa
import pytest

from qkv import Database, normalizers, scores
from tests.effort import seeds

KINDS = ["dot", "cosine", "gaussian"]


def drawn(seed):
    """Return float32 keys whose mean is much larger than their deviations, queries, a score, and its exact logits."""
    rng = np.random.default_rng(seed)
    rows, width, mean = int(rng.choice([500, 3000])), int(rng.choice([2, 8, 64])), float(rng.choice([1, 30, 1000]))
    spread = float(rng.choice([1, 5])) / (mean * np.sqrt(width))
    keys = (mean + spread * rng.normal(size=(rows, width))).astype(np.float32)
    query = keys[:3] + spread * rng.normal(size=(3, width))
    left, right = query.astype(np.longdouble), keys.astype(np.longdouble)
    kind = KINDS[seed % 3]
    if kind == "dot":
        return keys, query, scores.Dot(), left @ right.T
    if kind == "cosine":
        left, right = (x / np.sqrt((x * x).sum(axis=1, keepdims=True)) for x in (left, right))
        return keys, query, scores.Cosine(temperature=0.1), left @ right.T / np.longdouble(0.1)
    width = spread * np.sqrt(width)
    return keys, query, scores.Gaussian(width), -np.square(left[:, None] - right).sum(axis=2) / (2 * width * width)


@pytest.mark.parametrize("normalizer", [normalizers.Softmax(), normalizers.TopK(5)], ids=str)
@pytest.mark.parametrize("seed", seeds(60, 6))
def test_a_store_weighs_vectors_far_from_zero_exactly(tmp_path, seed, normalizer):
    keys, query, score, logits = drawn(seed)
    value = np.random.default_rng(seed).normal(size=len(keys))
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    settled = np.ones(len(query), bool)
    if normalizer.top_k:
        sixth, fifth = np.sort(logits, axis=1)[:, -6:-4].T
        settled = fifth - sixth > 1e-12 * np.abs(fifth)  # else equal in float64, and either may be the fifth
        weights[logits < fifth[:, None]] = 0
    expected = (weights @ value / weights.sum(axis=1)).astype(float)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(keys.reshape(-1)), keys.shape[1])
    Database.create(tmp_path / "store", pa.table({"key": vectors, "value": value}), "key", "value")
    answers = Database.open(tmp_path / "store", memory="1 MiB").ask(list(query), score=score, normalizer=normalizer)
    found = np.array([each.value for each in answers])
    np.testing.assert_allclose(found[settled], expected[settled], atol=2e-4)
