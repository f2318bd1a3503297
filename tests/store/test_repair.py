"""A repair keeps every row of an intact file, whatever is damaged, and nothing of it is found afterwards."""

import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from qkv import store as stores
from qkv.errors import DataError, StoreFullError
from qkv.store import manifest, row_files, versions
from qkv.store.manifest import manifest_path, numbers, read_manifest
from qkv.testing.stores import ids_of, numbered
from tests.effort import seeds

from .faults import FullDisk


@dataclass(frozen=True)
class Piece:
    """A file of rows in a version: its name, that of its deletions, and the ids of all and of the present rows."""

    name: str
    deleted: str
    ids: list[int]
    present: list[int]


def pieces(path: Path, number: int) -> list[Piece]:
    """The files of a version, as its manifest names them."""
    found = []
    schema = numbered(0, 1).schema
    for file in read_manifest(path / "versions", number).row_files:
        ids = row_files.MappedRows(path / "rows", file, schema).table().column("id").to_numpy()
        present = row_files.load_present(path / "rows", file)
        rest = ids if present is None else ids[present]
        found.append(Piece(file.name, file.deleted.name if file.deleted else "", ids.tolist(), rest.tolist()))
    return found


@pytest.fixture(name="template", scope="module")
def _template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, list[Piece]]]:
    """A store with merged files, deletions, checkpoints and an attached file, and the files of each version."""
    path = tmp_path_factory.mktemp("template") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "MAX_DELTAS", 4)
        patch.setattr(os, "fsync", lambda handle: None)
        store = stores.create(path, numbered(0, 1).schema, attached={"a.bin": b"attached"}, tables=[numbered(0, 20)])
        for i in range(2, 12):
            store.append(numbered(10 * i, 10 * i + 10))
        store.delete(lambda table: table.column("id").to_numpy() % 7 == 3)
        for i in range(12, 15):
            store.append(numbered(10 * i, 10 * i + 10))
        store.delete(lambda table: table.column("id").to_numpy() % 11 == 3)
        store.compact()
        store.append(numbered(150, 160))
        store.delete(lambda table: table.column("id").to_numpy() % 13 == 3)
        store.append(numbered(160, 170))
    return path, {number: pieces(path, number) for number in numbers(path / "versions")}


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(name="path")
def _path(template: tuple[Path, dict[int, list[Piece]]], tmp_path: Path) -> Path:
    shutil.copytree(template[0], tmp_path / "store")
    return tmp_path / "store"


def damage(file: Path, how: str, generator: random.Random) -> None:
    data = bytearray(file.read_bytes()) if file.is_file() else bytearray()
    if how == "missing" or not data:
        file.unlink(missing_ok=True)
        return
    at = generator.randrange(len(data))
    if how == "flip":
        data[at] ^= 1 << generator.randrange(8)
    elif how == "cut":
        del data[at:]
    elif how == "zero":
        data[at : at + 512] = bytes(len(data[at : at + 512]))
        data[at] ^= 255
    elif how == "longer":
        data += b"x"
    state = file.stat()
    file.write_bytes(data)
    if generator.random() < 0.5:
        os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))


HOW = ("flip", "cut", "missing", "zero", "longer")


