"""Comparing texts takes time linear in the words of a query, whatever they are, between checkpoints."""

import random

import numpy as np
import pytest

from qkv.core.progress import with_check
from qkv.database.keys.name_index import NameIndex, PresentNames
from qkv.scores import JaroWinkler, Levenshtein, Names, Spelling, TokenSetRatio, name_numbers, names, string_functions
from qkv.scores.name_numbers import query_numbers, query_values
from qkv.scores.name_words import NameWords, clean_name
from qkv.scores.names import QueryWords
from qkv.scores.string_functions import compare_all

WORDS = [
    *("san", "jose", "new", "york", "john", "smith", "ii", "2", "2nd", "two", "first", "x", "i", "800", "mg", "u1002"),
    *("a", "b", "ab", "007", "é", "county", "o'hare"),
]


def drawn_text(rng, count):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, count)))


@pytest.fixture
def compared(monkeypatch):
    """The numbers of pairs of texts that are compared."""
    pairs = []

    def count(queries, choices, **options):
        pairs.append(len(queries) * len(choices))
        return compare_all(queries, choices, **options)

    monkeypatch.setattr(names, "compare_all", count)
    return pairs


def test_repeated_words_are_compared_once(compared):
    rng = random.Random(0)
    keys = np.array([drawn_text(rng, 4) for _ in range(5)], object)
    for words in ("a", "a b", "new york 2", "x i x"):
        Names()(np.array([words], object), keys)
        once = sum(compared)
        compared.clear()
        Names()(np.array([f"{words} " * 500], object), keys)
        assert sum(compared) <= 2 * once
        compared.clear()


def test_the_numbers_of_a_query_are_read_in_one_pass(monkeypatch):
    read = []
    monkeypatch.setattr(name_numbers, "query_values", lambda words: read.append(len(words)) or query_values(words))
    query_numbers.__wrapped__("a ii " * 500)
    assert sum(read) <= 2 * 1000


def test_the_share_of_a_query_that_is_found_counts_each_word_as_often_as_it_occurs():
    rng, score = random.Random(1), Names()
    keys = [drawn_text(rng, 4) for _ in range(20)]
    words = NameWords(keys)
    for _ in range(30):
        text = clean_name(drawn_text(rng, 30))
        own = QueryWords.of(text)
        similar, _ = score.compare_words(own, words)
        row = dict(zip(zip(own.words, own.values, strict=True), similar, strict=True))
        each = list(zip(text.split(), query_values(text.split()), strict=True))
        lengths = np.array([len(word) for word, _ in each])
        expected = [
            sum(len(word) * row[word, value][words.codes[start : start + count]].max() for word, value in each)
            for start, count in zip(words.starts, words.counts, strict=True)
        ]
        shares, _ = score.shares(own, similar, np.zeros(len(words.vocabulary)), words, words.codes, words.counts)
        np.testing.assert_allclose(shares, np.array(expected) / lengths.sum(), rtol=1e-12)


@pytest.mark.parametrize("score", [Names(), Spelling(), TokenSetRatio(), JaroWinkler(), Levenshtein()])
def test_texts_that_are_compared_in_parts_have_the_same_similarity(score, monkeypatch):
    rng = random.Random(2)
    query = np.array([drawn_text(rng, 12) for _ in range(6)] + [None], object)
    key = np.array([drawn_text(rng, 12) for _ in range(40)] + [None], object)
    whole = score(query, key)
    monkeypatch.setattr(string_functions, "_PAIRS", 7)
    monkeypatch.setattr(string_functions, "_LETTERS", 40)
    monkeypatch.setattr(names, "_PAIRS_OF_WORDS", 11)
    checks = []
    with with_check(lambda: checks.append(1)):
        parts = score(query, key)
    np.testing.assert_allclose(parts, whole, rtol=1e-12)
    assert len(checks) > 50


@pytest.mark.parametrize("score", [Names(), Spelling(), TokenSetRatio(), Levenshtein()])
def test_the_comparison_of_two_long_texts_ends_at_a_checkpoint(score):
    rng = random.Random(3)
    query, key = (np.array(["".join(rng.choices("abcd ef", k=16_000))], object) for _ in range(2))
    seen = []

    def check():
        seen.append(1)
        if len(seen) > 20:
            raise TimeoutError

    with with_check(check), pytest.raises(TimeoutError):
        score(query, key)


def test_long_queries_find_the_rows_of_largest_similarity_by_the_index():
    rng = random.Random(4)
    keys = np.array([drawn_text(rng, rng.choice((3, 80))) for _ in range(300)], object)
    names = {name: number for number, name in enumerate(dict.fromkeys(keys))}
    index = PresentNames(NameIndex(names, np.array([names[key] for key in keys])), np.ones(len(keys), bool))
    for _ in range(5):
        text = drawn_text(rng, 120) + " county" * 40
        logits = Names()(np.array([text], object), keys)[0]
        if len(clean_name(text)) > 255:
            found = logits[index.best_rows(text, Names(), 7)]
            np.testing.assert_array_equal(np.sort(found), np.sort(logits)[-7:])


def test_long_texts_are_not_kept_in_caches():
    cached = next(cell.cell_contents for cell in clean_name.__closure__ if hasattr(cell.cell_contents, "cache_info"))
    clean_name("É")
    size = cached.cache_info().currsize
    assert clean_name("É" * 300) == "e" * 300
    assert cached.cache_info().currsize == size
