"""Copies and exports are exact, consistent beside writers, and complete or absent."""

import datetime as dt
import decimal
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from qkv import store as stores
from qkv.core import files
from qkv.errors import DataError, StoreFullError
from qkv.store import arrow, row_files
from qkv.store.manifest import Manifest
from qkv.testing.stores import ids_of, numbered

EXACT = {
    "id": pa.array([2**63 - 1, None, -(2**63)], pa.int64()),
    "unsigned": pa.array([2**64 - 1, None, 0], pa.uint64()),
    "zone": pa.array([0, None, 1], pa.timestamp("ms", "Europe/Oslo")),
    "offset": pa.array([1, None, 2], pa.timestamp("us", "+05:30")),
    "nanoseconds": pa.array([1, None, 2], pa.timestamp("ns")),
    "money": pa.array([decimal.Decimal("1.10"), None, decimal.Decimal("-" + "9" * 31 + ".01")], pa.decimal128(38, 2)),
    "half": pa.array([list(np.float16([1.5, -0.0])), None, list(np.float16([np.inf, 0.1]))], pa.list_(pa.float16(), 2)),
    "long text": pa.array(["a\x00b", None, "日本 👩‍🚀"], pa.large_string()),
    "bytes": pa.array([b"\x00", None, b""]),
    "category": pa.array(["x", None, "y"]).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string())),
    "duration": pa.array([1, None, 2], pa.duration("us")),
    "day": pa.array([dt.date(1, 1, 1), None, dt.date(9999, 12, 31)]),
    "nothing": pa.nulls(3),
    "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int32())),
}


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_types_and_cells_of_a_file_are_those_of_the_store(path: Path, suffix: str) -> None:
    table = pa.table(EXACT)
    store = stores.create(path, table.schema, tables=[table])
    store.append(table.slice(1, 2))
    target = path.with_name(f"file{suffix}")
    if suffix == ".parquet" and int(pa.__version__.split(".")[0]) < 26:  # it reads other types, or no missing vectors
        with pytest.raises(DataError, match=r"Name a file that ends in \.arrow"):
            stores.export(store, target)
        return
    stores.export(store, target)
    read = (parquet if suffix == ".parquet" else feather).read_table(target)
    assert read.schema.equals(table.schema)
    assert read.equals(pa.concat_tables([table, table.slice(1, 2)]).unify_dictionaries())
    assert stores.copy(store, path.with_name("copy")).to_table().equals(read)


def test_missing_vectors_are_not_written_to_a_file_that_pyarrow_cannot_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([1.0, 2.0, 3.0, 4.0]), 2)
    table = pa.table({"x": vectors})
    store = stores.create(path, table.schema, tables=[table])
    monkeypatch.setattr(pa, "__version__", "25.0.0")
    stores.export(store, path.with_name("whole.parquet"))
    store.append(pa.table({"x": pa.nulls(1, vectors.type)}))
    with pytest.raises(DataError, match=r"column 'x', got 'a\.parquet': pyarrow 25\.0\.0 cannot read missing vectors"):
        stores.export(store, path.with_name("a.parquet"))
    stores.export(store, path.with_name("a.arrow"))
    assert sorted(each.name for each in path.parent.iterdir()) == ["a.arrow", "store", "whole.parquet"]


@pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.time32("s"), pa.date64(), pa.month_day_nano_interval()])
def test_a_type_that_parquet_changes_is_refused_before_anything_is_written(path: Path, kind: pa.DataType) -> None:
    store = stores.create(path, pa.schema({"x": kind}), tables=[pa.table({"x": pa.nulls(2, kind)})])
    with pytest.raises(
        DataError, match=r"column 'x', got 'a\.parquet'.* in Parquet\. Name a file that ends in \.arrow"
    ):
        stores.export(store, path.with_name("a.parquet"))
    assert [each.name for each in path.parent.iterdir()] == ["store"]
    stores.export(store, path.with_name("a.arrow"))
    assert feather.read_table(path.with_name("a.arrow")).schema.field("x").type == kind


def test_nested_categories_of_several_blocks_are_exported(path: Path) -> None:
    kind = pa.list_(pa.dictionary(pa.int32(), pa.string()))
    store = stores.create(path, pa.schema({"tags": kind}))
    for tags in (["a", "b"], ["c", "a"]):
        cells = pa.ListArray.from_arrays([0, 1, 2], pa.array(tags).dictionary_encode())
        store.append(pa.table({"tags": cells.cast(kind)}))
    stores.export(store, path.with_name("a.arrow"))
    assert feather.read_table(path.with_name("a.arrow")).column("tags").to_pylist() == [["a"], ["b"], ["c"], ["a"]]