def check_repair(path: Path, truth: dict[int, list[Piece]], seed: int) -> None:
    """Damage random files of a store, repair it, and compare every version with what its intact files hold."""
    generator = random.Random(seed)
    named = (name for each in truth.values() for piece in each for name in (piece.name, piece.deleted))
    used = [*dict.fromkeys(name for name in named if name)]
    newest = max(truth)
    kinds = {
        "rows": lambda: path / "rows" / generator.choice(used),
        "newest rows": lambda: path / "rows" / generator.choice([piece.name for piece in truth[newest]]),
        "deletions": lambda: path / "rows" / generator.choice([p.deleted for p in truth[newest] if p.deleted]),
        "manifest": lambda: manifest_path(path / "versions", generator.choice([*truth])),
        "newest manifest": lambda: manifest_path(path / "versions", newest),
        "newest.json": lambda: path / "versions" / versions.NEWEST,
        "attached": lambda: path / "attached" / "a.bin",
    }
    broken: set[str] = set()
    for kind in generator.choices([*kinds], k=generator.choice([1, 1, 2, 3, 5])):
        file = kinds[kind]()
        damage(file, generator.choice(HOW), generator)
        broken.add(file.name)
    newest_known = not {manifest_path(path / "versions", newest).name, versions.NEWEST} <= broken
    planned = stores.repair(path, dry_run=True)
    before = stores.verify(path)
    assert (before.damages != ()) == (broken != set()), seed
    done = stores.repair(path)
    assert (done.lost, done.lost_versions, done.rows, done.version) == (
        planned.lost,
        planned.lost_versions,
        planned.rows,
        planned.version,
    )
    found = stores.verify(path)
    assert found.damages == (), (seed, done)
    assert stores.repair(path).damages == ()
    store = stores.open(path)
    assert store.version == done.version
    assert len(store) == done.rows
    if newest_known:
        check_version(ids_of(store), truth[newest], broken, seed)
        assert newest not in done.lost_versions
    elif manifest_path(path / "versions", newest).name in [
        damage.file.removeprefix("versions/") for damage in done.damages
    ]:
        assert newest in done.lost_versions
    listed = {version.number: version for version in store.versions()}
    if not any(name.endswith(".json") for name in broken):
        assert done.lost_versions == ()
    # Rows of versions that nothing tells of are in files that are named.
    readable = {piece.name for number in listed for piece in truth.get(number, [])}
    unclaimed = {
        f"rows/{piece.name}" for each in truth.values() for piece in each if piece.name not in readable | broken
    }
    assert unclaimed <= {name for name, _ in done.unclaimed}, seed
    assert all((done.folder / name).exists() for name, _ in done.unclaimed), seed
    for number, expected in truth.items():
        if number == newest and not newest_known and number not in done.lost_versions:
            continue  # nothing tells of it, so that its number is given again
        if number < min(listed) and versions.NEWEST in broken:
            continue  # without `newest.json`, a compaction may have removed it
        if number in done.lost_versions:
            assert number not in listed
            continue
        ids = ids_of(store.at(number))
        check_version(ids, expected, broken, seed)
        assert (listed[number].rows, listed[number].lost) == (len(ids), done.lost.get(number, 0))
        assert len(ids) >= sum(len(piece.present) for piece in expected) - done.lost.get(number, 0)
    number = store.append(numbered(1000, 1003))
    assert number > max(done.version, newest if newest in {*listed, *done.lost_versions} else 0)
    assert ids_of(stores.open(path))[-3:] == [1000, 1001, 1002]
    assert stores.verify(path).damages == ()


def check_version(ids: list[int], expected: list[Piece], broken: set[str], seed: int) -> None:
    """Check the rows of a repaired version: those of intact files in order, and others only of damaged files."""
    intact = [i for piece in expected if not {piece.name, piece.deleted} & broken for i in piece.present]
    unsure = {i for piece in expected if {piece.name, piece.deleted} & broken for i in piece.ids}
    lost_deletions = {i for piece in expected if piece.deleted in broken - {piece.name} for i in piece.present}
    assert [i for i in ids if i not in unsure] == intact, seed
    assert set(ids) <= {*intact, *unsure}, seed
    assert len(set(ids)) == len(ids), seed
    assert {i for i in lost_deletions if not any(i in p.ids and p.name in broken for p in expected)} <= set(ids), seed
    order = {i: place for place, i in enumerate(i for piece in expected for i in piece.ids)}
    assert ids == sorted(ids, key=order.__getitem__), seed


@pytest.mark.parametrize("seed", seeds(1000, 4))
def test_random_damages_are_repaired(path: Path, template: tuple[Path, dict[int, list[Piece]]], seed: int) -> None:
    check_repair(path, template[1], seed)


def test_rows_deletions_and_manifests_that_are_damaged_together_are_repaired(
    path: Path, template: tuple[Path, dict[int, list[Piece]]]
) -> None:
    truth, newest = template[1], max(template[1])
    files = [f"rows/{truth[newest][place].name}" for place in (0, 2)]
    files += [f"rows/{next(piece.deleted for piece in truth[newest] if piece.deleted)}", "attached/a.bin"]
    files += [f"versions/{manifest_path(path, number).name}" for number in (6, newest)]
    for name in files:
        damage(path / name, "flip", random.Random(name))
    stores.repair(path)
    assert stores.verify(path).damages == ()
    check_version(ids_of(stores.open(path)), truth[newest], {Path(name).name for name in files}, 0)


