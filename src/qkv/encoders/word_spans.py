"""Find words in a text: by their spelling and occurrence, by their index, or by a range of characters."""

from __future__ import annotations

import operator
import re
import unicodedata
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from qkv.errors import DataError, KindError

WordChoice: TypeAlias = "str | int | tuple[int, int]"
"""A word of a text: its spelling, its index among the words, or its range of characters (start, stop)."""

WORD_SIGNS = (
    r"\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u0670\u06d6-\u06ed"
    r"\u0900-\u0963\u0966-\u0eff\u1000-\u109f\u200c\u200d"
)
"""Combining accents, vowel signs and joiners, which Python's \\w does not contain but which are parts of words."""
_UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
SINGLE_SIGNS = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
"""Characters of scripts without spaces: Thai, Lao, Burmese, Khmer; and Japanese and Chinese, whose characters are a
word each, as in the tokenizer of BERT."""
_LETTER = rf"(?:(?![{SINGLE_SIGNS}])(?:[^\W_]|[{WORD_SIGNS}]))"
_SPACED = rf"(?:(?![{_UNSPACED}]){_LETTER})"
_WORD = re.compile(rf"[{SINGLE_SIGNS}]|{_LETTER}+(?:['’]{_LETTER}+)*")
_SHOWN = 40


class WordSpan(NamedTuple):
    """A word and its place in a text.

    Attributes:
        word: the characters of the text.
        start: index of the first character.
        stop: index after the last character.
    """

    word: str
    start: int
    stop: int


def split_words(text: str) -> list[WordSpan]:
    """Return the words of a text: runs of letters and digits, which may contain apostrophes.

    Chinese and Japanese characters are a word each.

    Example:
        >>> [span.word for span in split_words("Don't go to the well-known bank.")]
        ["Don't", 'go', 'to', 'the', 'well', 'known', 'bank']
    """
    return [WordSpan(match.group(), *match.span()) for match in _WORD.finditer(text)]


def find_word(text: str, word: WordChoice, occurrence: int = 0) -> WordSpan:
    """Return the place of a word in a text.

    Args:
        text: the text.
        word: one of

            - the spelling of a word or of consecutive words. It is found where no letter or digit precedes or follows
              it, as written; if it does not occur as written, in any case. Scripts without spaces have no such limits.
            - an integer: the index of the word among `split_words(text)`; -1 is the last one.
            - a range of characters `(start, stop)`; spaces at its ends are left out.
        occurrence: index of the occurrence of a spelling; -1 is the last one.

    Raises:
        DataError: the text has no such word.
        KindError: an argument has the wrong type.

    Example:
        >>> find_word("The bank by the bank of the river", "bank", occurrence=1)
        WordSpan(word='bank', start=16, stop=20)
        >>> find_word("The bank by the river", -1), find_word("The bank by the river", (0, 8))
        (WordSpan(word='river', start=16, stop=21), WordSpan(word='The bank', start=0, stop=8))
    """
    if not isinstance(text, str):
        raise KindError(f"text must be a string, got {type(text).__name__}. Pass the text that contains the word.")
    number = _integer("occurrence", occurrence)
    if not isinstance(word, str) and number != 0:
        raise DataError(f"occurrence must be 0 if word is not a spelling, got {number} with word={word!r}. Omit it.")
    if isinstance(word, str):
        return _find_spelling(text, word, number)
    if isinstance(word, tuple):
        return _find_range(text, word)
    index, words = _integer("word", word), split_words(text)
    if not -len(words) <= index < len(words):
        raise DataError(
            f"word must be an index from {-len(words)} to {len(words) - 1}, got {index}. Count the words of "
            f"{_show(text)} from 0."
            if words
            else f"text must contain a word, got {_show(text)}. Pass a text with words."
        )
    return words[index]


def _find_spelling(text: str, word: str, occurrence: int) -> WordSpan:
    if not word.strip():
        raise DataError(f"word must contain a character other than spaces, got {word!r}. Pass the word to find.")
    found: list[re.Match[str]] = []
    for flags in (re.NOFLAG, re.IGNORECASE):
        found = found or list(_spelling(word, flags).finditer(text))
    if not found:
        raise DataError(
            f"word must occur in the text as a whole word, got {word!r} and the text {_show(text)}. Check the "
            "spelling, or pass its range of characters."
        )
    if not -len(found) <= occurrence < len(found):
        raise DataError(
            f"occurrence must be from {-len(found)} to {len(found) - 1}, got {occurrence}. The word {word!r} occurs "
            f"{len(found)} time{'s' * (len(found) > 1)} in {_show(text)}; count from 0."
        )
    match = found[occurrence]
    return WordSpan(match.group(), *match.span())


@lru_cache(maxsize=1024)
def _spelling(word: str, flags: re.RegexFlag) -> re.Pattern[str]:
    """Return the pattern of a word in its Unicode forms (é is one character or two), with any spaces between words."""
    forms = []
    for form in dict.fromkeys((word, unicodedata.normalize("NFC", word), unicodedata.normalize("NFD", word))):
        stripped = form.strip()
        before = rf"(?<!{_SPACED})" if re.match(_SPACED, stripped) else ""
        after = rf"(?!{_SPACED})" if re.match(_SPACED, stripped[-1]) else ""
        forms.append(before + r"\s+".join(map(re.escape, stripped.split())) + after)
    return re.compile("|".join(forms), flags)


def _find_range(text: str, word: tuple[int, ...]) -> WordSpan:
    if len(word) != 2:
        raise KindError(f"word must be a range of characters (start, stop), got {word!r}. Pass two integers.")
    start, stop = (_integer("each end of the range", end) for end in word)
    if not 0 <= start < stop <= len(text):
        raise DataError(
            f"word must be a range with 0 <= start < stop <= {len(text)}, the number of characters of the text, got "
            f"{word!r}. Count characters from 0, with stop after the last one."
        )
    part = text[start:stop]
    if not part.strip():
        raise DataError(f"word must be a range with a character other than spaces, got {word!r}. Pass a wider range.")
    start += len(part) - len(part.lstrip())
    return WordSpan(part.strip(), start, start + len(part.strip()))


def _integer(name: str, given: object) -> int:
    try:
        if isinstance(given, bool):
            raise TypeError
        return operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        either = "a string, an integer or a range (start, stop)" if name == "word" else "an integer"
        kind = type(given).__name__
        raise KindError(f"{name} must be {either}, got {given!r} of type {kind}. Pass, for example, 0.") from None


def _show(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")
