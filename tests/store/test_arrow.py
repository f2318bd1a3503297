"""Stores of Arrow files: the contract, damage, a full disk and two writers."""

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from qkv import store as stores
from qkv.core.checksums import checksum
from qkv.errors import DamagedStoreError, DataError, StoreBusyError, StoreFullError
from qkv.store import arrow, locking, row_files
from qkv.testing.stores import StoreContract, ids_of, numbered

from .faults import FullDisk, flip


class TestArrowStore(StoreContract):
    backend = "arrow"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def made(path: Path, blocks: int = 3) -> stores.Store:
    store = stores.create(path, numbered(0, 1).schema)
    for i in range(blocks):
        store.append(numbered(10 * i, 10 * i + 10))
    return store


def rows_files(path: Path) -> list[Path]:
    manifest = arrow.ArrowStore(path)._manifest
    return [path / "rows" / piece.name for piece in manifest.row_files]


# -- damage ---------------------------------------------------------------------------------------------


def test_a_file_that_was_cut_off_or_removed_is_named(path: Path) -> None:
    made(path)
    cut_off, gone, _ = rows_files(path)
    size = cut_off.stat().st_size
    os.truncate(cut_off, 100)
    gone.unlink()
    with pytest.raises(DamagedStoreError) as caught:
        stores.open(path)
    assert f"{cut_off.name}: cut off at 100 of {size:,} bytes" in str(caught.value)
    assert f"{gone.name}: missing" in str(caught.value)


def test_appending_and_compacting_keep_the_rows_of_a_damaged_file_for_its_restoration(path: Path) -> None:
    made(path)
    victim = rows_files(path)[1]
    whole = victim.read_bytes()
    flip(victim, 500)
    crippled = stores.open(path, damaged="skip")
    crippled.append(numbered(30, 31))
    crippled.compact(keep=1)
    victim.write_bytes(whole)
    assert ids_of(stores.open(path)) == list(range(31))


def test_a_damaged_manifest_is_named_and_the_version_before_it_opens(path: Path) -> None:
    made(path)
    newest = sorted((path / "versions").glob("0*.json"))[-1]
    flip(newest, newest.stat().st_size // 2)
    with pytest.raises(DamagedStoreError, match=r"manifest of version 4 .* from a copy, or open version 3\.$"):
        stores.open(path)
    assert ids_of(stores.open(path, version=3)) == list(range(20))


def test_no_older_version_is_suggested_for_the_damaged_first_one(path: Path) -> None:
    made(path)
    first = sorted((path / "versions").glob("0*.json"))[0]
    number = min(version.number for version in stores.open(path).versions())
    flip(first, first.stat().st_size // 2)
    with pytest.raises(DamagedStoreError, match=rf"manifest of version {number} .*Restore versions/.* from a copy\.$"):
        stores.open(path, version=number)


def test_a_store_of_a_newer_format_asks_for_an_update(path: Path) -> None:
    made(path)
    newest = sorted((path / "versions").glob("0*.json"))[-1]
    text = json.loads(newest.read_text())["manifest"].replace('"format":3', '"format":4')
    newest.write_text(json.dumps({"check": checksum(text.encode()), "manifest": text}))
    with pytest.raises(DataError, match="newer version of qkv"):
        stores.open(path)


def test_a_store_copied_by_another_program_is_read_completely_until_it_is_written(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(path)
    copied = tmp_path / "copy"
    shutil.copytree(path, copied, copy_function=shutil.copyfile)
    read: list[bool] = []
    whole = row_files.find_problem

    def watched(folder: Path, piece: row_files.RowFile, reads: bool, *rest: pa.Schema) -> str | None:
        read.append(reads)
        return whole(folder, piece, reads, *rest)

    monkeypatch.setattr(row_files, "find_problem", watched)
    store = stores.open(copied)
    assert read == [True] * 3
    read.clear()
    assert store.verify() == []
    assert read == [True] * 3
    store.append(numbered(30, 31))
    read.clear()
    assert len(stores.open(copied)) == 31
    assert read == [False] * 4


# -- a full disk ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("full_at", range(1, 5))  # compacting syncs four times: rows, folder, manifest, folder
def test_a_full_disk_is_reported_and_loses_nothing(path: Path, full_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store = made(path)
    store.delete(lambda table: table.column("id").to_numpy() == 12)
    before = sorted(p.name for p in path.rglob("*"))
    monkeypatch.setattr(row_files, "BYTES", 2000)
    disk = FullDisk(monkeypatch, full_at, lasts=True)
    for write in (
        lambda: store.append(numbered(100, 400)),
        lambda: store.delete(lambda table: table.column("id").to_numpy() % 2 == 0),
        lambda: store.compact(),
    ):
        disk.calls = 0
        with pytest.raises(StoreFullError, match="free some space"):
            write()
        assert sorted(p.name for p in path.rglob("*")) == before
    monkeypatch.undo()
    assert ids_of(stores.open(path)) == [i for i in range(30) if i != 12]
    store.append(numbered(100, 400))
    assert len(stores.open(path)) == 329


def test_a_disk_that_is_full_when_a_store_is_made_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FullDisk(monkeypatch)
    for full_at in range(1, 6):  # the attached file, its folder, the manifest, two folders
        disk.full_at, disk.calls = full_at, 0
        with pytest.raises(StoreFullError, match="free some space"):
            stores.create(path, numbered(0, 1).schema, attached={"a.bin": b"a"})
        assert not path.exists(), full_at


# -- two writers ----------------------------------------------------------------------------------------


def test_a_writer_that_waits_too_long_says_that_another_is_writing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import filelock

    store = made(path)
    monkeypatch.setattr(locking, "WAIT_SECONDS", 0.05)
    with filelock.FileLock(path / "writer.lock"), pytest.raises(StoreBusyError, match="another process"):
        stores.open(path).append(numbered(0, 1))
    store.append(numbered(30, 31))
    assert len(stores.open(path)) == 31


def test_reading_does_not_wait_for_a_writer(path: Path) -> None:
    import filelock

    made(path)
    with filelock.FileLock(path / "writer.lock"):
        assert len(ids_of(stores.open(path))) == 30


# -- at size --------------------------------------------------------------------------------------------


def test_blocks_are_memory_mapped_and_vectors_are_read_without_a_copy(path: Path) -> None:
    store = stores.create(path, numbered(0, 1, width=64).schema)
    store.append(numbered(0, 1000, width=64))
    import pyarrow as pa

    before = pa.total_allocated_bytes()
    (block,) = stores.open(path).blocks()
    vectors = block.table.column("vector").chunk(0).flatten().to_numpy(zero_copy_only=True)
    assert vectors.reshape(1000, 64)[:, 0].tolist() == list(range(1000))
    assert pa.total_allocated_bytes() == before


def test_rows_are_cut_into_files_so_that_one_damage_costs_little(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "BYTES", 4096)
    store = stores.create(path, numbered(0, 1).schema)
    store.append(numbered(0, 1000))
    assert len(rows_files(path)) > 4
    assert max(p.stat().st_size for p in rows_files(path)) < 3 * 4096
    assert ids_of(stores.open(path)) == list(range(1000))


def test_removing_a_store_removes_the_results_that_it_has_saved(path: Path) -> None:
    store = stores.create(path, numbered(0, 1).schema)
    assert store.cache_folder == path / "notes"
    store.cache_folder.mkdir()
    (store.cache_folder / "means.npz").write_bytes(b"")
    stores.remove(path)
    assert not path.exists()
