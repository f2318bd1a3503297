"""Names of digits: four names in seven phrases, some of which occur in no caption."""

from dataclasses import dataclass

import numpy as np

from qkv.errors import OptionError

__all__ = ["NAMES", "Wordings"]

NAMES = (
    ("0", "zero", "nul", "null"),
    ("1", "one", "un", "eins"),
    ("2", "two", "deux", "zwei"),
    ("3", "three", "trois", "drei"),
    ("4", "four", "quatre", "vier"),
    ("5", "five", "cinq", "fünf"),
    ("6", "six", "sechs", "half-dozen"),
    ("7", "seven", "sept", "sieben"),
    ("8", "eight", "huit", "acht"),
    ("9", "nine", "neuf", "neun"),
)
_FRAMES = (
    "{}", "a {}", "the digit {}", "number {}", "a picture of {}", "somebody wrote {} here", "it looks like {}"
)  # fmt: skip
_KEPT_OUT = 7
"""Number of the 28 wordings of each digit that occur in no caption."""


@dataclass(frozen=True)
class Wordings:
    """All phrases, and those that may be captions.

    Attributes:
        texts: every wording.
        digits: the meaning of each wording, which the model does not get.
        captions: indices of the wordings that may be captions.
        asked: indices of the wordings that occur in queries only.
        vocabulary: all words; the model gets their indices.
    """

    texts: list[str]
    digits: np.ndarray
    captions: np.ndarray
    asked: np.ndarray
    vocabulary: dict[str, int]

    @classmethod
    def drawn(cls, seed: int) -> "Wordings":
        """Draw phrases of `NAMES` and the ones held out; every name also occurs in captions."""
        rng = np.random.default_rng(seed)
        texts = [frame.format(name) for names in NAMES for name in names for frame in _FRAMES]
        digits = np.repeat(np.arange(len(NAMES)), len(texts) // len(NAMES))
        out = np.concatenate(
            [rng.choice(np.flatnonzero(digits == digit), _KEPT_OUT, replace=False) for digit in range(10)]
        )
        kept = np.setdiff1d(np.arange(len(texts)), out)
        words = sorted({word for text in texts for word in text.split()})
        vocabulary = {word: index + 1 for index, word in enumerate(words)}  # 0 is padding
        return cls(texts, digits, kept, np.sort(out), vocabulary)

    def numbered(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return words as indices `(texts, longest)`, and the number of words of each text.

        Raises:
            OptionError: a text has no words, or a word that occurs in no caption.
        """
        split = [text.lower().split() for text in texts]
        for text, words in zip(texts, split, strict=True):
            unknown = [word for word in words if word not in self.vocabulary]
            if unknown or not words:
                got = f"{text!r} with {', '.join(map(repr, unknown))}" if unknown else repr(text)
                known = ", ".join(self.vocabulary)
                raise OptionError(f"wording must consist of words that occur in captions ({known}), got {got}.")
        lengths = np.array([len(words) for words in split])
        numbers = np.zeros((len(texts), lengths.max()), dtype=np.int64)
        for row, words in zip(numbers, split, strict=True):
            row[: len(words)] = [self.vocabulary[word] for word in words]
        return numbers, lengths
