"""The comparisons of strings in pure Python, which Pyodide needs, are those of RapidFuzz."""

import random
import sys

import numpy as np
import pytest

from qkv.errors import MissingPackageError
from qkv.scores import JaroWinkler, Levenshtein, Names, Spelling, TokenSetRatio, string_distances, string_functions

rapidfuzz = pytest.importorskip("rapidfuzz")

FUNCTIONS = [
    "Levenshtein.distance",
    "Levenshtein.normalized_similarity",
    "OSA.distance",
    "OSA.normalized_similarity",
    "LCSseq.similarity",
    "Prefix.similarity",
    "JaroWinkler.normalized_similarity",
]


def pairs(seed: int, count: int = 300) -> list[tuple[str, str]]:
    """Return random texts of few letters, which share many, among them empty, equal and long ones."""
    draw = random.Random(seed)
    texts = ["".join(draw.choices("abc é λ", k=draw.choice([0, 1, 2, 5, 9, 80]))) for _ in range(count)]
    return [(text, draw.choice([text, text[::-1], draw.choice(texts)])) for text in texts]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_equals_that_of_rapidfuzz(name: str) -> None:
    owner, function = name.split(".")
    ours = getattr(getattr(string_distances, owner), function)
    theirs = getattr(getattr(rapidfuzz.distance, owner), function)
    for first, second in pairs(seed=len(name)):
        assert ours(first, second) == pytest.approx(theirs(first, second), abs=1e-12), (first, second)


def test_the_ratio_of_words_equals_that_of_rapidfuzz() -> None:
    for first, second in pairs(seed=1):
        expected = rapidfuzz.fuzz.token_set_ratio(first, second)
        assert string_distances.token_set_ratio(first, second) == pytest.approx(expected, abs=1e-9), (first, second)


@pytest.fixture
def _pyodide(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "emscripten")
    monkeypatch.setattr(string_functions, "find_spec", lambda name: None)
    string_functions.string_functions.cache_clear()
    yield
    string_functions.string_functions.cache_clear()


QUERIES = np.array(["Jon Smiht", "M. Garcia", None, ""], object)
KEYS = np.array(["John Smith", "Joan Smythe", "Maria Garcia", None, "", "John Smith"], object)
SCORES = [JaroWinkler, Levenshtein, Spelling, TokenSetRatio, Names]
EXPECTED = [score()(QUERIES, KEYS) for score in SCORES]


@pytest.mark.usefixtures("_pyodide")
def test_every_text_score_is_the_same_in_pyodide() -> None:
    assert string_functions.string_functions() is not rapidfuzz
    for score, expected in zip(SCORES, EXPECTED, strict=True):
        np.testing.assert_allclose(score()(QUERIES, KEYS), expected, atol=1e-12, err_msg=score.__name__)


def test_without_rapidfuzz_other_platforms_report_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(purpose: str, extra: str, *packages: str) -> None:
        raise MissingPackageError(purpose)

    monkeypatch.setattr(string_functions, "find_spec", lambda name: None)
    monkeypatch.setattr(string_functions, "require_packages", missing)
    with pytest.raises(MissingPackageError, match="text scores need"):
        Spelling()


def test_a_missing_query_has_a_similarity_of_0_with_every_key() -> None:
    for score in SCORES:
        for _ in range(3):  # RapidFuzz returns whatever was in memory
            np.full(18, 7e200)
            assert (score()(np.array([None], object), KEYS)[0, [0, 1, 2, 4, 5]] == 0).all(), score.__name__
