"""What a worker receives and returns: a scan of some fragments of a store for a group of queries."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from qkv.core.typing import Bool, Shaped
from qkv.database.keys.comparisons import Comparison
from qkv.database.partials.arrow_format import from_batch, to_bytes
from qkv.database.partials.query_partial import QueryPartial, Subject, merge_partials
from qkv.encoders.columns import Column
from qkv.errors import RefusedError
from qkv.normalizers.base import Normalizer
from qkv.store import StorageOptions

__all__ = ["FragmentRows", "FragmentTask", "Reply", "ScanTask", "merge_replies", "serialize"]


@dataclass(frozen=True, eq=False)
class FragmentRows:
    """A fragment of a store, which is one of its blocks.

    Attributes:
        index: the index of the fragment in the version.
        name: the name of the block.
        rows: number of rows.
    """

    index: int
    name: str
    rows: int


@dataclass(frozen=True, eq=False)
class FragmentTask:
    """What a scan needs to know about one fragment.

    Attributes:
        fragment: the fragment.
        incomplete: the indices of its tiles with a missing cell.
        present: True for the selected rows; None for all.
    """

    fragment: FragmentRows
    incomplete: frozenset[int]
    present: Bool[np.ndarray, " rows"] | None


@dataclass(frozen=True, eq=False)
class ScanTask:
    """A scan for a group of queries, which is the same for all fragments.

    Attributes:
        path, version: the store.
        checksums: whether files are verified when they are first read.
        names: the key and value columns.
        tile: maximum number of rows of a tile.
        columns: the key columns and the value column, without rows.
        comparison: the comparison, without rows.
        normalizer: the normalizer.
        query: the query array of the engine.
        folded: whether texts are folded.
        votes: whether the values vote.
        subject: what the partial result is about.
        storage_options: settings of the object store, which may be secret and are not shown.
    """

    path: str
    version: int
    checksums: bool
    names: tuple[str, ...]
    tile: int
    columns: tuple[Column, ...]
    comparison: Comparison
    normalizer: Normalizer
    query: Shaped[np.ndarray, "q ..."]
    folded: bool
    votes: bool
    subject: Subject
    storage_options: StorageOptions = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class Reply:
    """The result of a scan over some fragments.

    Attributes:
        partial: the partial result over the fragments that could be read, as the bytes of an Arrow stream; None
            without any.
        unreadable: the reason for each other fragment, by index.
        error: an exception of qkv that the scan raised, such as one that a score does not fit; None for none.
        result: the merged result of a `FragmentCall` instead; None without any.
        first: the index of the first fragment of the result, in the order of which results are merged.
    """

    partial: bytes | None
    unreadable: Mapping[int, str]
    error: Exception | None = None
    result: Any = None
    first: int = 0


def serialize(task: object) -> bytes:
    """Return the bytes of a task, by which it is broadcast.

    Raises:
        RefusedError: A part of it, such as a score with a function that is not in a module, cannot be sent.
    """
    try:
        return pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        try:
            import cloudpickle
        except ImportError:
            raise RefusedError(
                f"score and normalizer must be picklable for a cluster, but: {error}. Define their functions in a "
                "module, install cloudpickle, or open the store without cluster."
            ) from None
        return bytes(cloudpickle.dumps(task))


class MergedReply(NamedTuple):
    """The merge of replies, with the partial result as an object; see `Reply`."""

    partial: QueryPartial | None
    unreadable: dict[int, str]
    error: Exception | None
    result: Any
    first: int


def merge_replies(replies: Sequence[bytes]) -> bytes:
    """Return the merge of replies to the same task over different fragments, each of which is a pickle.

    It does not depend on their order. An error in one of them is that of the merge.
    """
    merged = combine_replies(replies)
    return pickle.dumps(Reply(None if merged.partial is None else to_bytes(merged.partial), *merged[1:]))


def combine_replies(replies: Sequence[bytes]) -> MergedReply:
    """Return the merge of replies as `merge_replies` does, but as an object."""
    loaded: list[Reply] = [pickle.loads(each) for each in replies]
    error = next((each.error for each in loaded if each.error is not None), None)
    unreadable = {index: reason for each in loaded for index, reason in each.unreadable.items()}
    parts = [from_batch(each.partial) for each in loaded if each.partial is not None]
    merged = merge_partials(parts) if parts and error is None else None
    with_result = sorted((each for each in loaded if each.result is not None), key=lambda each: each.first)
    result = reduce(lambda left, right: left.merge(right), [each.result for each in with_result] or [None])
    first = with_result[0].first if with_result else 0
    return MergedReply(merged, unreadable, error, result, first)
