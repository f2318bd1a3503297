"""Samples of the rows of a table, drawn by hashes of the contents of the rows.

A row is in the sample if its hash is among the smallest. The sample therefore has no period, unlike every n-th row,
and a table, a store and a table that was filtered beforehand give the same sample. Equal rows are numbered in the
order in which they occur, so that each of them has a hash of its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from qkv.core.typing import Bool, Int, Shaped
from qkv.encoders.columns import Column

MOST_ROWS = 50_000
"""Maximum number of rows of a sample: leave-one-out over them takes a few seconds."""

_ROWS_AT_ONCE = 2**18
_BUCKETS = 2**20
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class RowSampler:
    """Sampler of rows that are added in parts, which stores the rows with the smallest hashes.

    Args:
        most: maximum number of rows of the sample.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.rows: Int[np.ndarray, " sample"] = np.zeros(0, np.int64)
        self._hashes: Shaped[np.ndarray, " sample"] = np.zeros(0, np.uint64)
        # Equal rows are in one bucket. Other rows in the same bucket only change which numbers the equal rows get.
        self._counts = np.zeros(_BUCKETS, np.int64)

    def add(self, columns: Sequence[Column], selected: Bool[np.ndarray, " rows"], first: int) -> None:
        """Add the selected rows of a part of a table.

        Args:
            columns: columns of the part, whose cells are hashed.
            selected: True for the rows that may be in the sample.
            first: index in the table of the first row of the part.
        """
        rows = np.flatnonzero(selected)
        hashes = np.zeros(len(rows), np.uint64)
        for column in columns:
            hashes = _mix(hashes * _MULTIPLIER + _hash_cells(column, rows))
        hashes = _mix(hashes + self._number(hashes % np.uint64(_BUCKETS)).astype(np.uint64) * _MULTIPLIER)
        hashes, rows = np.concatenate([self._hashes, hashes]), np.concatenate([self.rows, first + rows])
        if len(rows) > self.most:
            smallest = np.sort(np.argpartition(hashes, self.most - 1)[: self.most])
            hashes, rows = hashes[smallest], rows[smallest]
        self._hashes, self.rows = hashes, rows

    def _number(self, buckets: Shaped[np.ndarray, " rows"]) -> Int[np.ndarray, " rows"]:
        """Return for each row the number of earlier rows in its bucket, and count the rows."""
        # By 16 bits at once, which NumPy sorts in linear time.
        order = np.argsort(buckets.astype(np.uint16), kind="stable")
        order = order[np.argsort((buckets >> np.uint64(16)).astype(np.uint16)[order], kind="stable")]
        ordered = buckets[order].astype(np.int64)
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        lengths = np.diff(starts, append=len(ordered))
        numbers = np.empty(len(ordered), np.int64)
        numbers[order] = self._counts[ordered] + np.arange(len(ordered)) - np.repeat(starts, lengths)
        self._counts[ordered[starts]] += lengths
        return numbers


def sample_rows(
    columns: Sequence[Column], selected: Bool[np.ndarray, " rows"], most: int | None = None
) -> Int[np.ndarray, " sample"]:
    """Return the ascending indices of the selected rows, or of a sample of them if there are more than `most`.

    Args:
        columns: the columns of which the contents of a row consist.
        selected: True for the rows that may be in the sample.
        most: maximum number of rows; None: 50,000.
    """
    most = MOST_ROWS if most is None else most
    if np.count_nonzero(selected) <= most:
        return np.flatnonzero(selected)
    sampler = RowSampler(most)
    for start in range(0, len(selected), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        sampler.add([column.slice(part) for column in columns], selected[part], start)
    return sampler.rows


def _hash_cells(column: Column, rows: Int[np.ndarray, " n"]) -> Shaped[np.ndarray, " n"]:
    """Return a hash of the cell of each of `rows`, equal for equal cells of any table."""
    cells: Shaped[np.ndarray, "n ..."] = column.cells[rows]
    if column.traits.text:
        texts = cells.tolist()
        codes = {text: zlib.crc32(text.encode("utf-8", "surrogatepass")) for text in set(texts)}
        return np.fromiter(map(codes.__getitem__, texts), np.uint64, len(texts))
    if column.kind == "timestamp":
        return np.asarray((cells.astype(np.int64) + column.origin).view(np.uint64))
    bits = np.ascontiguousarray(cells + 0.0, np.float64).view(np.uint64)  # −0 becomes 0
    if bits.ndim == 1:
        return bits
    factors = _mix(np.arange(1, bits.shape[1] + 1, dtype=np.uint64) * _MULTIPLIER) | np.uint64(1)
    return np.asarray(np.multiply(bits, factors).sum(axis=1, dtype=np.uint64))


def _mix(x: Shaped[np.ndarray, " n"]) -> Shaped[np.ndarray, " n"]:
    """Return a hash of each integer.

    Source: Steele, Lea, Flood (2014), Fast splittable pseudorandom number generators (SplitMix64).
    """
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))
