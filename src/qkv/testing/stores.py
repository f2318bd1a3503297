"""Contract tests that every store backend must pass, as a class from which the tests of a backend inherit.

    class TestArrowStore(StoreContract):
        backend = "arrow"

The inherited tests check that rows of every type are returned unchanged and in order, that versions and open readers
never change, that a deletion removes exactly the matching rows, that compaction changes no row, and that a failed write
leaves no file. `tests/database/store_machine.py` compares random operations with a
plain list.
"""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

from qkv import store as stores
from qkv.errors import DamagedStoreError, DataError, OptionError

if TYPE_CHECKING:
    import pyarrow as pa


def numbered(start: int, stop: int, width: int = 4) -> pa.Table:
    """Return a table with ids from `start` to `stop` − 1, and in each row a vector whose elements all equal the id."""
    import pyarrow as pa

    ids = np.arange(start, stop)
    vectors = (ids[:, None] * np.ones(width)).astype(np.float32)
    return pa.table({"id": ids, "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), width)})


def ids_of(store: stores.Store) -> list[int]:
    """Return the ids of all rows in a store, after checking that each row is one that `numbered` returns."""
    found: list[int] = []
    for block in store.blocks():
        present_rows = block.present_rows()
        ids = present_rows.column("id").to_numpy()
        vectors = np.array(present_rows.column("vector").to_pylist(), np.float32).reshape(len(ids), -1)
        assert (vectors == ids[:, None]).all(), "a vector belongs to another row"
        found += ids.tolist()
    return found


def _every_type() -> pa.Table:
    """Return a table of three rows, with one column of each supported type and a null in each column."""
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
            "vector": pa.array([list(np.ones(2, "f2")), None, list(np.zeros(2, "f2"))], pa.list_(pa.float16(), 2)),
            "record": pa.array([{"a": 1}, None, {"a": None}]),
        }
    )


def _state(path: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(each.relative_to(path)): (
            each.stat().st_mtime_ns,
            each.stat().st_mode,
            each.read_bytes() if each.is_file() else b"",
        )
        for each in (path, *path.rglob("*"))
    }


