"""Define the result of a join, which holds the matches with their weights and evaluates them on labelled pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from scipy.special import expit, logit

from qkv.core.typing import Bool, Float, Int
from qkv.errors import DataError, OptionError
from qkv.join.attention_weights import CandidateMatches, solve_assignment
from qkv.join.compared_columns import PairIntegers, PairNumbers
from qkv.join.labels import read_labels


@dataclass(frozen=True)
class Match:
    """Pair of rows, with the weight and the probability of a match.

    Attributes:
        left, right: row numbers.
        weight: attention weight of the right row for the left row.
        probability: probability that the pair matches, regardless of other pairs.

    Example:
        >>> from qkv.join import SoftJoin
        >>> here = {"name": ["Café Miró", "Blue Door", "Old Mill"]}
        >>> there = {"name": ["The Blue Door", "Cafe Miro", "Zum Löwen"]}
        >>> for match in SoftJoin("name").join(here, there):
        ...     match.left, match.right, match.probability > 0.5
        (0, 1, True)
        (1, 0, True)
    """

    left: int
    right: int
    weight: float
    probability: float


@dataclass(frozen=True)
class Evaluation:
    """Precision, recall and F1 of a join on labelled pairs, with the counts they are computed from.

    Attributes:
        precision, recall, f1: 0 if the join is empty or there are no matches.
        pairs, matches: number of labelled pairs, and of matches among them.
        found, right: number of labelled pairs that the join found, and of correct pairs among them.

    Example:
        >>> from qkv.join import SoftJoin
        >>> here = {"name": ["Café Miró", "Blue Door", "Old Mill"]}
        >>> there = {"name": ["The Blue Door", "Cafe Miro", "Zum Löwen"]}
        >>> found = SoftJoin("name").join(here, there).evaluate({"left": [0, 2], "right": [1, 2]})
        >>> found.precision, found.recall, found.found, found.matches
        (0.5, 0.5, 2, 2)
    """

    precision: float
    recall: float
    f1: float
    pairs: int
    matches: int
    found: int
    right: int

    def __str__(self) -> str:
        return (
            f"precision {self.precision:.3f}   recall {self.recall:.3f}   F1 {self.f1:.3f}   "
            f"({self.right} correct of {self.found} found; {self.matches} matches among {self.pairs:,} pairs)"
        )


@dataclass(frozen=True, eq=False)
class JoinResult:
    """Matching pairs of rows of two tables, sorted by left row and then by descending weight.

    Attributes:
        left, right: the pyarrow tables; the same object if a table was joined to itself.
        rows, keys, weights, probabilities: left row, right row, weight and probability of each match.
        no_match: weight of "no match" for each left row.
        threshold: smallest weight (or probability, see `SoftJoin.join`) of a match.
        notes: sentences about how the join was computed.
        on: `(left name, right name)` of the compared columns.
        ids: row numbers by id, if labelled pairs refer to ids.

    Example:
        >>> from qkv.join import SoftJoin
        >>> here = {"name": ["Café Miró", "Blue Door", "Old Mill"]}
        >>> there = {"name": ["The Blue Door", "Cafe Miro", "Zum Löwen"]}
        >>> result = SoftJoin("name").join(here, there)
        >>> result.rows.tolist(), result.keys.tolist(), len(result)
        ([0, 1], [1, 0], 2)
    """

    left: pa.Table
    right: pa.Table
    rows: PairIntegers
    keys: PairIntegers
    weights: PairNumbers
    probabilities: PairNumbers
    no_match: Float[np.ndarray, " left"]
    threshold: float
    notes: tuple[str, ...]
    on: tuple[tuple[str, str], ...]
    ids: tuple[dict[str, int] | None, dict[str, int] | None] = (None, None)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Match]:
        for row, key, weight, probability in zip(self.rows, self.keys, self.weights, self.probabilities, strict=True):
            yield Match(int(row), int(key), float(weight), float(probability))

    @property
    def is_self_join(self) -> bool:
        """Whether a table was joined with itself."""
        return self.left is self.right

    @property
    def table(self) -> pa.Table:
        """The matches as a pyarrow table: row numbers, weight, probability, and the columns of both tables.

        Columns are named `left_row`, `right_row`, `weight`, `probability`, then `left.name` and `right.name`.
        """
        columns: dict[str, pa.Array] = {
            "left_row": pa.array(self.rows.astype(np.int64)),
            "right_row": pa.array(self.keys.astype(np.int64)),
            "weight": pa.array(self.weights),
            "probability": pa.array(self.probabilities),
        }
        for side, table, rows in (("left", self.left, self.rows), ("right", self.right, self.keys)):
            selected = table.take(pa.array(rows.astype(np.int64)))
            columns |= {f"{side}.{name}": selected.column(name) for name in table.column_names}
        return pa.table(columns)

    def evaluate(self, pairs: object) -> Evaluation:
        """Compute precision, recall and F1 on labelled pairs, in the format that `qkv.join.labels` describes.

        Only labelled pairs count. If the labels are a complete list of matches, every pair of the join counts.

        Raises:
            DataError: a label is invalid, contradicts another one, or refers to a row that is not in its table.
        """
        labels = read_labels(pairs, (self.left.num_rows, self.right.num_rows), self.ids)
        found = set(zip(*self._pair_lists(self.rows, self.keys), strict=True))
        listed = list(zip(*self._pair_lists(labels.rows, labels.keys), strict=True))
        matches, others = (
            {pair for pair, label in zip(listed, labels.match.tolist(), strict=True) if label == own} for own in (1, 0)
        )
        if both := sorted(matches & others):
            left, right = both[0]
            raise DataError(
                f"labelled pairs must have one label each, got 1 and 0 for left row {left} and right row {right}. "
                "Remove one of them."
            )
        if not labels.complete:
            found &= set(listed)
        right = len(found & matches)
        precision = right / len(found) if found else 0.0
        recall = right / len(matches) if matches else 0.0
        f1 = 2 * right / (len(found) + len(matches)) if found or matches else 0.0
        return Evaluation(precision, recall, f1, len(set(listed)), len(matches), len(found), right)

    def _pair_lists(self, rows: PairIntegers, keys: PairIntegers) -> tuple[list[int], list[int]]:
        if self.is_self_join:  # pairs within one table are unordered
            rows, keys = np.minimum(rows, keys), np.maximum(rows, keys)
        return rows.tolist(), keys.tolist()


def check_selection(threshold: object, one_to_one: bool, many: bool) -> None:
    """Check the options by which matches are selected.

    Raises:
        OptionError: the threshold is no number in (0, 1], or both `one_to_one` and `many` are set.
    """
    if (
        isinstance(threshold, bool)
        or not isinstance(threshold, int | float | np.floating)
        or not 0.0 < threshold <= 1.0
    ):
        raise OptionError(
            f"threshold must be a number above 0 and at most 1, got {threshold!r}. Pass, for example, 0.5."
        )
    if one_to_one and many:
        raise OptionError(
            "one_to_one and many must not both be True, got True for both. Set one_to_one=False to allow several "
            "matches per row, or many=False to allow at most one."
        )


def matched(
    edges: CandidateMatches, threshold: float, one_to_one: bool, many: bool, self_join: bool
) -> tuple[PairIntegers, PairIntegers, PairNumbers, PairNumbers]:
    """Select the candidate pairs that match, and return their `(rows, keys, weights, probabilities)`.

    If a table is joined with itself, a pair occurs once, with the smaller of its weights in both directions.
    """
    rows, keys, logits, weights = edges.rows, edges.keys, edges.logits, edges.weights
    if self_join:
        rows, keys, logits, weights = _merge_directions(rows, keys, logits, weights)
    probability = expit(logits)
    if one_to_one:
        needed = logit(min(threshold, np.nextafter(1.0, 0.0)))
        selected = _assign_one_to_one(rows, keys, logits - needed, self_join)
    else:
        selected = (probability if many else weights) >= threshold
    order = np.lexsort((-weights[selected], rows[selected]))
    return tuple(x[selected][order] for x in (rows, keys, weights, probability))


def _merge_directions(
    rows: PairIntegers, keys: PairIntegers, logits: PairNumbers, weights: PairNumbers
) -> tuple[
    Int[np.ndarray, " merged"], Int[np.ndarray, " merged"], Float[np.ndarray, " merged"], Float[np.ndarray, " merged"]
]:
    """Merge the pairs (i, j) and (j, i) of a table with itself into one pair with the smaller of both weights.

    The smaller row number comes first.
    """
    first, second = np.minimum(rows, keys), np.maximum(rows, keys)
    order = np.lexsort((weights, second, first))
    first, second, logits, weights = first[order], second[order], logits[order], weights[order]
    new = np.append(True, (np.diff(first) != 0) | (np.diff(second) != 0))[: len(first)]
    return first[new], second[new], logits[new], weights[new]


def _assign_one_to_one(
    rows: PairIntegers, keys: PairIntegers, gain: PairNumbers, self_join: bool
) -> Bool[np.ndarray, " pairs"]:
    if not self_join:
        return solve_assignment(rows, keys, gain)
    # Pairs within one table are not a bipartite graph, so they are selected greedily, with each row used once.
    selected = np.zeros(len(rows), bool)
    used: set[int] = set()
    for place in np.argsort(-gain, kind="stable"):
        pair = {int(rows[place]), int(keys[place])}
        if gain[place] > 0 and not pair & used:
            selected[place] = True
            used |= pair
    return selected
