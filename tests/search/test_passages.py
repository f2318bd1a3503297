"""Long documents in passages."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import OptionError
from qkv.search.passages import passages_of, split
from qkv.search.text_sources import Document

TEXT = st.lists(
    st.sampled_from(["a", "ring", "Den.", "Who?", "Mr.", "e.g.", "\n\n", "\n", " ", "“So!”", "x" * 30]), max_size=80
).map(" ".join)


def words(text):
    return text.split()


@given(TEXT, st.integers(1, 12), st.data())
def test_every_word_lies_in_a_passage_and_none_is_too_long(text, most, data):
    overlap = data.draw(st.integers(0, (most - 1) // 2))
    spans = split(text, most, overlap)
    covered = set()
    for start, end in spans:
        assert 1 <= len(words(text[start:end])) <= most
        covered |= set(range(start, end))
    assert all(at in covered for at, letter in enumerate(text) if not letter.isspace())
    assert [start for start, _ in spans] == sorted({start for start, _ in spans})
    assert [end for _, end in spans] == sorted({end for _, end in spans})


@given(TEXT, st.integers(1, 12))
def test_without_an_overlap_no_word_is_in_two_passages(text, most):
    spans = split(text, most)
    assert sum(len(words(text[start:end])) for start, end in spans) == len(words(text))
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_a_passage_ends_with_its_paragraph_if_that_fills_half_of_it():
    text = "One two three.\n\nFour five six. Seven eight."
    assert [text[a:b] for a, b in split(text, 6)] == ["One two three.", "Four five six. Seven eight."]
    # Three of seven are less than half: the next sentence goes with them.
    assert text[slice(*split(text, 7)[0])].endswith("Four five six.")


def test_a_full_stop_after_a_title_or_an_initial_ends_no_sentence():
    text = "Dr. Li met J. Smith. They spoke."
    assert [text[a:b] for a, b in split(text, 5)] == ["Dr. Li met J. Smith.", "They spoke."]


def test_zero_words_mean_one_passage_per_document():
    assert split("  One. Two.\n\nThree. ", 0) == [(2, 19)]


@pytest.mark.parametrize(("most", "overlap"), [(-1, 0), (10, 5), (10, -1)])
def test_an_overlap_of_half_a_passage_is_refused(most, overlap):
    with pytest.raises(OptionError, match="less than half"):
        split("One. Two.", most, overlap)


def test_a_document_without_a_word_is_a_passage_of_its_own():
    passages = passages_of([Document("a", "One two."), Document("b", ""), Document("c", "Three.")], 1)
    assert [(part.document, part.end - part.start) for part in passages] == [(0, 3), (0, 4), (1, 0), (2, 6)]
