"""How alike two cells are: several numbers in [0, 1] for each column, and some for the record as a whole.

    text     spelling      mean of Jaro–Winkler and optimal string alignment (scores.Spelling)
             words         cosine of tf-idf over words
             letters       cosine of tf-idf over three letters in a row
             contained     Σ idf of the shared words / Σ idf of the words of the side that has less
             shared        Σ idf of the shared words / Σ idf of the words of the side that has more
             part          contained, of three letters in a row
             digits        contained, of the words with a digit in them
    code     equal         the same letters and digits
             spelling      as of texts
             ending        the last four are the same
    number   equal, near   e^(−|a − b| / s), with s the standard deviation of the column
             ratio         1 − |a − b| / max(|a|, |b|)
    moment   equal, near   as of numbers
             spelling      of the digits of the day, for those mistyped
    record   letters, words, contained, of all texts of a row together
    any      missing       1 where either cell is; the column's other measures are then 0

Equal cells have 1 in all but `missing`. Inverse document frequencies are those of the two tables together.
"""

import datetime as dt
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.errors import MissingPackageError
from qkv.join.compared_columns import ComparedColumn, Kind
from qkv.join.pair_sets import PairSet

try:
    import scipy.sparse as sparse
    from sklearn.feature_extraction.text import CountVectorizer
except ImportError:
    raise MissingPackageError(
        'a join needs scikit-learn, which is not installed. Run: pip install "qkv[sklearn]"'
    ) from None

__all__ = ["ComparisonVectors", "Weighed", "weigh"]

_MEASURES = {
    "text": ("spelling", "words", "letters", "contained", "shared", "part", "digits", "missing"),
    "code": ("equal", "spelling", "ending", "missing"),
    "number": ("equal", "near", "ratio", "missing"),
    "moment": ("equal", "near", "spelling", "missing"),
    "record": ("letters", "words", "contained"),
}
_ENDING = 4


@dataclass(frozen=True, eq=False)
class Weighed:
    """Texts of both tables as sparse rows.

    Fields:
        left, right: tf-idf, each row of length 1.
        left_there, right_there: √idf where a term stands: their products are the idf of what is shared.
        left_total, right_total: Σ idf of the terms of each row.
    """

    left: Any
    right: Any
    left_there: Any
    right_there: Any
    left_total: np.ndarray
    right_total: np.ndarray


def weigh(left: np.ndarray, right: np.ndarray, letters: bool) -> Weighed:
    """Weigh words, or letters three in a row, by how few rows of the two tables have them."""
    count = CountVectorizer(
        analyzer="char_wb" if letters else "word",
        ngram_range=(3, 3) if letters else (1, 1),
        token_pattern=None if letters else r"\S+",
        lowercase=False,
        dtype=np.float64,
    )
    try:
        counts = count.fit_transform(np.concatenate([left, right])).tocsr()
    except ValueError:  # there is not one word
        counts = sparse.csr_matrix((len(left) + len(right), 1))
    there = counts.copy()
    there.data[:] = 1.0
    idf = np.log((1 + counts.shape[0]) / (1 + np.asarray(there.sum(axis=0)).reshape(-1))) + 1.0
    tfidf = counts @ sparse.diags(idf)
    length = np.sqrt(np.asarray(tfidf.multiply(tfidf).sum(axis=1)).reshape(-1))
    unit = (sparse.diags(1.0 / np.where(length > 0, length, 1.0)) @ tfidf).tocsr()
    there = (there @ sparse.diags(np.sqrt(idf))).tocsr()
    total = np.asarray(there.multiply(there).sum(axis=1)).reshape(-1)
    n = len(left)
    return Weighed(unit[:n], unit[n:], there[:n], there[n:], total[:n], total[n:])


