"""Lance stores: the contract, syncing and recovery, which Lance lacks, and its limits."""

import importlib.util
import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

if importlib.util.find_spec("lance") is None:
    pytest.skip("pylance is not installed", allow_module_level=True)

from qkv import store as stores
from qkv.core.printable import first_line
from qkv.errors import DamagedStoreError
from qkv.store.lance_checksums import CHECKSUMS
from qkv.store.lance_files import cell_bytes, file_name, translate_errors, translate_read_errors
from qkv.testing.stores import StoreContract, ids_of, numbered


class TestLanceStore(StoreContract):
    backend = "lance"

    def test_a_reader_continues_while_the_store_is_compacted(self, path: Path) -> None:
        """Lance's files are opened when they are read: such a reader is told to refresh."""
        made = self.created(path, (0, 5000), (5000, 6000))
        reader = stores.open(path)
        made.delete(lambda table: table.column("id").to_numpy() < 5000)
        made.compact()
        assert ids_of(reader) == list(range(6000))
        made.compact(keep=1)
        with pytest.raises(DamagedStoreError, match="refresh"):
            ids_of(reader)
        assert reader.refresh()
        assert ids_of(reader) == list(range(5000, 6000))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def made(path: Path, blocks: int = 3) -> stores.Store:
    store = stores.create(path, numbered(0, 1).schema, backend="lance")
    for i in range(blocks):
        store.append(numbered(10 * i, 10 * i + 10))
    return store


def newest_manifest(path: Path) -> Path:
    """Names count down."""
    return min((path / "_versions").glob("*.manifest"), key=lambda file: int(file.stem))


def forget_newest(path: Path) -> None:
    """Remove the record of the newest version, as if the process had been killed before it was acknowledged."""
    lines = (path / CHECKSUMS).read_bytes().splitlines(keepends=True)
    (path / CHECKSUMS).write_bytes(b"".join(lines[:-1]))


@pytest.mark.parametrize("size", [0, 10])
def test_a_newest_manifest_without_its_bytes_is_set_aside_with_a_warning(path: Path, size: int) -> None:
    made(path)
    forget_newest(path)
    os.truncate(newest_manifest(path), size)
    with pytest.warns(UserWarning, match=r"version 4 cannot be read.* set aside"):
        healed = stores.open(path)
    assert ids_of(healed) == list(range(20))
    assert healed.version == 3
    healed.append(numbered(20, 25))
    again = stores.open(path)
    assert ids_of(again) == list(range(25))
    assert again.version == 4


@pytest.mark.parametrize("change", ["cut", "remove", "older"])
def test_the_manifest_of_an_acknowledged_version_is_never_set_aside(path: Path, change: str) -> None:
    made(path)
    newest = newest_manifest(path)
    if change == "cut":
        os.truncate(newest, 10)
    elif change == "remove":
        newest.unlink()
    else:
        newest.write_bytes((path / "_versions" / f"{int(newest.stem) + 1}.manifest").read_bytes())
    with pytest.raises(DamagedStoreError, match=r"manifest of version 4 .* is damaged: .*version 3.*qkv store repair"):
        stores.open(path)
    assert ids_of(stores.open(path, version=3)) == list(range(20))
    done = stores.repair(path)
    assert (done.rows, done.lost, done.lost_versions, done.undeleted) == (30, {}, (), 0)
    assert ids_of(stores.open(path)) == list(range(30))


def test_a_store_without_a_readable_manifest_is_refused(path: Path) -> None:
    made(path, 1)
    (path / CHECKSUMS).unlink()
    for manifest in (path / "_versions").glob("*.manifest"):
        os.truncate(manifest, 0)
    with pytest.raises(DamagedStoreError, match="no manifest of its 2 versions"):
        stores.open(path)


