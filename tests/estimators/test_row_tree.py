"""Weighted means over the boxes of a tree equal those over all rows."""

import numpy as np
import pytest
import torch

from qkv.estimators import AttentionRegressor
from qkv.estimators import row_tree as module
from qkv.estimators.row_tree import build_row_trees
from tests.effort import sample, seeds


def dense_means(queries, keys, values, weight, inverse):
    """Return the weighted means by their definition."""
    logits = np.log(weight) - inverse * np.square(queries[:, None] - keys[None]).sum(axis=-1)
    logits -= logits.max(axis=1, keepdims=True)
    shares = np.exp(logits)
    return shares @ values / shares.sum(axis=1, keepdims=True)


def draw(generator, rows, width):
    """Return keys in clusters of random sizes, some of them far away."""
    centers = generator.normal(size=(9, width)) * generator.choice([0.3, 3.0, 40.0])
    return centers[generator.integers(9, size=rows)] + generator.normal(size=(rows, width))


@pytest.mark.parametrize("seed", seeds(24, 8))
def test_means_over_boxes_equal_those_over_all_rows(seed, monkeypatch):
    generator = np.random.default_rng(seed)
    monkeypatch.setattr(module, "_BOX", int(generator.integers(1, 60)))
    monkeypatch.setattr(module, "_QUERIES", int(generator.integers(1, 40)))
    monkeypatch.setattr(module, "_PAIRS", int(generator.integers(1, 4000)))
    rows, width, outputs = int(generator.integers(1, 900)), int(generator.integers(1, 9)), int(generator.integers(1, 4))
    keys = draw(generator, rows, width)
    queries = np.concatenate([draw(generator, 30, width), keys[:5], 1000.0 + keys[:2]])
    values = generator.normal(size=(rows, outputs))
    weight = generator.uniform(0.1, 3.0, rows) if seed % 2 else None
    inverse = float(np.exp(generator.uniform(-8, 4)))
    (tree,) = build_row_trees(keys[None], values[None], weight)
    wanted = dense_means(queries, keys, values, np.ones(rows) if weight is None else weight, inverse)
    np.testing.assert_allclose(tree.means(queries, inverse), wanted, rtol=1e-8, atol=1e-10)


def test_a_row_much_nearer_than_the_first_boxes_decides_the_mean(monkeypatch):
    monkeypatch.setattr(module, "_BOX", 2)
    # Each of the first boxes contains the query between two far rows; the box of the nearest row does not contain it.
    signs = np.array([[a, b] for a in (-1.0, 1.0) for b in np.linspace(-1.0, 1.0, 16)])
    keys = np.concatenate([100.0 * signs, [[1.0, 1.0], [1.5, 1.0]]])
    values = np.arange(len(keys), dtype=float)[:, None]
    (tree,) = build_row_trees(keys[None], values[None], None)
    for inverse in (1e-3, 1.0, 10.0, 1e4):
        wanted = dense_means(np.zeros((1, 2)), keys, values, np.ones(len(keys)), inverse)
        np.testing.assert_allclose(tree.means(np.zeros((1, 2)), inverse), wanted, rtol=1e-10)


def test_boxes_with_negligible_weights_are_not_computed(monkeypatch):
    generator = np.random.default_rng(0)
    keys = generator.uniform(size=(20_000, 2))
    (tree,) = build_row_trees(keys[None], keys[None, :, :1], None)
    computed, original = [], module.RowTree._add

    def count(self, lifted, boxes):
        computed.append(len(lifted) * len(boxes))
        return original(self, lifted, boxes)

    monkeypatch.setattr(module.RowTree, "_add", count)
    tree.means(keys[:2000], 0.5 / 0.01**2)
    assert sum(computed) < 0.3 * 2000 * len(tree.boxes.low)
    computed.clear()
    tree.means(keys[:2000], 0.5 / 100.0**2)
    assert sum(computed) >= 2000 * len(tree.boxes.low)


@pytest.mark.parametrize("threads", sample([2, 1], 2))
def test_predictions_from_many_rows_are_those_of_the_definition(threads):
    generator = np.random.default_rng(1)
    x = generator.normal(size=(5000, 3))
    y = np.stack([np.sin(2 * x[:, 0]), x[:, 1] ** 2], axis=1)
    shares = generator.uniform(0.5, 2.0, 5000)
    model = AttentionRegressor(metric="linear", max_steps=20, random_state=0, verbose=False).fit(x, y, shares)
    new, before = generator.normal(size=(70, 3)), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = model.predict(new)
    finally:
        torch.set_num_threads(before)
    fitted = model._fitted_rows()
    members = []
    for query, _ in fitted.query_blocks(model._query_features(new)):
        for member, own in enumerate(query.numpy()):
            scales = 0.5 / fitted.bandwidth[member].numpy() ** 2
            known = fitted.keys[member].numpy(), fitted.values[min(member, len(fitted.values) - 1)].numpy()
            means = [dense_means(own, *known, model.sample_weight_, scale) for scale in scales]
            members.append(np.stack([mean[:, output] for output, mean in enumerate(means)], axis=1))
    np.testing.assert_allclose(found, np.mean(members, axis=0) * model.y_scale_ + model.y_mean_, rtol=1e-9)


def test_trees_are_built_once_and_again_after_new_rows():
    x = np.linspace(0, 6, 5000)[:, None]
    model = AttentionRegressor(metric="none").fit(x, np.sin(x[:, 0]))
    model.predict([[1.5]])
    first = model._row_trees()
    model.predict([[2.5]])
    assert model._row_trees() is first
    model.partial_fit([[1.5]] * 3000, [7.0] * 3000)
    assert model._row_trees() is not first
    assert model.predict([[1.5]])[0] > 3