class ComparisonVectors:
    """All measures of the fields of two tables.

    Attributes:
        names: `(column, measure)` of each, in the order of the last axis of `of`.
    """

    def __init__(self, fields: list[ComparedColumn]) -> None:
        self.fields = fields
        texts = [field for field in fields if field.kind == "text"]
        self.names = tuple((f.name, measure) for f in fields for measure in _MEASURES[f.kind])
        self._words = {f.name: weigh(f.left, f.right, letters=False) for f in texts}
        self._letters = {f.name: weigh(f.left, f.right, letters=True) for f in texts}
        self._digits = {f.name: weigh(_digit_words(f.left), _digit_words(f.right), letters=False) for f in texts}
        self.record: tuple[Weighed, Weighed] | None = None
        if len(texts) > 1:
            left, right = (_together([getattr(f, side) for f in texts]) for side in ("left", "right"))
            self.record = (weigh(left, right, letters=True), weigh(left, right, letters=False))
            self.names += tuple(("", measure) for measure in _MEASURES["record"])

    @staticmethod
    def count(kinds: list[Kind]) -> int:
        """How many measures columns of these kinds have together."""
        record = len(_MEASURES["record"]) if kinds.count("text") > 1 else 0
        return sum(len(_MEASURES[kind]) for kind in kinds) + record

    def of(self, pairs: PairSet) -> np.ndarray:
        """The measures of pairs, `(*pairs, measures)` float32."""
        parts = [part for field in self.fields for part in self._field(field, pairs)]
        if self.record is not None:
            letters, words = self.record
            parts += [
                pairs.dot(letters.left, letters.right),
                pairs.dot(words.left, words.right),
                *_shares(words, pairs)[:1],
            ]
        return np.stack([np.asarray(part, np.float32) for part in parts], axis=-1)

    def _field(self, field: ComparedColumn, pairs: PairSet) -> list[np.ndarray]:
        missing = pairs.of(np.logical_or, field.left_missing, field.right_missing)
        parts = _KINDS[field.kind](self, field, pairs)
        return [np.where(missing, 0.0, part) for part in parts] + [missing]

    def _text(self, field: ComparedColumn, pairs: PairSet) -> list[np.ndarray]:
        words, letters = self._words[field.name], self._letters[field.name]
        return [
            _spelling(pairs, field.left, field.right),
            pairs.dot(words.left, words.right),
            pairs.dot(letters.left, letters.right),
            *_shares(words, pairs),
            _shares(letters, pairs)[0],
            _shares(self._digits[field.name], pairs)[0],
        ]

    def _code(self, field: ComparedColumn, pairs: PairSet) -> list[np.ndarray]:
        ends = [np.array([cell[-_ENDING:] for cell in side], object) for side in (field.left, field.right)]
        return [
            pairs.of(np.equal, field.left, field.right),
            _spelling(pairs, field.left, field.right),
            pairs.of(np.equal, *ends),
        ]

    def _number(self, field: ComparedColumn, pairs: PairSet) -> list[np.ndarray]:
        return [*self._near(field, pairs), pairs.of(_ratio, field.left, field.right)]

    def _moment(self, field: ComparedColumn, pairs: PairSet) -> list[np.ndarray]:
        sides = [_day_digits(side) for side in (field.left, field.right)]
        return [*self._near(field, pairs), _spelling(pairs, *sides)]

    def _near(self, field: ComparedColumn, pairs: PairSet) -> list[np.ndarray]:
        present = np.concatenate([field.left[~field.left_missing], field.right[~field.right_missing]])
        scale = float(present.std()) if len(present) else 0.0
        distance = pairs.of(lambda a, b: np.abs(a - b), field.left, field.right)
        return [distance == 0, np.exp(-distance / (scale or 1.0))]


_KINDS = {
    "text": ComparisonVectors._text,
    "code": ComparisonVectors._code,
    "number": ComparisonVectors._number,
    "moment": ComparisonVectors._moment,
}


def _together(columns: list[np.ndarray]) -> np.ndarray:
    return np.array([" ".join(filter(None, row)) for row in zip(*columns, strict=True)], dtype=object)


def _spelling(pairs: PairSet, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    from rapidfuzz import distance

    scorers = (distance.JaroWinkler.normalized_similarity, distance.OSA.normalized_similarity)
    first, second = (pairs.texts(scorer, left, right) for scorer in scorers)
    return np.asarray((first + second) / 2)


def _shares(words: Weighed, pairs: PairSet) -> list[np.ndarray]:
    """Of the idf of the words of the side that has less, and of that which has more, how much is shared."""
    shared = pairs.dot(words.left_there, words.right_there)
    sides = words.left_total, words.right_total
    return [_divide(shared, pairs.of(least, *sides)) for least in (np.minimum, np.maximum)]


def _divide(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.asarray(part / np.where(whole > 0, whole, 1.0))


def _ratio(left: Any, right: Any) -> Any:
    most = np.maximum(np.abs(left), np.abs(right))
    return np.asarray(np.maximum(1.0 - np.abs(left - right) / np.where(most > 0, most, 1.0), 0.0))


def _day_digits(days: np.ndarray) -> np.ndarray:
    origin = dt.datetime(1970, 1, 1)
    shown = {day: f"{origin + dt.timedelta(days=float(day)):%Y%m%d}" for day in np.unique(days)}
    return np.array([shown[day] for day in days], dtype=object)


def _digit_words(texts: np.ndarray) -> np.ndarray:
    """Only the words with a digit in them."""
    return np.array(
        [" ".join(word for word in text.split() if any(sign.isdigit() for sign in word)) for text in texts],
        object,
    )
