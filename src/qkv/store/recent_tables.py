"""The class `RecentTables`, the last tables that were read from an object store, for rows that are taken one by one."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RecentTables"]

_MOST_BYTES = 2**26


class RecentTables:
    """The last tables by the name of their block and of their columns, of at most 64 MiB together."""

    def __init__(self) -> None:
        self._tables: OrderedDict[tuple[str, tuple[str, ...]], pa.Table] = OrderedDict()
        self._lock = threading.Lock()

    def known(self, name: tuple[str, tuple[str, ...]]) -> pa.Table | None:
        """Return a table if it is one of the last ones, otherwise None."""
        with self._lock:
            return self._tables.get(name)

    def get(self, name: tuple[str, tuple[str, ...]], read: Callable[[], pa.Table]) -> pa.Table:
        """Return a table, which is read unless it is one of the last ones."""
        with self._lock:
            if name in self._tables:
                self._tables.move_to_end(name)
                return self._tables[name]
        table = read()
        with self._lock:
            self._tables[name] = table
            while len(self._tables) > 1 and sum(each.nbytes for each in self._tables.values()) > _MOST_BYTES:
                self._tables.popitem(last=False)
        return table