class StoreContract:
    """Contract tests of stores. Subclasses must set `backend` to the name of a store backend."""

    backend: ClassVar[str]

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "store"

    def file_names(self, path: Path) -> list[str]:
        return sorted(each.name for each in path.rglob("*"))

    def created(self, path: Path, *ranges: tuple[int, int], **options: Any) -> stores.Store:
        """Create a store at `path`, and append the rows `numbered(start, stop)` for each range `(start, stop)`."""
        store = stores.create(path, numbered(0, 1).schema, backend=self.backend, **options)
        for span in ranges:
            store.append(numbered(*span))
        return store

    def test_rows_of_every_type_are_returned_unchanged(self, path: Path) -> None:
        table = _every_type()
        store = stores.create(path, table.schema, backend=self.backend)
        store.append(table)
        store.append(table.slice(2))
        back = stores.open(path).to_table()
        assert back.schema == table.schema
        assert str(back.to_pylist()) == str(table.to_pylist() + table.slice(2).to_pylist())

    def test_rows_are_in_the_order_in_which_they_were_appended(self, path: Path) -> None:
        assert ids_of(self.created(path, (5, 9), (0, 5), (9, 12))) == [5, 6, 7, 8, 0, 1, 2, 3, 4, 9, 10, 11]

    def test_an_open_store_reads_an_append_after_refresh(self, path: Path) -> None:
        writer = self.created(path, (0, 3))
        reader = stores.open(path)
        writer.append(numbered(3, 5))
        assert ids_of(reader) == [0, 1, 2]
        assert reader.refresh()
        assert ids_of(reader) == [0, 1, 2, 3, 4]
        assert not reader.refresh()

    def test_a_deletion_removes_exactly_the_matching_rows(self, path: Path) -> None:
        store = self.created(path, (0, 10), (10, 20))
        gone = store.delete(lambda table: table.column("id").to_numpy() % 3 == 0)
        assert gone == 7
        assert ids_of(stores.open(path)) == [i for i in range(20) if i % 3]
        assert len(stores.open(path)) == 13

    def test_a_deletion_keeps_earlier_deletions(self, path: Path) -> None:
        store = self.created(path, (0, 10))
        store.delete(lambda table: table.column("id").to_numpy() < 4)
        assert store.delete(lambda table: table.column("id").to_numpy() < 6) == 2
        assert ids_of(store) == [6, 7, 8, 9]

    def test_a_deletion_without_matching_rows_makes_no_version(self, path: Path) -> None:
        store = self.created(path, (0, 10))
        before = store.version
        assert store.delete(lambda table: table.column("id").to_numpy() > 99) == 0
        assert store.version == before

    def test_every_row_can_be_deleted_and_rows_appended_again(self, path: Path) -> None:
        store = self.created(path, (0, 10))
        store.delete(lambda table: np.ones(table.num_rows, bool))
        assert len(stores.open(path)) == 0
        assert stores.open(path).to_table().schema == store.schema
        store.append(numbered(3, 5))
        assert ids_of(stores.open(path)) == [3, 4]

    def test_a_version_stays_as_it_was(self, path: Path) -> None:
        store = self.created(path, (0, 3), (3, 6))
        number = store.version
        store.delete(lambda table: table.column("id").to_numpy() == 1)
        store.append(numbered(6, 8))
        store.compact()
        assert ids_of(store.at(number)) == [0, 1, 2, 3, 4, 5]
        assert ids_of(stores.open(path, version=number)) == [0, 1, 2, 3, 4, 5]
        assert not store.at(number).refresh()

    def test_versions_are_listed_with_their_operations(self, path: Path) -> None:
        store = self.created(path, (0, 3), (3, 6))
        store.delete(lambda table: table.column("id").to_numpy() == 1)
        listed = store.versions()
        operations = [("create", 0), ("append", 3), ("append", 6), ("delete", 5)]
        assert [(v.operation, v.rows) for v in listed] == operations
        assert [v.number for v in listed] == [1, 2, 3, 4]
        assert all(v.written.tzinfo for v in listed)

    def test_a_missing_version_is_refused_with_its_number(self, path: Path) -> None:
        with pytest.raises(DataError, match=r"version must exist in .*, got 99"):
            self.created(path, (0, 3)).at(99)

    def test_an_old_version_cannot_be_written(self, path: Path) -> None:
        store = self.created(path, (0, 3))
        with pytest.raises(OptionError, match="only the newest"):
            store.at(1).append(numbered(3, 4))

    def test_compaction_changes_no_row_and_makes_fewer_blocks(self, path: Path) -> None:
        store = self.created(path, *((i, i + 1) for i in range(12)))
        store.delete(lambda table: table.column("id").to_numpy() % 4 == 0)
        before = ids_of(store)
        store.compact()
        assert ids_of(stores.open(path)) == before
        assert len(list(stores.open(path).blocks())) == 1

    def test_compaction_with_keep_frees_the_disk_and_removes_older_versions(self, path: Path) -> None:
        store = self.created(path, (0, 5000), (5000, 6000))
        store.delete(lambda table: table.column("id").to_numpy() < 5000)
        assert store.compact(keep=1) > 5000 * 16
        assert ids_of(stores.open(path)) == list(range(5000, 6000))
        assert len(store.versions()) == 1

    @pytest.mark.parametrize("keep", [0, -1])
    def test_compaction_that_would_keep_no_version_is_refused(self, path: Path, keep: int) -> None:
        store = self.created(path, (0, 10))
        with pytest.raises(OptionError, match=rf"keep .* at least 1.*got {keep}\. Pass keep=1"):
            store.compact(keep=keep)
        assert ids_of(stores.open(path)) == list(range(10))

    def test_several_tables_are_appended_as_one_version(self, path: Path) -> None:
        store = self.created(path, (0, 10))
        before = store.version
        store.append([numbered(10, 12), numbered(12, 15)])
        store.append(table for table in (numbered(15, 16), numbered(16, 20)))
        assert store.version == before + 2
        assert ids_of(stores.open(path)) == list(range(20))

    def test_a_reader_continues_while_the_store_is_compacted(self, path: Path) -> None:
        store = self.created(path, (0, 5000), (5000, 6000))
        reader = stores.open(path)
        store.delete(lambda table: table.column("id").to_numpy() < 5000)
        store.compact(keep=1)
        assert ids_of(reader) == list(range(6000))

    def test_only_the_given_columns_are_read(self, path: Path) -> None:
        store = self.created(path, (0, 3))
        assert [block.table.column_names for block in store.blocks(["id"])] == [["id"]]
        assert store.to_table(["id"]).column_names == ["id"]

    def test_columns_in_another_order_and_of_a_narrower_type_are_accepted(self, path: Path) -> None:
        import pyarrow as pa

        store = stores.create(path, pa.schema({"a": pa.int64(), "b": pa.string()}), backend=self.backend)
        store.append(pa.table({"b": ["x"], "a": pa.array([1], pa.int8())}))
        assert store.to_table().to_pylist() == [{"a": 1, "b": "x"}]

    def test_rows_that_do_not_fit_are_refused_and_leave_no_file(self, path: Path) -> None:
        import pyarrow as pa

        store = self.created(path, (0, 3))
        files = self.file_names(path)
        with pytest.raises(DataError, match=r"missing: vector; unknown: vektor"):
            store.append(numbered(3, 5).rename_columns(["id", "vektor"]))
        with pytest.raises(DataError, match="rows must fit the column types"):
            store.append(numbered(3, 5).set_column(0, "id", pa.array(["x", "y"])))
        assert self.file_names(path) == files
        assert ids_of(stores.open(path)) == [0, 1, 2]

    def test_cells_of_another_kind_are_refused_though_arrow_would_cast_them(self, path: Path) -> None:
        import pyarrow as pa

        units = pa.array([1, 2])
        types = {"whole": pa.int64(), "moment": pa.timestamp("us"), "zoned": pa.timestamp("us", "UTC")}
        columns = {name: units.cast(type_) for name, type_ in types.items()} | {"flag": pa.array([True, False])}
        store = stores.create(path, pa.table(columns).schema, backend=self.backend, tables=[pa.table(columns)])
        for name in columns:
            for other in columns.keys() - {name}:
                with pytest.raises(DataError, match=f"cells of {name} have the type .* instead"):
                    store.append(pa.table(columns | {name: columns[other]}))
        assert stores.open(path).to_table().to_pylist() == pa.table(columns).to_pylist()

    def test_an_empty_append_makes_no_version(self, path: Path) -> None:
        store = self.created(path, (0, 3))
        assert store.append(numbered(3, 3)) == 2

    def test_metadata_is_saved_with_the_store(self, path: Path) -> None:
        metadata = {"key": ["name"], "value": "income", "größe": 1.5}
        self.created(path, (0, 2), metadata=metadata)
        assert stores.open(path).metadata == metadata

    def attached(self, path: Path) -> stores.Store:
        """Create a store of ten rows with metadata and the attached file `notes.bin`."""
        return self.created(path, (0, 10), metadata={"a": 1}, attached={"notes.bin": bytes(range(200))})

    def test_an_attached_file_belongs_to_every_version(self, path: Path) -> None:
        store = self.attached(path)
        store.delete(lambda table: table.column("id").to_numpy() < 4)
        store.append(numbered(10, 12))
        store.compact(keep=2)
        for opened in (stores.open(path), stores.open(path).at(store.versions()[0].number)):
            assert opened.metadata["a"] == 1
            assert stores.read_attached(opened.path, opened.metadata, "notes.bin") == bytes(range(200))
            assert opened.verify() == []
        with pytest.raises(DataError, match="must be an attached file"):
            stores.read_attached(store.path, store.metadata, "other.bin")

    @pytest.mark.parametrize("how", ["removed", "cut off", "changed", "changed without a trace"])
    def test_a_damaged_attached_file_is_named(self, path: Path, how: str) -> None:
        store = self.attached(path)
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
        with pytest.raises(
            DamagedStoreError, match=r"attached/notes\.bin: (missing|cut off|the checksum does not match)"
        ):
            stores.read_attached(store.path, store.metadata, "notes.bin")

    def test_a_removed_store_leaves_no_attached_file(self, path: Path) -> None:
        self.attached(path)
        stores.remove(path)
        assert not path.exists()

    def test_removing_a_store_leaves_other_files_of_its_folder(self, path: Path) -> None:
        self.created(path, (0, 10)).delete(lambda table: table.column("id").to_numpy() < 4)
        (path / "mine.txt").write_text("mine")
        stores.remove(path)
        assert [file.name for file in path.iterdir()] == ["mine.txt"]
        (path / "mine.txt").unlink()
        stores.remove(path)
        assert not path.exists()
        stores.remove(path)

    def test_a_store_is_not_created_over_existing_files(self, path: Path) -> None:
        path.mkdir()
        (path / "mine.txt").write_text("mine")
        with pytest.raises(DataError, match="must be new or an empty folder"):
            self.created(path)
        assert [p.name for p in path.iterdir()] == ["mine.txt"]

    def test_a_copy_equals_the_version_and_is_version_1(self, path: Path) -> None:
        store = self.attached(path)
        store.append(numbered(10, 20))
        store.delete(lambda table: table.column("id").to_numpy() % 4 == 0)
        for version, rows in ((1, []), (3, range(20)), (4, [i for i in range(20) if i % 4])):
            copied = stores.copy(store.at(version), path.with_name(f"copy {version}"), backend=self.backend)
            assert ids_of(copied) == list(rows)
            assert [(each.number, each.rows) for each in copied.versions()] == [(1, len(rows))]
            assert copied.metadata["a"] == 1
            assert stores.read_attached(copied.path, copied.metadata, "notes.bin") == bytes(range(200))
            assert stores.verify(copied.path).damages == ()
        copied.append(numbered(20, 22))
        assert len(store) == 15

    def test_a_copy_replaces_only_a_store_and_only_if_asked(self, path: Path) -> None:
        store, target = self.created(path, (0, 10)), path.with_name("target")
        self.created(target, (0, 3))
        with pytest.raises(DataError, match="must be new or an empty folder"):
            stores.copy(store, target, backend=self.backend)
        assert ids_of(stores.open(target)) == [0, 1, 2]
        assert ids_of(stores.copy(store, target, backend=self.backend, overwrite=True)) == list(range(10))
        other = path.with_name("other")
        other.mkdir()
        (other / "mine.txt").write_text("mine")
        for place in (other, path, path / "inside", path.parent):
            with pytest.raises(DataError):
                stores.copy(store, place, backend=self.backend, overwrite=True)
        assert sorted(each.name for each in path.parent.iterdir()) == ["other", "store", "target"]
        assert ids_of(stores.open(path)) == list(range(10))

    def test_a_copy_keeps_types_and_cells(self, path: Path) -> None:
        store = stores.create(path, _every_type().schema, backend=self.backend, tables=[_every_type()])
        store.append(_every_type().slice(1))
        copied = stores.copy(store, path.with_name("copy"), backend=self.backend)
        assert copied.schema == store.schema
        assert str(copied.to_table().to_pylist()) == str(store.to_table().to_pylist())

    @pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
    def test_an_exported_file_equals_the_version(self, path: Path, tmp_path: Path, suffix: str) -> None:
        from pyarrow import __version__, feather, parquet

        store = stores.create(path, _every_type().schema, backend=self.backend, tables=[_every_type()])
        store.append(_every_type().set_column(6, "category", [["z", None, "x"]]).cast(_every_type().schema))
        store.delete(lambda table: np.array([cell == -3 for cell in table.column("whole").to_pylist()]))
        target = tmp_path / f"rows{suffix}"
        read = parquet.read_table if suffix == ".parquet" else feather.read_table
        if suffix == ".parquet" and int(__version__.split(".")[0]) < 26:
            with pytest.raises(DataError, match="cannot read missing vectors"):
                stores.export(store, target)
            return
        for version in (1, 2, 3):
            stores.export(store.at(version), target, overwrite=version > 1)
            table = read(target)
            assert table.schema.equals(store.schema)
            assert str(table.to_pylist()) == str(store.at(version).to_table().to_pylist())
        stores.export(store, target, columns=["text"], overwrite=True)
        assert read(target).column_names == ["text"]
        with pytest.raises(DataError, match="must be a file that does not exist"):
            stores.export(store, target)

    def test_verification_covers_older_versions(self, path: Path) -> None:
        store = self.created(path, (0, 10), (10, 20))
        folder = path / {"arrow": "rows", "lance": "data"}.get(self.backend, "rows")
        first = min(folder.iterdir(), key=lambda file: file.stat().st_mtime_ns)
        store.delete(lambda table: table.column("id").to_numpy() < 10)
        found = stores.verify(path)
        assert (found.damages, found.versions, found.rows, found.lost) == ((), (1, 2, 3, 4), 10, 0)
        first.unlink()
        found = stores.verify(path)
        assert [(damage.file, damage.problem) for damage in found.damages] == [
            (f"{folder.name}/{first.name}", "missing")
        ]
        assert (found.damages[0].versions, found.damages[0].rows) == ((2, 3), 10)
        assert (found.rows, found.lost) == (10, 0)
        assert ids_of(stores.open(path)) == list(range(10, 20))

    def test_verification_changes_no_file(self, path: Path) -> None:
        store = self.created(path, (0, 10), (10, 20), attached={"a.bin": b"a"})
        store.delete(lambda table: table.column("id").to_numpy() == 3)
        before = _state(path)
        assert stores.verify(path).damages == ()
        assert store.verify() == []
        assert _state(path) == before

    def test_an_intact_store_verifies_without_damage(self, path: Path) -> None:
        store = self.created(path, (0, 3), (3, 9))
        store.delete(lambda table: table.column("id").to_numpy() == 1)
        assert store.verify() == []
