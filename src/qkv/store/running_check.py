"""Verification of the checksum of a file piece by piece, while its rows are used for a first time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from qkv.core.checksums import checksum

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RunningCheck"]


class RunningCheck:
    """The checksum of a mapped file, computed in pieces that are still in the cache of the core when they are used.

    Results that were computed from the file must be discarded unless `finish` returns. An object serves one scan.

    Args:
        data: the contents of the file.
        expected: the CRC-32 of the contents.
        finished: called once with whether the contents have this checksum; raises an error if they do not.
    """

    def __init__(self, data: pa.Buffer, expected: int, finished: Callable[[bool], None]) -> None:
        self._data, self._address = memoryview(data).cast("B"), data.address
        self._expected, self._finished = expected, finished
        self._done = self._value = 0
        self._open = True

    def advance(self, address: int) -> None:
        """Add the bytes before an address in memory, if it is in the file, and they were not added before."""
        self._add(address - self._address)

    def finish(self) -> None:
        """Add the remaining bytes, and compare the checksum with the recorded one.

        Raises:
            DamagedStoreError: The checksum does not match.
        """
        if self._open:
            self._add(len(self._data))
            self._finished(self._value == self._expected)
            self._open = False

    def _add(self, stop: int) -> None:
        if self._done < stop <= len(self._data):
            self._value = checksum(self._data[self._done : stop], self._value)
            self._done = stop
