"""Comparison of text keys by `Names`: the answer comes from the rows of one key, or several keys are listed instead.

Different keys are different entities, whose values are never averaged. The best key has to be more similar to the query
than every other key by a margin:

    0.02     if both keys are one typing error away from the query
    0.01     otherwise
    0.005    if each word of the best key is in the query, and not each word of the other key
    0        if the best key has the words of the query alone, in any order, without regard to accents and signs

Two keys are also equally good if the same share of the query is found in both, and both contain other words. The best
key needs no margin if no other key begins with the query: `The Silence of t` means `The Silence of the Lambs`.

The margins were chosen with the lists for development of `benchmarks/names.py`: names that are in the list are then
answered by another name in 0.2 % of the queries instead of 0.4 %, and 0.5 % fewer are found. Where two of 17,000
surnames are one typing error away from the query and differ by less than 0.02, the best one is right in half the cases.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qkv.core.printable import quoted_key
from qkv.core.typing import Bool, Float, Int, Shaped
from qkv.database.keys.comparisons import SimilarityComparison
from qkv.scores.name_numbers import query_numbers
from qkv.scores.name_words import clean_name
from qkv.scores.names import Names
from qkv.scores.string_functions import string_functions

# Similarities that differ by less are equal.
_SAME = 1e-9
MARGIN = 0.01
"""The least lead in similarity of the best key, with exceptions."""
_MARGIN_OF_COMPLETE = 0.005
_MARGIN_OF_ONE_ERROR = 0.02


@dataclass(frozen=True, eq=False)
class NameComparison(SimilarityComparison):
    """Comparison of texts by `Names`, which finds no answer if several keys match the query about equally well."""

    def mismatches(self, query: Shaped[np.ndarray, "q ..."], nearest: Int[np.ndarray, " q"]) -> list[str | None]:
        """Return for each query the reason why its nearest row is not similar enough to match, or None if it matches.

        A key that lacks a number of the query has no similarity.
        """
        if not isinstance(self.score, Names):
            return super().mismatches(query, nearest)
        labels = self.key_columns[0].original
        best = self.nearness(query, nearest[:, None])[:, 0]
        rows = zip(query.tolist(), nearest.tolist(), best.tolist(), strict=True)
        return [
            None
            if similarity >= self.min_similarity
            else mismatch_reason(text, None if labels is None else str(labels[row]), similarity, self.min_similarity)
            for text, row, similarity in rows
        ]

    @property
    def one_key(self) -> bool:
        """True, unless the keys are compared by equality."""
        return isinstance(self.score, Names)

    def candidates(self, query: object, rows: Int[np.ndarray, " n"], default: bool) -> tuple[str, ...]:
        """Return the different keys that match one query about equally well, or an empty tuple if one matches best.

        With a normalizer that is not the default, only keys that match equally well to the last digit are returned.
        """
        text = str(query)
        first: dict[str, int] = {}
        for row in rows:
            first.setdefault(self.key[row], int(row))
        keys = list(first)
        if len(keys) < 2 or text in first or not isinstance(self.score, Names):
            return ()
        similar = np.asarray(self.score(np.array([text], object), np.array(keys, object)))[0]
        same = close_keys(self.score, text, keys, similar, default)
        if same.sum() < 2:
            return ()
        labels = self.key_columns[0].original
        return tuple(
            key if labels is None else str(labels[first[key]]) for key, tied in zip(keys, same, strict=True) if tied
        )


def close_keys(
    score: Names, text: str, keys: list[str], similar: Float[np.ndarray, " k"], margins: bool
) -> Bool[np.ndarray, " k"]:
    """Return which keys match a query about as well as the first key, which is the most similar one.

    Args:
        score: the score.
        text: the query, which equals no key.
        keys: different keys.
        similar: the similarities of the keys.
        margins: whether keys that are less similar by a margin are included.
    """
    share, complete = score.coverage(text, keys)
    asked = clean_name(text)
    begins = score.begins(asked, [clean_name(key) for key in keys]) != 0
    if (
        begins[0]
        and begins.sum() == 1
        and not (share > share[0] + _SAME).any()
        and similar[0] < score.same_words - _SAME
    ):
        return np.asarray(np.arange(len(keys)) == 0)
    same = (np.abs(share - share[0]) < _SAME) & ~complete & ~complete[0]
    margin = np.full(len(keys), _SAME)
    if margins and similar[0] < score.same_words - _SAME:
        margin[:] = MARGIN
        margin[bool(complete[0]) & ~complete] = _MARGIN_OF_COMPLETE
        alignment = string_functions().distance.OSA
        errors = np.array([alignment.distance(asked, clean_name(key)) for key in keys])
        margin[bool(errors[0] <= 1) & (errors <= 1)] = _MARGIN_OF_ONE_ERROR
    return np.asarray(same | (similar[0] - similar < margin))


def mismatch_reason(text: str, label: str | None, similarity: float, min_similarity: float) -> str:
    """Return why no key matches a text.

    Example:
        >>> mismatch_reason("rocky vi", "Rocky II", 0.0, 0.8)
        'no key contains VI'
        >>> mismatch_reason("12 main street", "12 Oak Lane", 0.5, 0.8)
        "no similar key contains 12: the nearest key, '12 Oak Lane', has similarity 0.50, under 0.8"
    """
    numbers = " and ".join(number.text for number in query_numbers(text))
    if numbers and similarity == 0:
        return f"no key contains {numbers}"
    subject = ("no similar key contains " + numbers + ": ") * bool(numbers) + "the nearest key"
    nearest = "" if label is None else f", {quoted_key(label)},"
    return f"{subject}{nearest} has similarity {similarity:.2f}, under {min_similarity:g}"
