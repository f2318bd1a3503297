"""Compute comparison vectors of pairs of rows, whose elements are similarities in [0, 1] of columns and records.

    text     spelling      mean of Jaro–Winkler and optimal string alignment (scores.Spelling)
             words         cosine of tf-idf over words
             letters       cosine of tf-idf over letter trigrams
             contained     shared IDF mass relative to the smaller side: Σ idf of shared words / min Σ idf
             shared        shared IDF mass relative to the larger side: Σ idf of shared words / max Σ idf
             part          contained, over letter trigrams
             digits        contained, over words with a digit
    code     equal         the same letters and digits
             spelling      as for texts
             ending        the last four characters are equal
    number   equal, near   e^(−|a − b| / s), with s the standard deviation of the column
             ratio         1 − |a − b| / max(|a|, |b|)
    date     equal, near   as for numbers
             spelling      of the digits of the date, for typing errors
    record   letters, words, contained, over all texts of a row
    any      missing       1 if either cell is missing; the column's other similarities are then 0

Equal cells have the value 1 in all similarities. Inverse document frequencies are computed over both tables.

The agreement of two cells in a column is a number in [0, 1] and a level:

    text     max(spelling, 0.95 · contained)       number   max(equal, 0.95 · ratio)
    code     spelling                              date     max(equal, 0.95 · spelling)

The factor 0.95 reserves 1 for equal cells. Levels are intervals of the agreement; level 0 means that a cell is
missing.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sparse
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfVectorizer

from qkv.core.typing import Float, Int, Shaped
from qkv.join.compared_columns import ComparedAs, ComparedColumn, PairIntegers, PairNumbers
from qkv.scores.string_functions import compare_all

_ElementwiseFunction: TypeAlias = Callable[
    [Shaped[np.ndarray, "*left"], Shaped[np.ndarray, "*right"]], Shaped[np.ndarray, "*pairs"]
]


@dataclass(frozen=True)
class PairGrid:
    """Pairs of the left rows `start:stop` with all right rows; results have shape `(stop − start, right rows)`."""

    start: int
    stop: int

    def inner_products(self, left: csr_matrix, right: csr_matrix) -> Float[np.ndarray, "rows right"]:
        """Return the inner products of the left rows `start:stop` with all right rows."""
        return np.asarray((left[self.start : self.stop] @ right.T).toarray())

    def string_similarity(
        self, scorer: Callable[..., float], left: Shaped[np.ndarray, " left"], right: Shaped[np.ndarray, " right"]
    ) -> Float[np.ndarray, "rows right"]:
        """Return the similarity of left strings `start:stop` to each right string, computed by a RapidFuzz scorer."""
        return compare_all(left[self.start : self.stop], right, scorer=scorer, dtype="float32")

    def apply(
        self, function: _ElementwiseFunction, left: Shaped[np.ndarray, " left"], right: Shaped[np.ndarray, " right"]
    ) -> Shaped[np.ndarray, "rows right"]:
        """Return the value of an elementwise function for each of the left cells `start:stop` and each right cell."""
        return np.asarray(function(left[self.start : self.stop, None], right[None, :]))


@dataclass(frozen=True, eq=False)
class PairList:
    """Pairs of left row `rows[i]` with right row `keys[i]`; results have shape `(pairs,)`."""

    rows: PairIntegers
    keys: PairIntegers

    def inner_products(self, left: csr_matrix, right: csr_matrix) -> PairNumbers:
        """Return the inner product of left row `rows[i]` and right row `keys[i]` for each i."""
        return np.asarray(left[self.rows].multiply(right[self.keys]).sum(axis=1)).reshape(-1)

    def string_similarity(
        self, scorer: Callable[..., float], left: Shaped[np.ndarray, " left"], right: Shaped[np.ndarray, " right"]
    ) -> PairNumbers:
        """Return the similarity of the two strings of each pair, computed by a RapidFuzz scorer."""
        from rapidfuzz import process

        return np.asarray(process.cpdist(left[self.rows], right[self.keys], scorer=scorer, dtype="float32"))

    def apply(
        self, function: _ElementwiseFunction, left: Shaped[np.ndarray, " left"], right: Shaped[np.ndarray, " right"]
    ) -> Shaped[np.ndarray, " pairs"]:
        """Return the value of an elementwise function for the two cells of each pair."""
        return np.asarray(function(left[self.rows], right[self.keys]))


PairSet: TypeAlias = PairGrid | PairList


LEVELS = (0.6, 0.8, 0.92, 0.999)
"""Boundaries of the levels; the last level is for equal cells."""
_NOT_EQUAL = 0.95
_BEYOND = 1e-3
_LOG_ODDS_SCALE = 5.0
"""Divisor that brings log odds to the scale of the comparison vectors, so that both are regularized equally."""


def agreement(
    measures: ComparisonVectors, found: Float[np.ndarray, "*pairs similarities"]
) -> Float[np.ndarray, "*pairs columns"]:
    """Return the agreement of each pair of rows in each column, `(*pairs, columns)`, which is NaN for missing cells."""
    columns, start = [], 0
    for field in measures.fields:
        kind = _MEASURES[field.kind]
        own = {name: found[..., start + place] for place, name in enumerate(kind.names)}
        start += len(kind.names)
        columns.append(np.where(own["missing"] > 0, np.nan, kind.agreement(own)))
    return np.stack(columns, axis=-1)


def agreement_levels(agreed: Float[np.ndarray, "*pairs columns"]) -> Int[np.ndarray, "*pairs columns"]:
    """Return the level of each agreement as int8, from 1 to 5. Missing cells (NaN) have level 0.

    Example:
        >>> agreement_levels(np.array([[np.nan, 0.1, 0.85, 1.0]])).tolist()
        [[0, 1, 3, 5]]
    """
    found = np.searchsorted(np.array(LEVELS), agreed, side="right") + 1
    return np.where(np.isnan(agreed), 0, found).astype(np.int8)


def rarity(agreed: Float[np.ndarray, "pairs columns"], random: Float[np.ndarray, "random columns"]) -> PairNumbers:
    """Return Σ −log(share of random pairs that agree at least as well) over the columns (Fisher's method).

    A column in which unrelated rows often agree, such as a price or a town, thus counts less than a title. A missing
    cell counts 1, the mean over random pairs. Beyond the rarest agreement of random pairs, the agreement decides.

    Example:
        >>> random = np.linspace(0, 1, 101)[:, None]
        >>> rarity(np.array([[0.5], [0.9], [np.nan]]), random).round(2).tolist()
        [0.67, 2.14, 1.0]
    """
    total = np.zeros(len(agreed))
    for column, known in zip(agreed.T, random.T, strict=True):
        ordered = np.sort(known[~np.isnan(known)])
        above = len(ordered) - np.searchsorted(ordered, column, side="left")
        own = np.log((len(ordered) + 1) / (above + 1)) + column * _BEYOND
        total += np.where(np.isnan(column), 1.0, own)
    return total


def level_log_odds(
    measures: ComparisonVectors,
    found: Float[np.ndarray, "pairs similarities"],
    log_odds: Float[np.ndarray, "columns levels"],
) -> Float[np.ndarray, "pairs columns"]:
    """Return the log odds of the agreement of each pair in each column, `(pairs, columns)`.

    Args:
        measures: comparison of the two tables.
        found: comparison vectors of the pairs.
        log_odds: log odds of each agreement level, `(columns, levels)`.
    """
    level = agreement_levels(agreement(measures, found))
    return np.stack([log_odds[column][level[:, column]] for column in range(level.shape[1])], axis=1)


def append_log_odds(
    found: Float[np.ndarray, "pairs similarities"], log_odds: Float[np.ndarray, "pairs columns"]
) -> Float[np.ndarray, "pairs similarities+columns"]:
    """Return the comparison vectors `found` followed by `log_odds / 5`, `(pairs, similarities + columns)`."""
    return np.concatenate([found, log_odds / _LOG_ODDS_SCALE], axis=1, dtype=np.float64)


def log_odds_weights(similarities: int, columns: int) -> Float[np.ndarray, " weights"]:
    """Return the weights of such vectors for which the score is the sum of the log odds of all columns.

    Example:
        >>> log_odds_weights(2, 1).tolist()
        [0.0, 0.0, 5.0]
    """
    return np.concatenate([np.zeros(similarities), np.full(columns, _LOG_ODDS_SCALE)])


_RECORD = ("letters", "words", "contained")
_ENDING = 4


@dataclass(frozen=True, eq=False)
class _TfidfRows:
    """Tf-idf vectors of one text for each row of two tables, as rows of sparse matrices.

    Attributes:
        left, right: tf-idf rows of unit length.
        left_root_idf, right_root_idf: √idf of the terms of each row; inner products are the IDF mass of shared terms.
        left_total, right_total: IDF mass of each row.
    """

    left: sparse.csr_matrix
    right: sparse.csr_matrix
    left_root_idf: sparse.csr_matrix
    right_root_idf: sparse.csr_matrix
    left_total: Float[np.ndarray, " left"]
    right_total: Float[np.ndarray, " right"]


def tfidf_rows(left: Shaped[np.ndarray, " left"], right: Shaped[np.ndarray, " right"], letters: bool) -> _TfidfRows:
    """Return tf-idf vectors of the texts of both tables, over letter trigrams if `letters` is True, else over words."""
    texts = np.concatenate([left, right])
    vectorizer = TfidfVectorizer(
        analyzer="char_wb" if letters else "word",
        ngram_range=(3, 3) if letters else (1, 1),
        token_pattern=None if letters else r"\S+",
        lowercase=False,
    )
    try:
        unit, idf = vectorizer.fit_transform(texts), vectorizer.idf_
    except ValueError:  # no text contains a word
        unit, idf = sparse.csr_matrix((len(texts), 1)), np.ones(1)
    root_idf = ((unit != 0) @ sparse.diags(np.sqrt(idf))).tocsr()
    total = np.asarray(root_idf.multiply(root_idf).sum(axis=1)).reshape(-1)
    n = len(left)
    return _TfidfRows(unit[:n], unit[n:], root_idf[:n], root_idf[n:], total[:n], total[n:])


class ComparisonVectors:
    """Comparison of the rows of two tables, which computes a vector of similarities for each pair of rows.

    Attributes:
        names: `(column, similarity)` of each element of a comparison vector.
    """

    def __init__(self, fields: list[ComparedColumn]) -> None:
        self.fields = fields
        texts = [field for field in fields if field.kind == "text"]
        self.names = tuple((f.name, measure) for f in fields for measure in _MEASURES[f.kind].names)
        self._words = {f.name: tfidf_rows(f.left, f.right, letters=False) for f in texts}
        self._trigram_vectors = {f.name: tfidf_rows(f.left, f.right, letters=True) for f in texts}
        self._digits = {f.name: tfidf_rows(_digit_words(f.left), _digit_words(f.right), letters=False) for f in texts}
        self.record: tuple[_TfidfRows, _TfidfRows] | None = None
        if len(texts) > 1:
            left, right = (join_cells([getattr(f, side) for f in texts]) for side in ("left", "right"))
            self.record = (tfidf_rows(left, right, letters=True), tfidf_rows(left, right, letters=False))
            self.names += tuple(("", measure) for measure in _RECORD)

    @property
    def kinds(self) -> dict[str, ComparedAs]:
        """Kind of each compared column, by its name in the left table."""
        return {field.name: field.kind for field in self.fields}

    @staticmethod
    def count(kinds: list[ComparedAs]) -> int:
        """Return the number of elements of a comparison vector for columns of the kinds `kinds`."""
        record = len(_RECORD) if kinds.count("text") > 1 else 0
        return sum(len(_MEASURES[kind].names) for kind in kinds) + record

    def compute(self, pairs: PairSet) -> Float[np.ndarray, "*pairs similarities"]:
        """Return the comparison vector of each pair, `(*pairs, similarities)`, in float32."""
        parts = [part for field in self.fields for part in self._field(field, pairs)]
        if self.record is not None:
            letters, words = self.record
            parts += [
                pairs.inner_products(letters.left, letters.right),
                pairs.inner_products(words.left, words.right),
                *_shared_idf(words, pairs)[:1],
            ]
        return np.stack([np.asarray(part, np.float32) for part in parts], axis=-1)

    def _field(self, field: ComparedColumn, pairs: PairSet) -> list[Shaped[np.ndarray, "*pairs"]]:
        missing = pairs.apply(np.logical_or, field.left_missing, field.right_missing)
        parts = _MEASURES[field.kind].compute(self, field, pairs)
        return [np.where(missing, 0.0, part) for part in parts] + [missing]

    def _text(self, field: ComparedColumn, pairs: PairSet) -> list[Shaped[np.ndarray, "*pairs"]]:
        words, letters = self._words[field.name], self._trigram_vectors[field.name]
        return [
            _spelling(pairs, field.left, field.right),
            pairs.inner_products(words.left, words.right),
            pairs.inner_products(letters.left, letters.right),
            *_shared_idf(words, pairs),
            _shared_idf(letters, pairs)[0],
            _shared_idf(self._digits[field.name], pairs)[0],
        ]

    def _code(self, field: ComparedColumn, pairs: PairSet) -> list[Shaped[np.ndarray, "*pairs"]]:
        ends = [np.array([cell[-_ENDING:] for cell in side], object) for side in (field.left, field.right)]
        return [
            pairs.apply(np.equal, field.left, field.right),
            _spelling(pairs, field.left, field.right),
            pairs.apply(np.equal, *ends),
        ]

    def _number(self, field: ComparedColumn, pairs: PairSet) -> list[Shaped[np.ndarray, "*pairs"]]:
        return [*self._near(field, pairs), pairs.apply(_ratio, field.left, field.right)]

    def _date(self, field: ComparedColumn, pairs: PairSet) -> list[Shaped[np.ndarray, "*pairs"]]:
        sides = [_day_digits(side) for side in (field.left, field.right)]
        return [*self._near(field, pairs), _spelling(pairs, *sides)]

    def _near(self, field: ComparedColumn, pairs: PairSet) -> list[Shaped[np.ndarray, "*pairs"]]:
        present = np.concatenate([field.left[~field.left_missing], field.right[~field.right_missing]])
        scale = float(present.std()) if len(present) else 0.0
        distance = pairs.apply(lambda a, b: np.abs(a - b), field.left, field.right)
        return [distance == 0, np.exp(-distance / (scale or 1.0))]


class _Measures(NamedTuple):
    """How a column is compared: the names of its similarities, their computation, and the agreement that they show."""

    names: tuple[str, ...]
    compute: Callable[[ComparisonVectors, ComparedColumn, PairSet], list[Shaped[np.ndarray, "*pairs"]]]
    agreement: Callable[[Mapping[str, Float[np.ndarray, "*pairs"]]], Float[np.ndarray, "*pairs"]]


_MEASURES: dict[ComparedAs, _Measures] = {
    "text": _Measures(
        ("spelling", "words", "letters", "contained", "shared", "part", "digits", "missing"),
        ComparisonVectors._text,
        lambda own: np.maximum(own["spelling"], _NOT_EQUAL * own["contained"]),
    ),
    "code": _Measures(("equal", "spelling", "ending", "missing"), ComparisonVectors._code, lambda own: own["spelling"]),
    "number": _Measures(
        ("equal", "near", "ratio", "missing"),
        ComparisonVectors._number,
        lambda own: np.maximum(own["equal"], _NOT_EQUAL * own["ratio"]),
    ),
    "date": _Measures(
        ("equal", "near", "spelling", "missing"),
        ComparisonVectors._date,
        lambda own: np.maximum(own["equal"], _NOT_EQUAL * own["spelling"]),
    ),
}


def join_cells(columns: Sequence[Sequence[str] | Shaped[np.ndarray, " rows"]]) -> Shaped[np.ndarray, " rows"]:
    """Return one string for each row, with its non-empty cells separated by spaces."""
    return np.array([" ".join(filter(None, row)) for row in zip(*columns, strict=True)], dtype=object)


def _spelling(
    pairs: PairSet, left: Shaped[np.ndarray, " left"], right: Shaped[np.ndarray, " right"]
) -> Float[np.ndarray, "*pairs"]:
    from rapidfuzz import distance

    scorers = (distance.JaroWinkler.normalized_similarity, distance.OSA.normalized_similarity)
    first, second = (pairs.string_similarity(scorer, left, right) for scorer in scorers)
    return np.asarray((first + second) / 2)


def _shared_idf(words: _TfidfRows, pairs: PairSet) -> list[Float[np.ndarray, "*pairs"]]:
    """Return two arrays: the IDF mass that each pair shares, divided by the smaller and by the larger mass of its rows.

    The IDF mass is the sum of the inverse document frequencies of the terms.
    """
    shared = pairs.inner_products(words.left_root_idf, words.right_root_idf)
    sides = words.left_total, words.right_total
    return [_divide(shared, pairs.apply(least, *sides)) for least in (np.minimum, np.maximum)]


def _divide(part: Float[np.ndarray, "*pairs"], whole: Float[np.ndarray, "*pairs"]) -> Float[np.ndarray, "*pairs"]:
    return np.asarray(part / np.where(whole > 0, whole, 1.0))


def _ratio(left: Float[np.ndarray, "*#pairs"], right: Float[np.ndarray, "*#pairs"]) -> Float[np.ndarray, "*pairs"]:
    most = np.maximum(np.abs(left), np.abs(right))
    return np.asarray(np.maximum(1.0 - np.abs(left - right) / np.where(most > 0, most, 1.0), 0.0))


def _day_digits(days: Float[np.ndarray, " rows"]) -> Shaped[np.ndarray, " rows"]:
    origin = dt.datetime(1970, 1, 1)
    shown = {day: f"{origin + dt.timedelta(days=float(day)):%Y%m%d}" for day in np.unique(days)}
    return np.array([shown[day] for day in days], dtype=object)


def _digit_words(texts: Shaped[np.ndarray, " rows"]) -> Shaped[np.ndarray, " rows"]:
    """Return, for each text, a string of its words that contain a digit, separated by spaces."""
    return np.array(
        [" ".join(word for word in text.split() if any(sign.isdigit() for sign in word)) for text in texts], object
    )
