"""Test databases on disk by random sequences of operations, and compare their rows with a plain list.

    test_machine = store_machine("arrow").TestCase

The rules append, delete, compact, reopen, read older versions and ask queries. After each rule, all rows are compared
with the list. Answers, both in memory and streamed, are compared with votes counted from the list.
"""

import collections
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
from qkv.testing.libraries import LONG

_KEYS = 2
_LABELS = "ab"

Row = tuple[int, float, str]
"""Id, key and label of a row."""


class StoreMachine(RuleBasedStateMachine):
    """Hypothesis state machine that applies random operations to a database on disk and to a list of expected rows."""

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
        shutil.rmtree(self.folder, ignore_errors=True)

    @rule(cells=st.lists(st.tuples(st.integers(0, _KEYS - 1), st.sampled_from(_LABELS)), min_size=1, max_size=8))
    def append(self, cells: list[tuple[int, str]]) -> None:
        rows = [(self.next_id + i, float(key), label) for i, (key, label) in enumerate(cells)]
        self.next_id += len(rows)
        self.database.append([dict(zip(("id", "key", "label"), row, strict=True)) for row in rows])
        self.rows = self.rows + rows
        self._record()

    @rule(divisor=st.integers(2, 4), remainder=st.integers(0, 3))
    def delete(self, divisor: int, remainder: int) -> None:
        remaining = [row for row in self.rows if row[0] % divisor != remainder]
        deleted = self.database.delete(f"id % {divisor} = {remainder}")
        assert deleted == len(self.rows) - len(remaining)
        self.rows = remaining
        self._record()

    @rule(keep=st.sampled_from([None, 1, 2]))
    def compact(self, keep: int | None) -> None:
        self.database.compact(keep)
        self._record()
        readable = {version.number for version in self.database.versions()}
        assert keep is None or len(readable) <= keep
        self.history = {number: rows for number, rows in self.history.items() if number in readable}

    @rule()
    def reopen(self) -> None:
        self.database = Database.open(self.folder / "store")
        assert self.database.verify() == []

    @rule(index=st.integers(0, 100))
    def read_older_version(self, index: int) -> None:
        number = sorted(self.history)[index % len(self.history)]
        assert _rows(self.database.at(number)) == self.history[number]

    @precondition(lambda self: self.rows)
    @rule(query=st.integers(0, _KEYS - 1))
    def ask(self, query: int) -> None:
        votes = collections.Counter(label for _, key, label in self.rows if key == query)
        # A Counter preserves the order of first occurrence, and max returns the first of equal counts.
        winner = max(votes, key=votes.__getitem__, default=None)
        for memory in ("512 MiB", 1):
            database = Database.open(self.folder / "store", memory=memory)
            assert database.streams == (memory == 1)
            answer = database.ask(float(query), score="exact")
            assert answer.value == winner, f"memory {memory}: {votes}"

    @precondition(lambda self: not self.rows)
    @rule()
    def ask_without_rows(self) -> None:
        with pytest.raises(DataError):
            self.database.ask(0.0)

    @invariant()
    def rows_are_those_of_the_list(self) -> None:
        assert _rows(self.database) == self.rows

    def _record(self) -> None:
        self.history[self.database.version] = self.rows


def store_machine(backend: str) -> type[StoreMachine]:
    """Return a subclass of `StoreMachine` that tests a store backend, such as `"arrow"`.

    It runs more examples and steps if the environment variable `HYPOTHESIS_PROFILE` is `long`.
    """

    class Machine(StoreMachine):
        pass

    Machine.backend = backend
    Machine.TestCase.settings = settings(
        max_examples=200 if LONG else 8,
        stateful_step_count=40 if LONG else 15,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    return Machine


def _rows(database: StoredDatabase) -> list[Row]:
    table = database.store.to_table()
    return list(zip(*(table.column(name).to_pylist() for name in ("id", "key", "label")), strict=True))