def kept_state(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_damaged_merged_file_is_restored_from_those_that_were_merged(path: Path) -> None:
    ids, before = ids_of(stores.open(path)), kept_state(path)
    (first, *_) = (path / "rows" / piece.name for piece in pieces(path, stores.open(path).version))
    first.write_bytes(b"")
    done = stores.repair(path)
    assert (done.restored, done.lost, done.version) == ((f"rows/{first.name}",), {}, 21)
    assert ids_of(stores.open(path)) == ids
    after = kept_state(path)
    assert {name: after[name] for name in before} == before, (
        "the file has the same bytes, so no version is written again"
    )
    assert [name for name in after if name not in before] == [f"damaged/{done.folder.name}/rows/{first.name}"]


def test_a_dry_run_writes_nothing_and_needs_no_lock(path: Path) -> None:
    import filelock

    (path / "versions" / "0000000004.json").unlink()
    damage(next((path / "rows").iterdir()), "cut", random.Random(0))
    before = kept_state(path)
    with filelock.FileLock(path / "writer.lock"):
        done = stores.repair(path, dry_run=True)
    assert done.damages
    assert done.folder is None
    assert kept_state(path) == before | {"writer.lock": b""}


def test_an_older_newest_json_does_not_hide_later_versions(path: Path) -> None:
    before = (path / "versions" / versions.NEWEST).read_bytes()
    store = stores.open(path)
    for start in (200, 210, 220):
        store.append(numbered(start, start + 10))
    (path / "versions" / versions.NEWEST).write_bytes(before)
    assert len(stores.verify(path).damages) == 3
    done = stores.repair(path)
    assert (done.version, done.lost, done.lost_versions) == (24, {}, ())
    assert ids_of(stores.open(path))[-30:] == list(range(200, 230))
    assert stores.verify(path).damages == ()


def test_manifests_of_another_store_are_moved_aside(path: Path, tmp_path: Path) -> None:
    ids = ids_of(stores.open(path))
    shutil.copyfile(path / "versions" / "0000000007.json", path / "versions" / "0000000030.json")
    done = stores.repair(path)
    assert (done.version, done.lost, done.lost_versions) == (21, {}, ())
    assert (done.folder / "versions" / "0000000030.json").exists()
    assert ids_of(stores.open(path)) == ids
    assert stores.verify(path).damages == ()


def test_a_store_without_any_readable_manifest_is_refused(path: Path) -> None:
    for file in (path / "versions").iterdir():
        file.write_bytes(b"")
    with pytest.raises(DataError, match="must have a manifest that can be read, got none"):
        stores.repair(path)


def test_a_removed_attached_file_is_not_missed_after_a_repair(path: Path) -> None:
    ids = ids_of(stores.open(path))
    (path / "attached" / "a.bin").unlink()
    done = stores.repair(path)
    assert (done.lost, done.rows) == ({}, len(ids))
    assert ids_of(stores.open(path)) == ids
    with pytest.raises(DataError, match="must be an attached file"):
        stores.read_attached(path, stores.open(path).metadata, "a.bin")


def test_stores_of_earlier_formats_are_repaired(tmp_path: Path) -> None:
    saved = Path(__file__).parents[1] / "saved"
    folders = [folder for folder in saved.rglob("*") if stores.is_store(folder) and (folder / "rows").is_dir()]
    assert folders
    for place, folder in enumerate(folders):
        path = tmp_path / str(place)
        shutil.copytree(folder, path)
        total = len(stores.open(path))
        victim = max((path / "rows").glob("*.arrow"), key=lambda file: file.stat().st_size)
        victim.write_bytes(b"x")
        done = stores.repair(path)
        assert done.lost
        assert done.rows < total or done.restored
        assert stores.verify(path).damages == ()
        assert len(stores.open(path)) == done.rows


def test_a_full_disk_during_a_repair_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ids_of(stores.open(path))
    for file in ("versions/0000000021.json", "versions/newest.json", "attached/a.bin"):
        damage(path / file, "flip" if "newest" not in file else "longer", random.Random(1))
    disk = FullDisk(monkeypatch)
    for full_at in (1, 2, 4, 7):
        disk.full_at, disk.calls = full_at, 0
        with pytest.raises(StoreFullError, match="free some space"):
            stores.repair(path)
    monkeypatch.undo()
    stores.repair(path)
    assert stores.verify(path).damages == ()
    assert set(ids_of(stores.open(path))) <= set(expected)


def test_the_intact_rows_of_a_lance_store_are_copied_or_kept_by_a_repair(tmp_path: Path) -> None:
    pytest.importorskip("lance")
    store = stores.create(tmp_path / "s", numbered(0, 1).schema, backend="lance", tables=[numbered(0, 10)])
    store.append(numbered(10, 20))
    min((tmp_path / "s" / "data").iterdir(), key=lambda file: file.stat().st_mtime_ns).unlink()
    copied = stores.copy(stores.open(tmp_path / "s", damaged="skip"), tmp_path / "rest", backend="lance")
    assert ids_of(copied) == list(range(10, 20))
    done = stores.repair(tmp_path / "s")
    assert (done.version, done.lost, done.lost_versions) == (3, {2: 10}, (1, 2))
    assert ids_of(stores.open(tmp_path / "s")) == list(range(10, 20))


def test_no_rows_are_added_by_a_repair_of_an_empty_store(tmp_path: Path) -> None:
    stores.create(tmp_path / "s", pa.schema({"x": pa.int64()}))
    assert stores.repair(tmp_path / "s") == stores.Repair((), 1, 0)
    (tmp_path / "s" / "versions" / "0000000001.json").write_bytes(b"")
    done = stores.repair(tmp_path / "s")
    assert (done.restored, done.version, done.rows) == (("versions/0000000001.json",), 1, 0)
    assert stores.open(tmp_path / "s").append(pa.table({"x": np.arange(3)})) == 2