@pytest.mark.parametrize("backend", ["arrow", "lance"])
def test_copies_are_consistent_while_another_process_appends_and_compacts(path: Path, backend: str) -> None:
    if backend == "lance":
        pytest.importorskip("lance")
    store = stores.create(path, numbered(0, 1).schema, backend=backend, tables=[numbered(0, 40)])
    stop, errors = threading.Event(), list[BaseException]()

    def write() -> None:
        try:
            start = 40
            while not stop.is_set():
                for _ in range(4):
                    store.append(numbered(start, start + 5))
                    start += 5
                store.compact(keep=1)
        except BaseException as error:
            errors.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for i in range(6 if backend == "arrow" else 2):
            copied = ids_of(stores.copy(stores.open(path), path.with_name(f"copy {i}"), backend=backend))
            assert copied == list(range(len(copied)))
            stores.export(stores.open(path), path.with_name("rows.arrow"), overwrite=i > 0)
            found = feather.read_table(path.with_name("rows.arrow")).column("id").to_pylist()
            assert found == list(range(len(found)))
            assert len(found) >= len(copied) >= 40
    finally:
        stop.set()
        writer.join()
    assert errors == []


def test_a_version_that_a_compaction_removes_while_it_is_opened_is_named(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stores.create(path, numbered(0, 1).schema, tables=[numbered(0, 40)])
    store.append(numbered(40, 50))
    whole = row_files.modified_files

    def compacting(*arguments: object) -> set[str]:
        monkeypatch.setattr(row_files, "modified_files", whole)
        store.compact(keep=1)
        return whole(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(row_files, "modified_files", compacting)
    with pytest.raises(DataError, match=r"version must exist in 'store', got 1\. The newest versions are 3\."):
        stores.open(path, version=1)


def test_a_store_is_opened_although_a_compaction_removes_its_newest_version(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stores.create(path, numbered(0, 1).schema, tables=[numbered(0, 40)])
    whole = arrow.read_newest

    def compacting(*arguments: object) -> Manifest:
        monkeypatch.setattr(arrow, "read_newest", whole)
        store.append(numbered(40, 50))
        store.compact(keep=1)
        return whole(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(arrow, "read_newest", compacting)
    assert ids_of(stores.open(path)) == list(range(50))


@pytest.mark.filterwarnings("ignore:os.fork")
@pytest.mark.filterwarnings("ignore:lance is not fork-safe")
@pytest.mark.parametrize("how", ["copy", "overwrite", ".parquet", ".arrow"])
def test_a_full_disk_leaves_nothing(path: Path, how: str) -> None:
    store = stores.create(path, numbered(0, 1, 64).schema, tables=[numbered(0, 2000, 64)])
    if how == "overwrite":
        stores.create(path.with_name("copy"), numbered(0, 1).schema, tables=[numbered(0, 7)])
    before = sorted(str(each) for each in path.parent.rglob("*"))
    pid = os.fork()
    if pid == 0:  # files of at most 4 kB can be written
        code = 9
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
        try:
            if how.startswith("."):
                stores.export(store, path.with_name(f"rows{how}"))
            else:
                stores.copy(store, path.with_name("copy"), overwrite=how == "overwrite")
        except (StoreFullError, DataError) as error:
            code = 0 if "cannot be written: File too large" in str(error) else 8
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert sorted(str(each) for each in path.parent.rglob("*")) == before
    if how == "overwrite":
        assert len(stores.open(path.with_name("copy"))) == 7


@pytest.mark.parametrize("how", ["copy", "export"])
def test_an_interrupted_copy_leaves_nothing(path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = stores.create(path, numbered(0, 1).schema, tables=[numbered(0, 40), numbered(40, 60)])

    def interrupted(self: stores.Block) -> Iterator[None]:
        raise KeyboardInterrupt

    monkeypatch.setattr(stores.Block, "present_rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stores.copy(store, path.with_name("x")) if how == "copy" else stores.export(store, path.with_name("x.arrow"))
    assert [each.name for each in path.parent.iterdir()] == ["store"]


@pytest.mark.parametrize("name", ["rows.csv", "rows", "nowhere/rows.arrow", "store"])
def test_an_impossible_file_is_refused(path: Path, name: str) -> None:
    store = stores.create(path, numbered(0, 1).schema)
    with pytest.raises(DataError, match="must"):
        stores.export(store, path.with_name(name) if "/" not in name else path.parent / name)


def test_folders_are_exchanged_where_the_system_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_exchanged", lambda first, second: False)
    (tmp_path / "a" / "x").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    files.exchange_folders(tmp_path / "a", tmp_path / "b")
    assert [str(each.relative_to(tmp_path)) for each in sorted(tmp_path.rglob("*"))] == ["a", "b", "b/x"]
