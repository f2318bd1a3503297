"""The class `QueryPartial`, the partial result of queries over some fragments of a table.

    sums          Softmax, Sum, Mean …: sums of weights and values over all rows, and the rows of evidence
    candidates    TopK, Hard, Sparsemax, Entmax …: the rows that can have weight, with their values

Partial results over different fragments merge in any order and grouping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from qkv.core.checksums import digest
from qkv.core.parts import Part
from qkv.core.typing import Int
from qkv.database.execute.aggregates import NO_ROW, ValueSums, VoteSums
from qkv.database.execute.block_scan import BlockScan
from qkv.database.execute.partial_sums import PartialSums, accumulates, merge_in_tree
from qkv.database.execute.row_lists import FRAGMENT_ROWS, RowLists, select_rows
from qkv.database.execute.row_reader import RowTile
from qkv.encoders.columns import Column
from qkv.errors import OptionError
from qkv.normalizers.base import Normalizer

Fragment: TypeAlias = int | str
"""The name of a fragment; those of a table are all integers or all texts, and sort in the order of its rows."""


@dataclass(frozen=True)
class Subject:
    """What a partial result is about; those of different subjects do not merge.

    Attributes:
        queries: the digest of the queries.
        count: number of queries.
        key: names of the key columns.
        value: name of the value column.
        score: the score in words, with a digest of its arrays.
        normalizer: the record of the normalizer, as JSON.
        version: the version of the table.
        top: number of rows of evidence.
    """

    queries: str
    count: int
    key: tuple[str, ...]
    value: str
    score: str
    normalizer: str
    version: str
    top: int


@dataclass(frozen=True, eq=False)
class QueryPartial:
    """The partial result of queries over some fragments of a table.

    Attributes:
        subject: what the result is about.
        normalizer: the normalizer.
        fragments: the names of the fragments, ascending. The index of a fragment in positions is that in this tuple.
        sums: the sums over all rows; None for candidates.
        rows: the rows of evidence, or the candidates.
        value_type: the pyarrow type of the values.
    """

    subject: Subject
    normalizer: Normalizer
    fragments: tuple[Fragment, ...]
    sums: PartialSums | None
    rows: RowLists
    value_type: pa.DataType

    def merge(self, other: QueryPartial) -> QueryPartial:
        """Return the partial result over the fragments of both, which must be disjoint."""
        fragments = tuple(sorted((*self.fragments, *other.fragments)))
        index = {fragment: number for number, fragment in enumerate(fragments)}
        left, right = self._renumbered(index), other._renumbered(index)
        sums = None if left.sums is None or right.sums is None else left.sums.merge(right.sums)
        rows, value_type = left.rows.concat(right.rows), right.value_type if _is_null(left) else left.value_type
        return replace(left, fragments=fragments, sums=sums, rows=rows, value_type=value_type).pruned()

    def pruned(self) -> QueryPartial:
        """Return the partial result without the rows that are neither evidence nor candidates."""
        if accumulates(self.normalizer):
            return replace(self, rows=self.rows.largest(self.normalizer, self.subject.top))
        return replace(self, rows=select_rows(self.rows, self.normalizer, self.subject.count))

    def _renumbered(self, index: dict[Fragment, int]) -> QueryPartial:
        numbers = np.array([index[fragment] for fragment in self.fragments], np.int64)
        rows, sums = replace(self.rows, position=_renumber(self.rows.position, numbers)), self.sums
        if sums is not None and isinstance(sums.values, VoteSums):
            first = sums.values.first
            renumbered = np.where(first == NO_ROW, NO_ROW, _renumber(np.where(first == NO_ROW, 0, first), numbers))
            sums = replace(sums, values=replace(sums.values, first=renumbered))
        return replace(self, rows=rows, sums=sums)


def _renumber(position: Int[np.ndarray, "*shape"], numbers: Int[np.ndarray, " fragments"]) -> Int[np.ndarray, "*shape"]:
    fragment, row = np.divmod(position, FRAGMENT_ROWS)
    return np.asarray(numbers[fragment] * FRAGMENT_ROWS + row)


def fragment_partial(
    scan: BlockScan,
    tiles: Callable[[], Iterable[RowTile]],
    take: Callable[[Int[np.ndarray, " n"]], pa.Table],
    subject: Subject,
    normalizer: Normalizer,
    values: ValueSums,
    fragment: Fragment,
) -> QueryPartial:
    """Return the partial result of queries over one fragment.

    Args:
        scan: the pass over the fragment.
        tiles: returns the tiles of the fragment, whose rows are named by their indices in it.
        take: returns some rows of the fragment, whose indices are in ascending order.
        subject: what the result is about.
        normalizer: the normalizer.
        values: empty sums.
        fragment: the name of the fragment.
    """
    sums = None
    if accumulates(normalizer):
        accumulator = scan.sums(tiles(), normalizer, values, subject.top)
        sums, rows = accumulator.sums, RowLists.of_top_rows(accumulator.top_rows)
    else:
        rows = scan.candidates(tiles, normalizer)
    if len(rows.position):
        positions = np.unique(rows.position)
        rows = scan.with_exact_logits(rows, take(positions), positions)
    if sums is None:
        rows = select_rows(rows, normalizer, subject.count)
    return QueryPartial(subject, normalizer, (fragment,), sums, rows, plain_type(scan.value))


def merge_partials(partials: Iterable[QueryPartial]) -> QueryPartial:
    """Return the merge of one or more partial results, which does not depend on their order.

    One whose fragments all occur in another one is a repetition, and is left out.

    Raises:
        OptionError: There is none, they are about different subjects, or two share some of their fragments only.
    """
    given = list(partials)
    if not given:
        raise OptionError("partials must have at least one element, got none. Pass the partial result of a fragment.")
    for other in given[1:]:
        _check_same_subject(given[0], other)
    kinds = {type(fragment).__name__ for part in given for fragment in part.fragments}
    if len(kinds) > 1:
        raise OptionError(
            "fragments must be all integers or all texts, got both. Name the fragments of a table in one way."
        )
    return merge_in_tree(_disjoint(given))


def _disjoint(partials: Sequence[QueryPartial]) -> list[QueryPartial]:
    """Return partial results in the order of their fragments, each fragment once."""
    # The largest first, so that a merged result replaces those of its fragments; of equal ones the last replaces.
    order = sorted(enumerate(partials), key=lambda pair: (-len(pair[1].fragments), -pair[0]))
    covered: set[Fragment] = set()
    chosen: list[QueryPartial] = []
    for _, part in order:
        own = set(part.fragments)
        if shared := own & covered:
            if own <= covered and any(own <= set(other.fragments) for other in chosen):
                continue
            one = min(map(str, shared))
            raise OptionError(
                f"partials must cover disjoint fragments or repeat whole ones, got two that share the fragment {one} "
                "and have others apart. Merge the partial results of single fragments."
            )
        covered |= own
        chosen.append(part)
    # Empty results have no fragments; the first of them is enough.
    with_fragments = [part for part in chosen if part.fragments] or chosen[:1]
    return sorted(with_fragments, key=lambda part: part.fragments[:1])


_NAMES = {"count": "number of queries", "top": "number of rows of evidence"}


def _check_same_subject(first: QueryPartial, other: QueryPartial) -> None:
    for name in Subject.__dataclass_fields__:
        ours, theirs = getattr(first.subject, name), getattr(other.subject, name)
        if ours != theirs:
            raise OptionError(
                f"partials must have the same {_NAMES.get(name, name)}, got {_short(ours)} and {_short(theirs)}. "
                "Compute all of them with the same arguments."
            )
    if first.value_type != other.value_type and not (_is_null(first) or _is_null(other)):
        raise OptionError(
            f"partials must have values of the same type, got {first.value_type} and {other.value_type}. Cast the "
            "column to one type."
        )


def _is_null(part: QueryPartial) -> bool:
    return str(part.value_type) == "null"


def _short(value: object) -> str:
    text = ", ".join(value) if isinstance(value, tuple) else str(value)
    return text if len(text) < 80 else text[:77] + "…"


def plain_type(column: Column) -> pa.DataType:
    """Return the pyarrow type of the values of a column; that of its cells if they are encoded by a dictionary."""
    return getattr(column.type, "value_type", column.type) if column.kind != "vector" else column.type


def describe_score(score: Part) -> str:
    """Return a text that is equal for scores that give equal logits: the score, and a digest of its arrays."""
    arrays = [np.asarray(array) for array in score.arrays()]
    if not any(array.ndim for array in arrays):
        return str(score)
    content = b"".join(f"{array.dtype} {array.shape}".encode() + array.tobytes() for array in arrays)
    return f"{score} {digest(content)[:16]}"


def query_digest(query: np.ndarray, missing: np.ndarray) -> str:
    """Return the SHA-256 of the query array of the engine, and of which queries are missing."""
    content = [f"{query.shape} {missing.tolist()}".encode()]
    for field in query.dtype.names or ("",):
        cells = query[field] if field else query
        content.append(repr(cells.tolist()).encode() if cells.dtype == object else cells.astype(np.float64).tobytes())
    return digest(b"\0".join(content))
