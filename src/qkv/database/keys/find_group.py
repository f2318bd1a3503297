"""Search of the group of rows that a query with texts beside other key columns asks for.

The texts of a query, such as shop and city, name one group of rows with equal texts. They are compared by `Names`, and
a text that equals a key of its column means this key. The group with the largest sum of similarities answers, if each
similarity is large enough; the query then gets the texts of this group, so that the answer comes from its rows
alone, as if they had been selected first. If several groups match about equally, they are listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from qkv.core.printable import quoted_key
from qkv.core.progress import checkpoint
from qkv.core.typing import Bool, Int, Shaped
from qkv.database.keys.comparisons import Comparison, EqualityComparison, MixedComparison
from qkv.database.keys.name_comparison import MARGIN, NameComparison, close_keys, mismatch_reason
from qkv.database.keys.queries import Queries
from qkv.scores import ByColumn, Exact, Names

_QUERIES_AT_ONCE = 64


@dataclass(frozen=True)
class FoundGroup:
    """The group of a query: its texts, or the texts of several groups, or the reason why there is none.

    Attributes:
        texts: the texts of the group, one per column of texts; empty if there is no single group.
        candidates: the groups that match about equally; empty if one matches best.
        reason: why no group matches; "" if one or several do, or if another column decides.
    """

    texts: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()
    reason: str = ""


class GroupFinder:
    """Finder of the groups of some queries, which reads rows in parts.

    Args:
        comparison: the comparison.
        queries: the parsed queries.
    """

    def __init__(self, comparison: MixedComparison, queries: Queries) -> None:
        self._query = comparison.query_array(queries.columns)
        self._texts = [(name, part) for name, part in comparison.parts if isinstance(part, NameComparison)]
        self._equal = [name for name, part in comparison.parts if _compares_equality(part)]
        self._missing = queries.missing
        count = len(queries)
        # For each query the groups with sufficient similarities, and their names in the table.
        self._groups: list[dict[tuple[str, ...], tuple[tuple[float, ...], str]]] = [{} for _ in range(count)]
        self._nearest = [[(-1.0, "")] * len(self._texts) for _ in range(count)]
        self._occurs = np.zeros((count, len(self._texts)), bool)
        # Whether some row equals the query in the columns that are compared by equality.
        self._equals_some = np.zeros(count, bool)

    @property
    def score(self) -> str:
        """The score of the texts in words."""
        return f"{Names()} of {', '.join(name for name, _ in self._texts)}"

    def update(self, comparison: MixedComparison, present: Bool[np.ndarray, " rows"]) -> None:
        """Compare the queries with the present rows of a comparison."""
        rows = np.flatnonzero(present)
        if not len(rows):
            return
        key, parts = comparison.key, dict(comparison.parts)
        codes, firsts, keys = [], [], []
        for name, _ in self._texts:
            numbers: dict[str, int] = {}
            own = np.array([numbers.setdefault(text, len(numbers)) for text in key[name][rows].tolist()], np.int64)
            codes.append(own)
            keys.append(list(numbers))
            firsts.append(rows[np.unique(own, return_index=True)[1]])
        labels = [
            [str(text) for text in (part.key if original is None else np.asarray(original, object))[first].tolist()]
            for (name, _), first in zip(self._texts, firsts, strict=True)
            for part in [parts[name]]
            for original in [part.key_columns[0].original]
        ]
        flat = codes[0]
        for own in codes[1:]:
            flat = np.unique(flat * (own.max() + 1) + own, return_inverse=True)[1].reshape(-1)
        for start in range(0, len(self._query), _QUERIES_AT_ONCE):
            some = range(start, min(start + _QUERIES_AT_ONCE, len(self._query)))
            similar = [
                np.asarray(Names()(self._query[name][some.start : some.stop], np.array(each, object)))
                for (name, _), each in zip(self._texts, keys, strict=True)
            ]
            for number in some:
                checkpoint()
                own = np.flatnonzero(self._equals(number, key, rows))
                self._equals_some[number] |= len(own) > 0
                first_of_group = own[np.unique(flat[own], return_index=True)[1]]
                places = [each[first_of_group] for each in codes]
                self._add(number, places, [each[number - start] for each in similar], keys, labels)

    def _equals(
        self, number: int, key: Shaped[np.ndarray, " rows"], rows: Shaped[np.ndarray, " n"]
    ) -> Bool[np.ndarray, " n"]:
        out = np.ones(len(rows), bool)
        for name in self._equal:
            same = np.asarray(key[name][rows] == self._query[name][number])
            out &= same.all(axis=-1) if same.ndim == 2 else same
        return out

    def _add(
        self,
        number: int,
        places: Sequence[Int[np.ndarray, " n"]],
        similar: Sequence[Shaped[np.ndarray, " k"]],
        keys: list[list[str]],
        labels: list[list[str]],
    ) -> None:
        sufficient = np.ones(len(places[0]), bool)
        for column, (name, part) in enumerate(self._texts):
            values, text = similar[column], self._query[name][number]
            best = int(values.argmax())
            self._nearest[number][column] = max(
                self._nearest[number][column], (float(values[best]), labels[column][best])
            )
            self._occurs[number, column] |= bool(text in keys[column])
            sufficient &= values[places[column]] >= part.min_similarity
        for at in np.flatnonzero(sufficient).tolist():
            place = [int(each[at]) for each in places]
            group = tuple(own[index] for own, index in zip(keys, place, strict=True))
            scores = tuple(float(own[index]) for own, index in zip(similar, place, strict=True))
            label = ", ".join(own[index] for own, index in zip(labels, place, strict=True))
            self._groups[number].setdefault(group, (scores, label))

    def find(self) -> list[FoundGroup]:
        """Return the group of each query among the rows that were read."""
        return [self._find(number) for number in range(len(self._query))]

    def _find(self, number: int) -> FoundGroup:
        texts = tuple(self._query[name][number] for name, _ in self._texts)
        if self._missing[number]:
            return FoundGroup()
        groups = {
            group: found
            for group, found in self._groups[number].items()
            if all(
                own == text or not occurs for own, text, occurs in zip(group, texts, self._occurs[number], strict=True)
            )
        }
        if not groups:
            return FoundGroup(reason=self._reason(number, texts))
        totals = {group: sum(scores) for group, (scores, _) in groups.items()}
        best = max(totals, key=lambda group: totals[group])
        if best == texts:
            return FoundGroup(best)
        close = [self._close(column, texts[column], best, groups) for column in range(len(texts))]
        tied = [
            group
            for group in groups
            if all(text in own for text, own in zip(group, close, strict=True))
            or (len(texts) > 1 and totals[best] - totals[group] < MARGIN)
        ]
        if len(tied) > 1:
            return FoundGroup(
                candidates=tuple(groups[group][1] for group in sorted(tied, key=lambda group: -totals[group]))
            )
        return FoundGroup(best)

    def _close(
        self,
        column: int,
        text: str,
        best: tuple[str, ...],
        groups: dict[tuple[str, ...], tuple[tuple[float, ...], str]],
    ) -> set[str]:
        """Return the keys of a column that match the text of a query about as well as that of the best group."""
        if best[column] == text:
            return {text}
        similar = {group[column]: scores[column] for group, (scores, _) in groups.items()}
        keys = [best[column], *(key for key in similar if key != best[column])]
        values = np.array([similar[key] for key in keys])
        same = close_keys(Names(), text, keys, values, True)
        return {key for key, tied in zip(keys, same, strict=True) if tied}

    def _reason(self, number: int, texts: tuple[str, ...]) -> str:
        for (name, part), text, (similarity, label) in zip(self._texts, texts, self._nearest[number], strict=True):
            if 0 <= similarity < part.min_similarity:
                return f"{name}: {mismatch_reason(text, label, similarity, part.min_similarity)}"
        # Where there is no row, or no equal category or identifier, the comparison of all columns has the reason.
        if self._nearest[number][0][0] < 0 or not self._equals_some[number]:
            return ""
        asked = " and ".join(f"{name} {quoted_key(text)}" for (name, _), text in zip(self._texts, texts, strict=True))
        return f"no row matches {asked}" + " and the other columns" * bool(self._equal)


def _compares_equality(part: Comparison) -> bool:
    return isinstance(part, EqualityComparison) or isinstance(part.score, Exact)


def compare_texts_by_equality(comparison: MixedComparison) -> MixedComparison:
    """Return a comparison in which texts are compared by equality, for queries with the texts of a group."""
    assert isinstance(comparison.score, ByColumn)
    score = ByColumn(
        tuple(
            (name, Exact() if isinstance(own, Names) else own, weight) for name, own, weight in comparison.score.columns
        )
    )
    parts = tuple(
        (name, replace(part, min_similarity=1.0) if isinstance(part, NameComparison) else part)
        for name, part in comparison.parts
    )
    return replace(comparison, score=score, parts=parts)


def with_texts(comparison: MixedComparison, queries: Queries, groups: Sequence[FoundGroup]) -> Queries:
    """Return queries with the texts of their groups."""
    columns = list(queries.columns)
    names = [part for _, part in comparison.parts if isinstance(part, NameComparison)]
    for place, part in enumerate(names):
        (index,) = part.columns
        cells = columns[index].cells.copy()
        cells[:] = [group.texts[place] for group in groups]
        columns[index] = replace(columns[index], cells=cells)
    return replace(queries, columns=tuple(columns))
