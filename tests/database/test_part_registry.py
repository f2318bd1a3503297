"""Scores and normalizers by name."""

from dataclasses import dataclass

import pytest

from qkv import normalizers, scores
from qkv.database.keys.part_registry import _build, normalizer_names, parse_normalizer, parse_score, score_names
from qkv.errors import OptionError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("jaro-winkler", scores.JaroWinkler()),
        ("JaroWinkler", scores.JaroWinkler()),
        ("jaro_winkler", scores.JaroWinkler()),
        ("exact", scores.Exact()),
        ("gaussian:0.1", scores.Gaussian(0.1)),
        ("laplace:2", scores.Laplace(2)),
        ("cosine", scores.Cosine()),
        ("cosine:0.5", scores.Cosine(0.5)),
        ("scaled-dot", scores.ScaledDot()),
        ("constant", scores.Constant()),
    ],
)
def test_a_score_is_its_class_in_words_and_its_numbers(text, expected):
    assert str(parse_score(text).build()) == str(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("softmax", normalizers.Softmax()),
        ("softmax:0.02", normalizers.Softmax(0.02)),
        ("topk:10", normalizers.TopK(10)),
        ("top-k:10", normalizers.TopK(10)),
        ("topk:10:0.02", normalizers.TopK(10, normalizer=normalizers.Softmax(0.02))),
        ("topk:10:sparsemax", normalizers.TopK(10, normalizer=normalizers.Sparsemax())),
        ("topk:10:softmax:0.5", normalizers.TopK(10, normalizer=normalizers.Softmax(0.5))),
        ("sum", normalizers.Sum()),
        ("entmax15", normalizers.Entmax15()),
    ],
)
def test_a_normalizer_is_its_class_in_words_and_its_numbers(text, expected):
    assert str(parse_normalizer(text)) == str(expected)


@pytest.mark.parametrize("name", score_names())
def test_every_listed_score_can_be_built(name):
    assert isinstance(parse_score(name).build(), scores.Score)


@pytest.mark.parametrize("name", normalizer_names())
def test_every_listed_normalizer_can_be_built(name):
    assert isinstance(parse_normalizer(f"{name}:3" if "k" in name and "top" in name else name), normalizers.Normalizer)


def test_every_exported_normalizer_has_a_name():
    exported = {name.lower() for name in normalizers.__all__} - {"normalizer", "normalizers", "custom"}
    assert {name.replace("-", "") for name in normalizer_names()} == exported


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("by-column", "must have only numbers as required parameters"),
        ("exact:3", "'exact' must be followed by no number, got 1"),
    ],
)
def test_a_score_that_cannot_be_built_is_one_sentence(text, said):
    with pytest.raises(OptionError, match=said) as error:
        parse_score(text).build()
    assert "\n" not in str(error.value)


def test_too_few_numbers_are_refused_with_those_given():
    @dataclass(frozen=True)
    class Two:
        first: float
        second: float

    for numbers, given in (((2.5,), "2.5"), ((), "none")):
        with pytest.raises(OptionError, match=rf"after the name 'two' must fit its parameters, got {given}, but"):
            _build(Two, numbers)
