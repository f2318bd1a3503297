"""The contents of a file are verified when a process first reads it, whatever its modification time is."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from qkv import store as stores
from qkv.core import checksums
from qkv.core.checksums import checksum
from qkv.errors import DamagedStoreError
from qkv.store import row_files
from qkv.testing.stores import numbered

from .faults import flip

TEXTS = pa.table({"text": [f"text number {i}" for i in range(100)], "x": np.arange(100.0)})


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    store = stores.create(tmp_path / "store", TEXTS.schema)
    store.append(TEXTS.slice(0, 50))
    store.append(TEXTS.slice(50))
    return tmp_path / "store"


def first_file(path: Path) -> Path:
    return path / "rows" / stores.ArrowStore(path)._manifest.row_files[0].name


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.8, 0.999])
def test_a_changed_bit_with_the_old_time_is_never_read(path: Path, share: float) -> None:
    file = first_file(path)
    flip(file, int(share * file.stat().st_size))
    store = stores.open(path)  # a wrong answer, or a crash
    with pytest.raises(DamagedStoreError, match=rf"{file.name}: the checksum does not match \(50 rows\)\. Restore"):
        store.to_table()
    assert len(store) == 100
    rest = stores.open(path, damaged="skip")
    assert rest.to_table().to_pylist() == TEXTS.slice(50).to_pylist()
    assert [damage.rows for damage in rest.damages] == [50]


def test_only_the_files_that_are_read_are_verified(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(row_files, "checksum", lambda data: sizes.append(data.size) or checksum(data))
    store = stores.open(path)
    assert sizes == []
    blocks = store.blocks()
    next(blocks)
    assert len(sizes) == 1
    assert len(list(blocks)) == 1
    assert len(sizes) == 2
    store.to_table()
    assert len(sizes) == 2


def test_a_process_verifies_each_file_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "_TICK", -(10**12))  # the files are older than a tick of the clock
    stores.open(path).to_table()
    read: list[int] = []
    monkeypatch.setattr(row_files, "checksum", lambda data: read.append(1) or checksum(data))
    assert stores.open(path).at(3).to_table().num_rows == 100
    assert read == []
    flip(first_file(path), 700)  # the change time cannot be restored
    with pytest.raises(DamagedStoreError):
        stores.open(path).to_table()


@pytest.mark.parametrize("off", ["argument", "environment"])
def test_checksums_can_be_turned_off(path: Path, off: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "checksum", lambda data: pytest.fail("a checksum was computed"))
    if off == "environment":
        monkeypatch.setenv("QKV_CHECKSUMS", "0")
    else:
        monkeypatch.setenv("QKV_CHECKSUMS", "1")
    assert stores.open(path, checksums=False if off == "argument" else None).to_table().num_rows == 100
    assert checksums.checksums_wanted() == (off == "argument")


def reseal(path: Path, table: pa.Table | bytes) -> None:
    """Replace the first file of rows by another with a right checksum, as someone does who crafts a store."""
    store = stores.ArrowStore(path)
    data = table
    if isinstance(table, pa.Table):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        data = sink.getvalue().to_pybytes()
    file = row_files.write_file(path / "rows" / "crafted.arrow", 50, data)
    store._commit("append", (file, *store._manifest.row_files[1:]))


def crafted(table: pa.Table, offset: int) -> bytes:
    """Return an Arrow file in which one offset of a text is beyond the end."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    data = bytearray(sink.getvalue().to_pybytes())
    offsets = np.array([len(text) for text in table.column("text").to_pylist()]).cumsum().astype(np.int32).tobytes()
    at = data.index(offsets)
    data[at + 80 : at + 84] = np.int32(offset).tobytes()
    return bytes(data)


CRAFTED = {
    **{f"offset {offset}": (crafted(TEXTS.slice(0, 50), offset), "offset") for offset in (2**30, -1, 0, 2**31 - 1)},
    "fewer rows": (TEXTS.slice(0, 49), "49 rows instead of 50"),
    "other columns": (TEXTS.slice(0, 50).rename_columns(["text", "y"]), "the columns are not those of the store"),
}


@pytest.mark.parametrize("kind", CRAFTED)
def test_a_crafted_file_is_refused_though_its_checksum_matches(path: Path, kind: str) -> None:
    file, said = CRAFTED[kind]
    reseal(path, file)
    with pytest.raises(DamagedStoreError, match=said):
        stores.open(path).to_table()


def test_indices_of_deleted_rows_beyond_the_file_are_refused(tmp_path: Path) -> None:
    store = stores.create(tmp_path / "s", numbered(0, 1).schema)
    store.append(numbered(0, 10))
    store.delete(lambda table: table.column("id").to_numpy() == 3)
    (deleted,) = row_files.write_rows(tmp_path / "s" / "rows", [pa.table({"row": np.array([10], np.uint32)})], [])
    from dataclasses import replace

    with pytest.raises(DamagedStoreError, match="must hold indices of 10 rows, got 10"):
        store._commit("delete", (replace(store._manifest.row_files[0], deleted=deleted),))


def test_verify_reads_a_store_on_a_read_only_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(row_files, "write_synced", refuse)
    assert stores.open(path).verify() == []
