"""Creating a store is atomic: interrupted, it leaves nothing or a complete store."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from qkv import store as stores
from qkv.core import files
from qkv.database import Database
from qkv.errors import DataError
from qkv.store import disk, opening
from qkv.testing.stores import ids_of, numbered

ROWS = {"name": [f"person {i}" for i in range(300)], "income": [float(i) for i in range(300)]}
BACKENDS = ["arrow", "lance"]


def create(path: Path, backend: str = "arrow") -> stores.Store:
    if backend == "lance":
        pytest.importorskip("lance")
    tables = (numbered(start, start + 10) for start in (0, 10, 20))
    return stores.create(path, numbered(0, 1).schema, backend=backend, attached={"a.bin": b"a"}, tables=tables)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_first_rows_are_version_1(tmp_path: Path, backend: str) -> None:
    store = create(tmp_path / "s", backend)
    assert ids_of(store) == list(range(30))
    assert [(v.number, v.operation, v.rows) for v in store.versions()] == [(1, "create", 30)]
    assert store.append(numbered(30, 31)) == 2
    assert stores.open(tmp_path / "s").verify() == []
    if backend == "lance":
        pytest.importorskip("lance")
    database = Database.create(tmp_path / "d", ROWS, "name", "income", backend=backend)
    assert database.version == 1
    assert len(database) == 300


@pytest.mark.parametrize("at", [0, 5])
def test_an_interrupted_command_can_be_repeated(tmp_path: Path, at: int) -> None:
    def tables() -> Iterator[pa.Table]:
        for i in range(8):
            if i == at:
                raise KeyboardInterrupt
            yield pa.table(ROWS)

    path = tmp_path / "new" / "people"
    with pytest.raises(KeyboardInterrupt):
        Database.create(path, tables(), "name", "income")
    assert [*tmp_path.iterdir()] == []  # in 9 of 10 cases an empty store was left, and the command refused to run
    assert len(Database.create(path, ROWS, "name", "income")) == 300


def test_a_folder_of_a_process_that_was_killed_before_it_locked_it_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".s.0123456789abcdef.part").mkdir()
    create(tmp_path / "s")
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


def test_a_folder_that_is_removed_before_it_is_locked_is_created_again(tmp_path: Path) -> None:
    class Lock:
        tries = 0

        def acquire(self) -> None:
            self.tries += 1
            if self.tries < 3:
                (tmp_path / "new").rmdir()
                raise FileNotFoundError

    lock = Lock()
    opening._make_locked(tmp_path / "new", lock)  # type: ignore[arg-type]
    assert (tmp_path / "new").is_dir()
    assert lock.tries == 3


def test_rows_that_do_not_fit_leave_nothing(tmp_path: Path) -> None:
    tables = [numbered(0, 3), pa.table({"id": ["x"], "vector": [[1.0]]})]
    with pytest.raises(DataError, match="rows must fit the column types of 's'"):
        stores.create(tmp_path / "a" / "s", numbered(0, 1).schema, tables=tables)
    assert [*tmp_path.iterdir()] == []


def test_an_existing_empty_folder_becomes_the_store(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    assert ids_of(create(tmp_path / "s")) == list(range(30))


@pytest.mark.parametrize("is_store", [False, True])
def test_a_folder_or_store_that_appears_in_the_meantime_is_not_overwritten(tmp_path: Path, is_store: bool) -> None:
    def tables() -> Iterator[pa.Table]:
        yield numbered(0, 3)
        if is_store:
            create(tmp_path / "s")  # another process is faster
        else:
            (tmp_path / "s").mkdir()
            (tmp_path / "s" / "mine.txt").write_text("mine")

    with pytest.raises(DataError, match="path must be a new or empty folder"):
        stores.create(tmp_path / "s", numbered(0, 1).schema, tables=tables())
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]
    assert (ids_of(stores.open(tmp_path / "s")) == list(range(30))) if is_store else (tmp_path / "s/mine.txt").exists()


def test_each_new_parent_folder_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    for module in (files, disk):
        monkeypatch.setattr(module, "fsync", lambda path, real=module.fsync: synced.append(Path(path)) or real(path))
    create(tmp_path / "a" / "b" / "s")
    assert {tmp_path, tmp_path / "a", tmp_path / "a" / "b"} <= set(synced)
    assert synced[-1] == tmp_path / "a" / "b"
