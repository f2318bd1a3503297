"""The contract of a store.

    class TestArrowStore(StoreContract):
        backend = "arrow"

Inherited: rows come back as they were given, in their order, of every type; versions never change; what a
reader has opened stays; a deletion takes exactly the rows that match; compacting changes no row; a refused
write leaves nothing behind.
"""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from qkv import store as stores
from qkv.core.typing import ArrayLike
from qkv.errors import DamagedStoreError, DataError, OptionError

__all__ = ["StoreContract", "every_type", "ids_of", "numbered"]


def numbered(start: int, stop: int, width: int = 4) -> ArrayLike:
    """Rows that tell themselves apart: an id, and a vector made of it."""
    import pyarrow as pa

    ids = np.arange(start, stop)
    vectors = (ids[:, None] * np.ones(width)).astype(np.float32)
    return pa.table({"id": ids, "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), width)})


def ids_of(store: stores.Store) -> list[int]:
    """The ids of a store of `numbered` rows, after their vectors were compared with them."""
    found: list[int] = []
    for block in store.blocks():
        present_rows = block.present_rows()
        ids = present_rows.column("id").to_numpy()
        vectors = np.array(present_rows.column("vector").to_pylist(), np.float32).reshape(len(ids), -1)
        assert (vectors == ids[:, None]).all(), "a vector belongs to another row"
        found += ids.tolist()
    return found


def every_type() -> ArrayLike:
    """A table with a column of every kind of value, a null in each."""
    import pyarrow as pa

    return pa.table(
        {
            "text": ["a", None, "größer"],
            "whole": pa.array([1, None, -3], pa.int32()),
            "number": [0.5, None, float("nan")],
            "flag": [True, None, False],
            "day": pa.array([dt.date(2026, 1, 2), None, dt.date(1900, 1, 1)]),
            "moment": pa.array([dt.datetime(2026, 1, 2, 3), None, dt.datetime(1, 1, 1)], pa.timestamp("us")),
            "category": pa.array(["x", None, "y"]).dictionary_encode(),
            "bytes": pa.array([b"\x00\xff", None, b""]),
            "list": pa.array([[1, 2], None, []], pa.list_(pa.int64())),
            "vector": pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float16(), 2)),
            "record": pa.array([{"a": 1}, None, {"a": None}]),
        }
    )


