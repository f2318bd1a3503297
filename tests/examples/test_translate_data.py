"""Sentence pairs, their split, subwords and batches of the translator."""

import doctest
import gzip
import importlib.util
import random

import numpy as np
import pytest

if any(importlib.util.find_spec(name) is None for name in ("torch", "tokenizers", "sacrebleu")):
    pytest.skip("the extra qkv[hf,look] is not installed", allow_module_level=True)

from examples.translate import aligning, pairs
from examples.translate.batches import Examples
from examples.translate.vocabulary import BEGIN, END, PAD, Vocabulary
from hypothesis import example, given
from hypothesis import strategies as st

from qkv.errors import DataError, OptionError

from .conftest import language


def english(asked):
    return {one.sentence for one in asked}


def test_no_english_sentence_stands_on_two_sides_of_the_split():
    parts = pairs.split(language(), 9, 7)
    sides = [english(parts.held_out), english(parts.watched), {one for one, _ in parts.train}]
    assert [len(side) for side in sides[:2]] == [9, 7]
    assert sum(map(len, sides)) == len(set.union(*sides)) == len({one for one, _ in language()})


def test_every_translation_of_a_held_out_sentence_is_a_reference():
    for one in pairs.split(language(), 20, 1).held_out:
        assert set(one.references) == {french for sentence, french in language() if sentence == one.sentence}


def test_sentences_that_differ_in_case_and_punctuation_are_on_one_side():
    rows = [(text, "x") for word in map(str, range(60)) for text in (f"Go {word}.", f"go, {word}!")]
    parts = pairs.split(rows, 20, 20)
    for side in (english(parts.held_out), english(parts.watched)):
        assert len({one.lower().replace(",", "")[:-1] for one in side}) * 2 == len(side)


def test_the_split_does_not_depend_on_the_order_of_rows():
    rows = list(language())
    again = random.Random(0).sample(rows, len(rows))
    one, other = pairs.split(rows, 5, 5), pairs.split(again, 5, 5)
    assert english(one.held_out) == english(other.held_out)
    assert english(one.watched) == english(other.watched)
    assert set(one.train) == set(other.train)


def test_holding_out_more_than_there_is_is_refused_with_both_numbers():
    with pytest.raises(OptionError, match=r"\(45\), got 40 and 5"):
        pairs.split(language(), 40, 5)


def test_spaces_and_apostrophes_are_written_in_one_way():
    assert pairs.clean(" L’e\u0301te\u0301\u202f?\u200b ") == "L'été ?"


@pytest.mark.parametrize("pack", [False, True])
def test_a_file_is_read_plain_and_gzipped_and_further_columns_are_not_read(tmp_path, pack):
    path = tmp_path / ("two.tsv.gz" if pack else "two.tsv")
    data = "\ufeffGo.\tVa !\tCC-BY\r\n\r\nRun!\tCours\u202f!\n".encode()
    path.write_bytes(gzip.compress(data, mtime=0) if pack else data)
    assert pairs.read(path) == [("Go.", "Va !"), ("Run!", "Cours !")]


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.tsv", b"Go.\tVa.\nno tab here\n", "line 2 .*a tab.*'no tab here'"),
        ("a.tsv", b"Go.\t \n", "line 1"),
        ("a.tsv", b"Go.\tVa.\n\xff\xfe\tx\n", "line 2 .*UTF-8"),
        ("a.tsv", b"\n\n", "must contain lines"),
        ("a.tsv.gz", b"Go.\tVa.\n", "[Nn]ot a gzip"),
        ("a.tsv.gz", gzip.compress(b"Go.\tVa.\n" * 99, mtime=0)[:-12], "end"),
        ("b.tsv", None, "No such file"),
        (".", None, "directory"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_a_sentence(tmp_path, name, data, said):
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(DataError, match=said):
        pairs.read(path)


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.learn([french for _, french in language()], 320)


@example("<pad> <begin><end>")
@given(st.text(st.characters(codec="utf-8"), max_size=30).map(pairs.clean))
def test_any_sentence_comes_back_from_its_subwords(vocabulary, sentence):
    [numbers] = vocabulary.encode([sentence])
    assert numbers[-1] == END
    assert not {PAD, BEGIN, END} & set(numbers[:-1])
    assert vocabulary.decode([numbers]) == [sentence]


def test_frequent_words_are_one_subword_and_the_same_after_saving(vocabulary, tmp_path):
    vocabulary.save(tmp_path / "v.json")
    again = Vocabulary.load(tmp_path / "v.json")
    [numbers] = again.encode(["une maison rouge."])
    assert again.pieces(numbers) == ["·une", "·maison", "·rouge", ".", "END"]
    assert len(again) == len(vocabulary) <= 320


def test_a_vocabulary_without_room_for_every_byte_is_refused():
    with pytest.raises(OptionError, match="259"):
        Vocabulary.learn(["a"], 258)


def test_a_damaged_vocabulary_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "v.json").write_text("{}")
    with pytest.raises(DataError, match="vocabulary"):
        Vocabulary.load(tmp_path / "v.json")


@pytest.fixture(scope="module")
def examples():
    draw = np.random.default_rng(0)
    rows = [[[*draw.integers(3, 90, draw.integers(1, 25)), END] for _ in range(500)] for _ in range(2)]
    return Examples(*rows, tokens=200)


@pytest.mark.parametrize("number", [0, 1])
def test_an_epoch_has_every_pair_once_and_no_batch_above_its_size(examples, number):
    batches = examples.epoch(3, number)
    assert sorted(np.concatenate(batches)) == list(range(500))
    for rows in batches:
        batch = examples.batch(rows)
        assert max(batch.source.numel(), batch.wanted.numel()) <= 200


def test_the_order_follows_from_seed_and_epoch_alone(examples):
    def order(*which):
        return np.concatenate(examples.epoch(*which)).tolist()

    assert order(3, 1) == order(3, 1)
    assert len({tuple(order(*which)) for which in ((3, 0), (3, 1), (4, 0))}) == 3


def test_sentences_of_like_length_are_together(examples):
    spent = sum(examples.batch(rows).wanted.numel() for rows in examples.epoch(0, 0))
    real = sum(examples.batch(rows).tokens for rows in examples.epoch(0, 0))
    at_random = sum(
        examples.batch(rows).wanted.numel() for rows in np.array_split(np.random.default_rng(0).permutation(500), 60)
    )
    assert spent / real < 0.75 * at_random / real


def test_decoder_inputs_are_the_targets_of_the_previous_step():
    batch = Examples([[5, END], [5, 6, END]], [[7, END], [8, 9, END]], 100).batch(np.array([0, 1]))
    assert batch.wanted.tolist() == [[7, END, PAD], [8, 9, END]]
    assert batch.given.tolist() == [[BEGIN, 7, END], [BEGIN, 8, 9]]
    assert batch.source.tolist() == [[5, END, PAD], [5, 6, END]]
    assert batch.lengths.tolist() == [2, 3]
    assert batch.tokens == 5


def test_a_pair_that_is_longer_than_a_batch_is_a_batch_by_itself():
    long = [[9] * 20 + [END]]
    assert [rows.tolist() for rows in Examples(long * 2, long * 2, 10).in_order()] == [[0], [1]]


@pytest.mark.parametrize("module", [pairs, aligning], ids=lambda module: module.__name__)
def test_the_examples_of_its_docstrings_give_what_they_say(module):
    done = doctest.testmod(module)
    assert (done.failed, done.attempted > 0) == (0, True)
