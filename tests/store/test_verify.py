"""Verification covers all versions and files, needs no right to write, and is no race with writers."""

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from qkv import store as stores
from qkv.database import Database
from qkv.store import row_files
from qkv.testing.stores import numbered

from .faults import flip


@pytest.fixture(name="template", scope="module")
def _template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "store"
    store = stores.create(path, numbered(0, 1).schema, attached={"a.bin": b"attached"})
    for i in range(12):
        store.append(numbered(10 * i, 10 * i + 10))
    store.delete(lambda table: table.column("id").to_numpy() == 3)
    return path


@pytest.fixture(name="path")
def _path(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template, tmp_path / "store")
    return tmp_path / "store"


def kinds(path: Path) -> list[tuple[str, str]]:
    return [(damage.file, damage.kind) for damage in stores.verify(path).damages]


def test_one_changed_bit_of_any_file_is_found(path: Path) -> None:
    files = [file for file in path.rglob("*") if file.is_file() and file.name != "writer.lock"]
    assert {file.parent.name for file in files} == {"versions", "rows", "attached"}
    for file in files:
        flip(file, file.stat().st_size // 2)
        name = str(file.relative_to(path))
        assert name in [damage.file for damage in stores.verify(path).damages], name
        flip(file, file.stat().st_size // 2)
    assert stores.verify(path).damages == ()


def test_damaged_results_in_the_cache_are_found_and_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s"
    rows = {"place": [[float(i), 1.0] for i in range(40)], "height": [float(i) for i in range(40)]}
    source = pa.table(rows, pa.schema({"place": pa.list_(pa.float32(), 2), "height": pa.float64()}))
    Database.create(path, source, "place", "height", memory=1).ask([0.5, 1.0], score="cosine")
    assert stores.verify(path).damages == ()
    notes = sorted((path / "notes").iterdir())
    assert {note.suffix for note in notes} == {".examples", ".norms", ".statistics"}
    for note in notes:
        flip(note, note.stat().st_size - 70)
        assert kinds(path) == [(f"notes/{note.name}", "cache")]
        note.write_bytes(b"")
        assert kinds(path) == [(f"notes/{note.name}", "cache")]
        note.unlink()
    assert stores.verify(path).damages == ()


def test_versions_that_follow_from_a_damaged_manifest_are_named(path: Path) -> None:
    (path / "versions" / "0000000004.json").unlink()
    (damage,) = stores.verify(path).damages
    assert (damage.file, damage.problem, damage.kind) == ("versions/0000000004.json", "missing", "manifest")
    # The eight files of version 9 are merged in version 10, so those of 5 to 9 are not known from later versions.
    assert damage.versions == (4, 5, 6, 7, 8, 9)
    (path / "versions" / "0000000004.json").mkdir()
    assert "must be a file" in stores.verify(path).damages[0].problem


def test_a_damaged_newest_version_is_reported_rather_than_raised(path: Path) -> None:
    newest = max((path / "versions").glob("0*.json"))
    newest.write_bytes(b"")
    found = stores.verify(path)
    assert [(damage.file, damage.versions) for damage in found.damages] == [(f"versions/{newest.name}", (15,))]
    shutil.rmtree(path / "versions")
    (path / "versions").mkdir()
    with pytest.raises(ValueError, match="path must be a store with at least one version"):
        stores.verify(path)


@pytest.fixture(name="foreign")
def _foreign(path: Path) -> Iterator[Path]:
    """The store of another user, without the right to write."""
    folder = Path(tempfile.mkdtemp())
    shutil.copytree(path, folder / "store", copy_function=shutil.copy2)
    for each in (folder, folder / "store", *(folder / "store").rglob("*")):
        each.chmod(0o555 if each.is_dir() else 0o444)
    yield folder / "store"
    for each in (folder, *folder.rglob("*")):
        each.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.filterwarnings("ignore:os.fork")
@pytest.mark.filterwarnings("ignore:lance is not fork-safe")
@pytest.mark.parametrize("damaged", [False, True])
def test_a_user_without_the_right_to_write_verifies(foreign: Path, damaged: bool) -> None:
    if damaged:
        victim = max((foreign / "rows").iterdir())
        victim.chmod(0o644)
        flip(victim, 300)
        victim.chmod(0o444)
    pid = os.fork()
    if pid == 0:
        code = 9
        try:
            if os.getuid() == 0:  # permissions do not bind root
                os.setgid(65534)
                os.setuid(65534)
            try:
                (foreign / "rows" / "x").write_bytes(b"")
                code = 8
            except PermissionError:
                code = len(stores.verify(foreign).damages)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == damaged


def test_files_that_a_compaction_removes_are_not_damaged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, calls = row_files.find_problem, 0

    def compacting(*arguments: object) -> str | None:
        nonlocal calls
        calls += 1
        if calls in (3, 15):  # between the manifests and the files of the first and of the second pass
            stores.open(path).append(numbered(0, 5000))
            stores.open(path).compact(keep=1)
        return whole(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(row_files, "find_problem", compacting)
    found = stores.verify(path)
    assert found.damages == ()
    assert calls > 15
    assert found.rows == 119 + 10_000


def test_verification_is_no_race_with_a_writer(path: Path) -> None:
    stop, errors = threading.Event(), list[BaseException]()

    def write() -> None:
        try:
            store = stores.open(path)
            while not stop.is_set():
                for _ in range(3):
                    store.append(numbered(0, 5))
                store.compact(keep=2)
        except BaseException as error:
            errors.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(15):
            assert stores.verify(path).damages == ()
    finally:
        stop.set()
        writer.join()
    assert errors == []
