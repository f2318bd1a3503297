"""The rule by which appends merge the last files of a store, so that it has few files after many small appends.

Files of n rows have the level ⌊log₈ n⌋. When eight files of one level follow one another, they become a file of the
next level, as the digits of a number in base eight carry. A row is rewritten about once for each level, and N
appends leave at most 7 files for each of ⌈log₈ N⌉ + 1 levels, besides those of full size.
"""

from __future__ import annotations

from collections.abc import Sequence

from qkv.store.manifest import RowFile

__all__ = ["FAN_IN", "FULL_BYTES", "first_merged"]

FAN_IN = 8
"""Number of consecutive files of at most the same level that are merged."""

FULL_BYTES = 2**24
"""Size of a file of rows, 16 MiB, from which on appends and `compact` do not merge it with others."""


def first_merged(files: Sequence[RowFile]) -> int:
    """Return the index of the first of the last files that should be merged, or the number of files if none should.

    Example:
        >>> small = RowFile("a", rows=10, size=1000, check=0, changed=0)
        >>> first_merged([small] * 7), first_merged([small] * 8)
        (7, 0)
    """
    start, merged = len(files) - 1, len(files)
    rows = files[start].rows if files and files[start].size < FULL_BYTES else 0
    while rows:
        first, level = start, _level(rows)
        while first > 0 and files[first - 1].size < FULL_BYTES and _level(files[first - 1].rows) <= level:
            first -= 1
        # The files that are merged already count as one.
        if start - first + 1 < FAN_IN:
            break
        rows += sum(file.rows for file in files[first:start])
        start = merged = first
    return merged


def _level(rows: int) -> int:
    return (rows.bit_length() - 1) // 3
