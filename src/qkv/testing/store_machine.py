"""A state machine for databases on disk: random operations, compared with a plain list of rows.

    test_machine = store_machine("arrow").TestCase

Rules append, delete, compact, reopen and read older versions; the invariant compares all rows, and a rule compares
the answers in memory and block by block with votes that are counted from the list.
"""

from __future__ import annotations

import collections
import os
import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from qkv.database import Database
from qkv.database.storage.stored import StoredDatabase
from qkv.errors import DataError

__all__ = ["StoreMachine", "store_machine"]

_LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
_KEYS = 2
_LABELS = "ab"

Row = tuple[int, float, str]
"""Its id, its key and its label."""


class StoreMachine(RuleBasedStateMachine):
    """A database on disk beside a list of its rows; `store_machine` gives one for a backend."""

    backend: str

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        schema = pa.schema({"id": pa.int64(), "key": pa.float64(), "label": pa.string()})
        self.database = Database.create(self.folder / "store", schema, "key", "label", backend=self.backend)
        self.rows: list[Row] = []
        self.next_id = 0
        self.history: dict[int, list[Row]] = {self.database.version: []}

    def teardown(self) -> None:
        """Remove the store."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @rule(cells=st.lists(st.tuples(st.integers(0, _KEYS - 1), st.sampled_from(_LABELS)), min_size=1, max_size=8))
    def append(self, cells: list[tuple[int, str]]) -> None:
        """Append rows, which form a block of their own."""
        rows = [(self.next_id + i, float(key), label) for i, (key, label) in enumerate(cells)]
        self.next_id += len(rows)
        self.database.append([dict(zip(("id", "key", "label"), row, strict=True)) for row in rows])
        self.rows = self.rows + rows
        self._record()

    @rule(divisor=st.integers(2, 4), remainder=st.integers(0, 3))
    def delete(self, divisor: int, remainder: int) -> None:
        """Delete the rows whose id has a remainder."""
        remaining = [row for row in self.rows if row[0] % divisor != remainder]
        deleted = self.database.delete(f"id % {divisor} = {remainder}")
        assert deleted == len(self.rows) - len(remaining)
        self.rows = remaining
        self._record()

    @rule(keep=st.sampled_from([None, 1, 2]))
    def compact(self, keep: int | None) -> None:
        """Compact, and forget the versions that are no longer readable."""
        self.database.compact(keep)
        self._record()
        readable = {version.number for version in self.database.versions()}
        assert keep is None or len(readable) <= keep
        self.history = {number: rows for number, rows in self.history.items() if number in readable}

    @rule()
    def reopen(self) -> None:
        """Open the store again, as another process does."""
        self.database = Database.open(self.folder / "store")
        assert self.database.verify() == []

    @rule(index=st.integers(0, 100))
    def read_older_version(self, index: int) -> None:
        """Read a version of the past."""
        number = sorted(self.history)[index % len(self.history)]
        assert _rows(self.database.at(number)) == self.history[number]

    @precondition(lambda self: self.rows)
    @rule(query=st.integers(0, _KEYS - 1))
    def ask(self, query: int) -> None:
        """Ask with weight 1 on each equal key, in memory and block by block."""
        votes = collections.Counter(label for _, key, label in self.rows if key == query)
        # A Counter keeps the order of first rows, and max returns the first of equal counts.
        winner = max(votes, key=votes.__getitem__, default=None)
        for memory in ("512 MiB", 1):
            database = Database.open(self.folder / "store", memory=memory)
            assert database.streams == (memory == 1)
            answer = database.ask(float(query), score="exact")
            assert answer.value == winner, f"memory {memory}: {votes}"

    @precondition(lambda self: not self.rows)
    @rule()
    def ask_without_rows(self) -> None:
        """An empty store refuses to answer."""
        with pytest.raises(DataError):
            self.database.ask(0.0)

    @invariant()
    def rows_are_those_of_the_list(self) -> None:
        """All rows are in the store, in the order in which they were appended."""
        assert _rows(self.database) == self.rows

    def _record(self) -> None:
        self.history[self.database.version] = self.rows


def store_machine(backend: str) -> type[StoreMachine]:
    """Return the state machine for a backend, with few steps, or many if `HYPOTHESIS_PROFILE` is `long`."""

    class Machine(StoreMachine):
        pass

    Machine.backend = backend
    Machine.TestCase.settings = settings(
        max_examples=200 if _LONG else 12,
        stateful_step_count=40 if _LONG else 15,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    return Machine


def _rows(database: StoredDatabase) -> list[Row]:
    table = database.store.to_table()
    return list(zip(*(table.column(name).to_pylist() for name in ("id", "key", "label")), strict=True))