@pytest.mark.parametrize("operation", ["append", "delete", "compact"])
def test_rows_are_synced_before_their_manifest_and_it_before_the_write_returns(
    path: Path, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made(path)
    before = {file for file in path.rglob("*") if file.is_file()}
    synced: list[tuple[str, int]] = []
    real = os.fsync

    def watched(handle: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{handle}"), len(list((path / "_versions").iterdir()))))
        real(handle)

    monkeypatch.setattr(os, "fsync", watched)
    versions = len(list((path / "_versions").iterdir()))
    {
        "append": lambda: store.append(numbered(30, 40)),
        "delete": lambda: store.delete(lambda table: table.column("id").to_numpy() % 3 == 0),
        "compact": lambda: store.compact(),
    }[operation]()
    new = {file for file in path.rglob("*") if file.is_file()} - before
    names = {name for name, _ in synced}
    assert {str(file) for file in new} <= names
    assert {str(path / "_versions"), str(path / "_transactions"), str(path)} <= names
    rows = [count for name, count in synced if "/data/" in name or "/_deletions/" in name]
    assert rows
    assert max(rows) == versions, "a file of rows was synced after the manifest that names it"


def test_files_that_are_missing_or_cut_off_are_named_and_the_rest_is_read(path: Path) -> None:
    made(path)
    first, second, _ = sorted((path / "data").iterdir(), key=lambda file: file.stat().st_mtime_ns)
    size = first.stat().st_size
    os.truncate(first, size - 8)
    second.unlink()
    with pytest.raises(DamagedStoreError) as caught:
        stores.open(path)
    assert f"{first.name}: cut off at {size - 8:,} of {size:,} bytes (10 rows)" in str(caught.value)
    assert f"{second.name}: missing" in str(caught.value)
    rest = stores.open(path, damaged="skip")
    assert ids_of(rest) == list(range(20, 30))
    assert rest.take(np.array([1, 3]), ["id"]).column("id").to_pylist() == [21, 23]
    assert [damage.rows for damage in rest.verify()] == [10, 10]


def test_a_dataset_written_by_another_program_is_a_store(path: Path) -> None:
    import lance

    lance.write_dataset(numbered(0, 5), str(path))
    lance.write_dataset(numbered(5, 9), str(path), mode="append")
    store = stores.open(path)
    assert ids_of(store) == list(range(9))
    assert store.metadata == {}
    store.delete(lambda table: table.column("id").to_numpy() == 3)
    assert lance.dataset(str(path)).count_rows() == 8


def test_without_pylance_the_extra_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv.errors import MissingPackageError

    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(MissingPackageError, match=r'pip install "qkv\[stores\]"'):
        made(path)
    assert not path.exists()


def test_a_full_disk_is_reported_and_loses_nothing(path: Path) -> None:
    """A limit on the size of a file stands for the disk; in a process of its own, which it binds."""
    made(path)
    before = sorted(str(p) for p in path.rglob("*"))
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from qkv import store as stores; from qkv.errors import StoreFullError\n"
        "from qkv.testing.stores import numbered\n"
        "store = stores.open(sys.argv[1]); resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "try: store.append(numbered(30, 9000))\n"
        "except StoreFullError: sys.exit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == 7
    assert sorted(str(p) for p in path.rglob("*")) == before
    assert ids_of(stores.open(path)) == list(range(30))


@pytest.mark.parametrize(
    ("message", "line"), [("  one. \ntwo", "one"), ("", "ValueError"), ("x" * 300, "x" * 200), ("why: ...", "why:")]
)
def test_an_error_of_lance_is_cut_to_its_first_line(message: str, line: str) -> None:
    assert first_line(ValueError(message)) == line


def test_the_size_of_columns_is_that_of_their_cells_in_every_row(path: Path) -> None:
    store = made(path)
    assert store.size_of(["id"]) == 30 * 8
    assert store.size_of(["id", "vector"]) == 30 * (8 + 4 * 4)


@pytest.mark.parametrize(("name", "size"), [("bool_", 1), ("int8", 1), ("int16", 2), ("float64", 8), ("string", 32)])
def test_cells_have_at_least_one_byte_and_texts_an_estimate(name: str, size: int) -> None:
    assert cell_bytes(getattr(pa, name)()) == size
    assert cell_bytes(pa.list_(getattr(pa, name)(), 3)) == 3 * size


def test_verification_reports_every_file_and_names_one_that_does_not_decode(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, told = made(path), []
    assert store.verify(lambda *each: told.append(each[:3])) == []
    assert told == [("verifying", done, 3) for done in (1, 2, 3)]
    fragment = type(store._dataset.get_fragments()[0])

    def fail(*_: object) -> None:
        raise RuntimeError("bad page. \nmore")

    monkeypatch.setattr(fragment, "to_batches", fail)
    damages = store.verify()
    assert [str(damage).count("does not decode: bad page") for damage in damages] == [1, 1, 1]
    assert all(file_name(each) in str(damage) for each, damage in zip(store._fragments(), damages, strict=True))


def test_versions_are_numbered_by_both_forms_of_manifest_names(path: Path) -> None:
    store = made(path, 1)
    assert store._numbers() == [1, 2]
    (path / "_versions" / "7.manifest").write_bytes(b"")
    (path / "_versions" / "notes.manifest").write_bytes(b"")
    assert store._numbers() == [1, 2, 7]


def test_a_block_has_another_name_after_each_deletion(path: Path) -> None:
    store = made(path, 1)
    names = [[block.name for block in store.blocks()]]
    for number in (0, 1):
        store.delete(lambda table, number=number: table.column("id").to_numpy() == number)
        names.append([block.name for block in store.blocks()])
    assert [len(each) for each in names] == [1, 1, 1]
    assert len({each[0] for each in names}) == 3


def test_a_database_without_checksums_says_so(tmp_path: Path) -> None:
    import lance

    from qkv.database import Database

    rows = {"name": ["Ada"], "income": [1.0]}
    for backend in ("lance", "arrow"):
        made = Database.create(tmp_path / backend, rows, "name", "income", backend=backend)
        assert repr(made).endswith("1 row, version 1)")
    more = pa.table(rows)
    lance.write_dataset(more, str(tmp_path / "lance"), mode="append")
    foreign = Database.open(tmp_path / "lance")
    assert repr(foreign).endswith("2 rows, version 2, no checksums of 2 files)")
    assert stores.verify(tmp_path / "lance").unchecked == 2
    assert foreign.append(rows) == 3
    assert repr(Database.open(tmp_path / "lance")).endswith("3 rows, version 3)")


def test_repair_records_the_checksums_of_a_dataset_of_another_program(path: Path) -> None:
    import lance

    lance.write_dataset(numbered(0, 5), str(path))
    lance.write_dataset(numbered(5, 9), str(path), mode="append")
    assert stores.verify(path).unchecked == 4
    assert stores.repair(path, dry_run=True).recorded == 4
    assert not (path / CHECKSUMS).exists()
    done = stores.repair(path)
    assert (done.damages, done.version, done.rows, done.recorded) == ((), 2, 9, 4)
    assert stores.verify(path).unchecked == stores.open(path).unchecked == 0


@pytest.mark.parametrize("checksums", [True, False])
def test_a_changed_bit_is_found_before_lance_reads_it(path: Path, checksums: bool) -> None:
    """The bit is in the numbers, so that Lance decodes it."""
    stores.create(path, numbered(0, 1).schema, backend="lance", tables=[numbered(0, 4000)])
    (file,) = (path / "data").iterdir()
    state, data = file.stat(), bytearray(file.read_bytes())
    data[len(data) // 3] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    opened = stores.open(path, checksums=checksums)
    if checksums:
        for read in (opened.to_table, lambda: opened.take(np.array([5])), lambda: opened.compact()):
            with pytest.raises(DamagedStoreError, match=r"data/.*: the checksum does not match \(4,000 rows\)"):
                read()
        assert len(stores.open(path, damaged="skip")) == 0
        assert [damage.rows for damage in stores.verify(path).damages] == [4000]
    else:
        assert not opened.to_table().equals(numbered(0, 4000))


def damage(file: Path, how: str) -> None:
    data = bytearray(file.read_bytes())
    if how == "remove":
        file.unlink()
    elif how == "cut":
        file.write_bytes(data[: len(data) // 2])
    else:
        data[len(data) // 2] ^= 4
        file.write_bytes(data)


@pytest.mark.parametrize("compacted", [False, True])
def test_every_damaged_file_is_repaired_with_the_loss_that_is_named(
    path: Path, tmp_path: Path, compacted: bool
) -> None:
    store = made(path)
    assert store.delete(lambda table: table["id"].to_numpy() < 5) == 5
    if compacted:
        store.compact()
    store.append(numbered(30, 31))
    assert store.delete(lambda table: table["id"].to_numpy() == 29) == 1
    present = set(range(5, 29)) | {30}
    draw = random.Random(1)
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.name != "writer.lock")
    for number, file in enumerate(files):
        how = draw.choice(["flip", "remove", "cut"])
        copy = tmp_path / f"copy{number}"
        shutil.copytree(path, copy)
        damage(copy / file.relative_to(path), how)
        planned = stores.repair(copy, dry_run=True)
        done = stores.repair(copy)
        assert replace(done, folder=None) == replace(planned, folder=None)
        found = stores.verify(copy)
        assert (found.damages, found.unchecked, found.rows) == ((), 0, done.rows)
        kept = set(ids_of(stores.open(copy)))
        assert len(present - kept) == sum(done.lost.values()), (file, how)
        assert len(kept - present) == done.undeleted, (file, how)
        assert stores.open(copy).version == done.version
        if file.parent.name == "_versions":
            assert not done.lost
        elif file.parent.name == "data" and done.lost:
            assert done.folder is not None
            assert (done.folder / "data").is_dir() == (how != "remove")


def test_two_lost_manifests_are_restored_from_their_files(path: Path) -> None:
    store = made(path)
    store.append(numbered(30, 35))
    for _ in range(2):
        newest_manifest(path).unlink()
    done = stores.repair(path)
    assert (done.rows, done.lost, done.restored) == (35, {}, ("version 4", "version 5"))
    assert ids_of(stores.open(path)) == list(range(35))


def test_a_removed_old_version_is_reported_until_a_repair(path: Path) -> None:
    store = made(path)
    max((path / "_versions").glob("*.manifest"), key=lambda file: int(file.stem)).unlink()
    assert ids_of(stores.open(path)) == list(range(30))
    with pytest.raises(DamagedStoreError, match=r"manifest of version 1 .* missing"):
        store.versions()
    assert stores.repair(path).lost_versions == (1,)
    assert [version.number for version in stores.open(path).versions()] == [2, 3, 4]


def test_a_torn_line_of_checksums_is_recorded_by_the_next_write(path: Path) -> None:
    made(path)
    os.truncate(path / CHECKSUMS, (path / CHECKSUMS).stat().st_size - 20)
    opened = stores.open(path)
    assert opened.unchecked == 2
    opened.append(numbered(30, 31))
    assert opened.unchecked == stores.verify(path).unchecked == 0
    data = bytearray((path / CHECKSUMS).read_bytes())
    data[len(data) // 2] ^= 1
    (path / CHECKSUMS).write_bytes(data)
    with pytest.raises(DamagedStoreError, match=f"{CHECKSUMS}: the checksum of a line does not match"):
        stores.open(path)
    assert ids_of(stores.open(path, damaged="skip")) == list(range(31))
    stores.repair(path)
    assert ids_of(stores.open(path)) == list(range(31))


def test_tagged_versions_of_other_programs_survive_a_compaction(path: Path) -> None:
    store = made(path)
    store._dataset.tags.create("first", 2)
    store.compact(keep=1)
    assert [version.number for version in store.versions()] == [2, store.version]
    assert ids_of(store.at(2)) == list(range(10))
    assert stores.verify(path).damages == ()


def test_ctrl_c_within_lance_is_an_interruption_and_no_damage(path: Path) -> None:
    """Lance wraps the exception of a signal in an error of Arrow."""
    error = pa.ArrowInvalid("External error: KeyboardInterrupt: ")
    for translate in (translate_errors, translate_read_errors):
        with pytest.raises(KeyboardInterrupt), translate(path):
            raise error