class StoreContract:
    """Inherit it, set `backend`."""

    backend: ClassVar[str]

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        """Where the store will be."""
        return tmp_path / "store"

    def made(self, path: Path, *ranges: tuple[int, int]) -> stores.Store:
        """A store of numbered rows, one append for each span."""
        made = stores.create(path, numbered(0, 1).schema, backend=self.backend)
        for span in ranges:
            made.append(numbered(*span))
        return made

    def test_rows_come_back_as_they_were_given_whatever_their_types(self, path: Path) -> None:
        table = every_type()
        made = stores.create(path, table.schema, backend=self.backend)
        made.append(table)
        made.append(table.slice(2))
        back = stores.open(path).to_table()
        assert back.schema == table.schema
        assert str(back.to_pylist()) == str(table.to_pylist() + table.slice(2).to_pylist())

    def test_rows_stand_in_the_order_of_their_appending(self, path: Path) -> None:
        assert ids_of(self.made(path, (5, 9), (0, 5), (9, 12))) == [5, 6, 7, 8, 0, 1, 2, 3, 4, 9, 10, 11]

    def test_an_append_is_seen_by_a_store_that_was_open_once_it_refreshes(self, path: Path) -> None:
        writer = self.made(path, (0, 3))
        reader = stores.open(path)
        writer.append(numbered(3, 5))
        assert ids_of(reader) == [0, 1, 2]
        assert reader.refresh()
        assert ids_of(reader) == [0, 1, 2, 3, 4]
        assert not reader.refresh()

    def test_a_deletion_takes_the_rows_that_match_and_no_other(self, path: Path) -> None:
        made = self.made(path, (0, 10), (10, 20))
        gone = made.delete(lambda table: table.column("id").to_numpy() % 3 == 0)
        assert gone == 7
        assert ids_of(stores.open(path)) == [i for i in range(20) if i % 3]
        assert len(stores.open(path)) == 13

    def test_a_deletion_adds_to_those_before_it(self, path: Path) -> None:
        made = self.made(path, (0, 10))
        made.delete(lambda table: table.column("id").to_numpy() < 4)
        assert made.delete(lambda table: table.column("id").to_numpy() < 6) == 2
        assert ids_of(made) == [6, 7, 8, 9]

    def test_deleting_what_no_row_matches_makes_no_version(self, path: Path) -> None:
        made = self.made(path, (0, 10))
        before = made.version
        assert made.delete(lambda table: table.column("id").to_numpy() > 99) == 0
        assert made.version == before

    def test_every_row_can_be_deleted_and_rows_appended_again(self, path: Path) -> None:
        made = self.made(path, (0, 10))
        made.delete(lambda table: np.ones(table.num_rows, bool))
        assert len(stores.open(path)) == 0
        assert stores.open(path).to_table().schema == made.schema
        made.append(numbered(3, 5))
        assert ids_of(stores.open(path)) == [3, 4]

    def test_a_version_stays_as_it_was(self, path: Path) -> None:
        made = self.made(path, (0, 3), (3, 6))
        number = made.version
        made.delete(lambda table: table.column("id").to_numpy() == 1)
        made.append(numbered(6, 8))
        made.compact()
        assert ids_of(made.at(number)) == [0, 1, 2, 3, 4, 5]
        assert ids_of(stores.open(path, version=number)) == [0, 1, 2, 3, 4, 5]
        assert not made.at(number).refresh()

    def test_versions_are_listed_with_what_made_them(self, path: Path) -> None:
        made = self.made(path, (0, 3), (3, 6))
        made.delete(lambda table: table.column("id").to_numpy() == 1)
        listed = made.versions()
        assert [(v.operation, v.rows) for v in listed] == [
            ("create", 0),
            ("append", 3),
            ("append", 6),
            ("delete", 5),
        ]
        assert [v.number for v in listed] == [1, 2, 3, 4]
        assert all(v.written.tzinfo for v in listed)

    def test_a_version_that_is_not_there_is_refused_by_name(self, path: Path) -> None:
        with pytest.raises(DataError, match="no version 99"):
            self.made(path, (0, 3)).at(99)

    def test_an_old_version_is_not_written(self, path: Path) -> None:
        made = self.made(path, (0, 3))
        with pytest.raises(OptionError, match="only the newest"):
            made.at(1).append(numbered(3, 4))

    def test_compacting_changes_no_row_and_makes_fewer_blocks(self, path: Path) -> None:
        made = self.made(path, *((i, i + 1) for i in range(12)))
        made.delete(lambda table: table.column("id").to_numpy() % 4 == 0)
        before = ids_of(made)
        made.compact()
        assert ids_of(stores.open(path)) == before
        assert len(list(stores.open(path).blocks())) == 1

    def test_compacting_with_keep_frees_the_disk_and_forgets_older_versions(self, path: Path) -> None:
        made = self.made(path, (0, 5000), (5000, 6000))
        made.delete(lambda table: table.column("id").to_numpy() < 5000)
        assert made.compact(keep=1) > 5000 * 16
        assert ids_of(stores.open(path)) == list(range(5000, 6000))
        assert len(made.versions()) == 1

    def test_a_reader_reads_on_while_the_store_is_compacted_under_it(self, path: Path) -> None:
        made = self.made(path, (0, 5000), (5000, 6000))
        reader = stores.open(path)
        made.delete(lambda table: table.column("id").to_numpy() < 5000)
        made.compact(keep=1)
        assert ids_of(reader) == list(range(6000))

    def test_only_the_columns_that_are_asked_for_are_read(self, path: Path) -> None:
        made = self.made(path, (0, 3))
        assert [block.table.column_names for block in made.blocks(["id"])] == [["id"]]
        assert made.to_table(["id"]).column_names == ["id"]

    def test_columns_in_another_order_and_of_a_narrower_type_are_taken(self, path: Path) -> None:
        import pyarrow as pa

        made = stores.create(path, pa.schema({"a": pa.int64(), "b": pa.string()}), backend=self.backend)
        made.append(pa.table({"b": ["x"], "a": pa.array([1], pa.int8())}))
        assert made.to_table().to_pylist() == [{"a": 1, "b": "x"}]

    def test_rows_that_do_not_fit_are_refused_and_leave_nothing_behind(self, path: Path) -> None:
        import pyarrow as pa

        made = self.made(path, (0, 3))
        files = sorted(p.name for p in path.rglob("*"))
        with pytest.raises(DataError, match=r"missing: vector; too many: vektor"):
            made.append(numbered(3, 5).rename_columns(["id", "vektor"]))
        with pytest.raises(DataError, match="rows do not fit"):
            made.append(numbered(3, 5).set_column(0, "id", pa.array(["x", "y"])))
        assert sorted(p.name for p in path.rglob("*")) == files
        assert ids_of(stores.open(path)) == [0, 1, 2]

    def test_an_empty_append_makes_no_version(self, path: Path) -> None:
        made = self.made(path, (0, 3))
        assert made.append(numbered(3, 3)) == 2

    def test_what_is_kept_with_the_store_comes_back(self, path: Path) -> None:
        kept = {"key": ["name"], "value": "income", "größe": 1.5}
        made = stores.create(path, numbered(0, 1).schema, metadata=kept, backend=self.backend)
        made.append(numbered(0, 2))
        assert stores.open(path).metadata == kept

    def attached(self, path: Path) -> stores.Store:
        """A store of ten rows with a file attached."""
        files = {"notes.bin": bytes(range(200))}
        made = stores.create(path, numbered(0, 1).schema, metadata={"a": 1}, backend=self.backend, attached=files)
        made.append(numbered(0, 10))
        return made

    def test_what_is_attached_belongs_to_every_version(self, path: Path) -> None:
        made = self.attached(path)
        made.delete(lambda table: table.column("id").to_numpy() < 4)
        made.append(numbered(10, 12))
        made.compact(keep=2)
        for store in (stores.open(path), stores.open(path).at(made.versions()[0].number)):
            assert store.metadata["a"] == 1
            assert stores.read_attached(store.path, store.metadata, "notes.bin") == bytes(range(200))
            assert store.verify() == []
        with pytest.raises(DataError, match="no attached file"):
            stores.read_attached(made.path, made.metadata, "other.bin")

    @pytest.mark.parametrize("how", ["removed", "cut off", "changed", "changed without a trace"])
    def test_an_attached_file_that_is_not_what_was_written_is_named(self, path: Path, how: str) -> None:
        made = self.attached(path)
        file = path / "attached" / "notes.bin"
        state = file.stat()
        data = bytearray(file.read_bytes())
        data[100] ^= 1
        if how == "removed":
            file.unlink()
        else:
            file.write_bytes(data[:100] if how == "cut off" else data)
        if how == "changed without a trace":
            os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
        else:
            with pytest.raises(DamagedStoreError, match=r"attached/notes\.bin"):
                stores.open(path)
        rest = stores.open(path, damaged="skip")
        assert ids_of(rest) == list(range(10))
        assert [damage.file for damage in rest.verify()] == ["attached/notes.bin"]
        with pytest.raises(DamagedStoreError, match=r"attached/notes\.bin: (missing|cut off|bytes changed)"):
            stores.read_attached(made.path, made.metadata, "notes.bin")

    def test_a_store_that_was_removed_leaves_nothing_attached(self, path: Path) -> None:
        self.attached(path)
        stores.remove(path)
        assert not path.exists()

    def test_a_store_is_not_made_over_what_is_there(self, path: Path) -> None:
        path.mkdir()
        (path / "mine.txt").write_text("mine")
        with pytest.raises(DataError, match="exists already"):
            self.made(path)
        assert [p.name for p in path.iterdir()] == ["mine.txt"]

    def test_a_whole_store_verifies_clean(self, path: Path) -> None:
        made = self.made(path, (0, 3), (3, 9))
        made.delete(lambda table: table.column("id").to_numpy() == 1)
        assert made.verify() == []
