"""Words are found by spelling and occurrence, by index and by range of characters, in any script."""

import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.encoders.word_spans import find_word, split_words
from qkv.errors import DataError, KindError
from tests.effort import cases

WORDS = st.lists(
    st.sampled_from(["bank", "Bank", "banks", "river", "embankment", "été", "b2", "Ω"]), min_size=1, max_size=8
)


@settings(derandomize=True, deadline=None, max_examples=cases(150))
@given(WORDS, st.lists(st.sampled_from([" ", ", ", "\n", "-", " (", "…"]), min_size=8, max_size=8), st.data())
def test_spelling_index_and_range_name_the_same_word(words, separators, data):
    text = "".join(word + separator for word, separator in zip(words, separators, strict=False))
    assert [span.word for span in split_words(text)] == words
    index = data.draw(st.integers(0, len(words) - 1))
    occurrence = words[:index].count(words[index])
    span = find_word(text, index)
    assert text[span.start : span.stop] == words[index]
    assert find_word(text, words[index], occurrence) == span == find_word(text, (span.start, span.stop))
    assert find_word(text, index - len(words)) == span
    assert find_word(text, words[index], occurrence - words.count(words[index])) == span
    with pytest.raises(DataError, match="occurrence must be from"):
        find_word(text, words[index], words.count(words[index]))


@pytest.mark.parametrize(
    ("text", "word", "occurrence", "found"),
    [
        ("They told us the US", "US", 0, (17, 19)),  # as written before any case
        ("They told us", "US", 0, (10, 12)),
        ("the bank's rates, re-bank", "bank", 1, (21, 25)),
        ("from New\n York on", "new york", 0, (5, 14)),
        ("C, C++ and C", "C++", 0, (3, 6)),
        ("cafe\u0301 café", "café", 1, (6, 10)),
        ("one cafe\u0301", "café", 0, (4, 9)),
        ("cafe\u0301 cafe", "cafe", 0, (6, 10)),
        ("我去银行了", "银行", 0, (2, 4)),
        ("ไปธนาคารแล้ว", "ธนาคาร", 0, (2, 8)),
        ("हिन्दी भाषा", "भाषा", 0, (7, 11)),
        ("🏦 bank", "🏦", 0, (0, 1)),
    ],
)
def test_a_spelling_is_found_as_a_whole_word(text, word, occurrence, found):
    assert find_word(text, word, occurrence)[1:] == found


def test_vowel_signs_and_accents_are_parts_of_words():
    for text in ("हिन्दी भाषा", unicodedata.normalize("NFD", "été à l'école"), "עִבְרִית שָׁלוֹם", "می‌روم خانه"):
        assert [span.word for span in split_words(text)] == text.split()
    assert [span.word for span in split_words("iPhone手机 x")] == ["iPhone", "手", "机", "x"]
    assert find_word("  a b ", (0, 4)) == ("a b"[:1], 2, 3)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (
            ("the bnak", "bank"),
            DataError,
            "word must occur in the text as a whole word, got 'bank' and the text 'the bnak'",
        ),
        (("banks", "bank"), DataError, "whole word"),
        (("हिन्दी", "हिन"), DataError, "whole word"),
        (
            ("a bank, a Bank", "bank", 1),
            DataError,
            "occurrence must be from -1 to 0, got 1. The word 'bank' occurs 1 time in",
        ),
        (("a", ""), DataError, "word must contain a character other than spaces, got ''"),
        (("a b", 2), DataError, "word must be an index from -2 to 1, got 2"),
        (("... !", 0), DataError, "text must contain a word, got '... !'"),
        (("a  b", (1, 3)), DataError, "a character other than spaces, got (1, 3)"),
        (("a b", (2, 2)), DataError, "0 <= start < stop <= 3"),
        (("a b", (-1, 2)), DataError, "0 <= start < stop <= 3"),
        (("a b", (0, 4)), DataError, "0 <= start < stop <= 3"),
        (("a b", (0, 1, 2)), KindError, "(start, stop), got (0, 1, 2)"),
        (("a b", (0.0, 1)), KindError, "must be an integer, got 0.0 of type float"),
        (("a b", True), KindError, "got True of type bool"),
        (("a b", None), KindError, "got None of type NoneType"),
        (("a b", 0, 1), DataError, "occurrence must be 0 if word is not a spelling, got 1"),
        (("a b", "a", "1"), KindError, "occurrence must be an integer, got '1'"),
        ((None, "a"), KindError, "text must be a string, got NoneType"),
    ],
)
def test_words_that_are_not_there_are_refused(arguments, error, said):
    with pytest.raises(error, match=re.escape(said)):
        find_word(*arguments)
