"""Stores in object storage: the contract, conditional commits, stopped clients, damage, and what a query reads."""

import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("obstore", reason="obstore is not installed")

import obstore
from obstore.store import MemoryStore

from qkv import Database
from qkv import store as stores
from qkv.errors import DamagedStoreError, DataError, OptionError, StorageError, StoreConflictError
from qkv.store import ObjectPath, RemoteStore, arrow, remote
from qkv.store.block_cache import BlockCache
from qkv.store.page_checksums import PAGE
from qkv.testing.stores import StoreContract, ids_of, numbered

from .object_stores import Stopped, TestClient, at


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("QKV_BLOCK_CACHE", raising=False)


class TestRemoteStore(StoreContract):
    backend = "arrow"

    @pytest.fixture
    def path(self) -> Any:
        return at(MemoryStore())

    def file_names(self, path: Any) -> list[str]:
        return sorted(each.key for each in path.iterdir())

    def test_a_reader_continues_while_the_store_is_compacted(self, path: Any) -> None:
        """A version is read when it is used; a reader of a removed one is told to refresh."""
        made = self.created(path, (0, 5000), (5000, 6000))
        reader = stores.open(path)
        made.delete(lambda table: table.column("id").to_numpy() < 5000)
        made.compact()
        assert ids_of(reader) == list(range(6000))
        made.compact(keep=1)
        reader = stores.open(path, version=made.version)
        assert ids_of(reader) == list(range(5000, 6000))

    @pytest.mark.parametrize("how", ["removed", "cut off", "changed"])
    def test_a_damaged_attached_file_is_named(self, path: Any, how: str) -> None:
        store, file = self.attached(path), path / "attached" / "notes.bin"
        data = bytearray(file.read_bytes())
        data[100] ^= 1
        if how == "removed":
            file.unlink()
        else:
            file.write_bytes(bytes(data[:100] if how == "cut off" else data))
        with pytest.raises(DamagedStoreError, match=r"notes\.bin: (missing|cut off|the checksum does not match)"):
            stores.read_attached(store.path, store.metadata, "notes.bin")
        rest = stores.open(path, damaged="skip")
        assert ids_of(rest) == list(range(10))
        assert [damage.file for damage in rest.verify()] == ["attached/notes.bin"]

    def test_removing_a_store_leaves_other_files_of_its_folder(self, path: Any) -> None:
        self.created(path, (0, 10)).delete(lambda table: table.column("id").to_numpy() < 4)
        (path / "mine.txt").write_bytes(b"mine")
        stores.remove(path)
        assert self.file_names(path) == ["people/mine.txt"]

    def test_a_store_is_not_created_over_existing_files(self, path: Any) -> None:
        (path / "mine.txt").write_bytes(b"mine")
        with pytest.raises(DataError, match="must be new or an empty folder"):
            self.created(path)
        assert self.file_names(path) == ["people/mine.txt"]

    def test_a_copy_replaces_only_a_store_and_only_if_asked(self, path: Any) -> None:
        store, target = self.created(path, (0, 10)), path.with_name("target")
        self.created(target, (0, 3))
        with pytest.raises(DataError, match="must be new or an empty folder"):
            stores.copy(store, target)
        with pytest.raises(OptionError, match="overwrite must be False for a URL"):
            stores.copy(store, target, overwrite=True)
        for place in (path, path / "inside"):
            with pytest.raises(DataError, match="apart from the store"):
                stores.copy(store, place)
        assert ids_of(stores.open(target)) == [0, 1, 2]

    def test_verification_covers_older_versions(self, path: Any) -> None:
        store = self.created(path, (0, 10), (10, 20))
        first = next(iter(store.at(2).block_names()))
        store.delete(lambda table: table.column("id").to_numpy() < 10)
        assert stores.verify(path).damages == ()
        (path / "rows" / first).unlink()
        (damage,) = stores.verify(path).damages
        assert (damage.file, damage.problem, damage.versions) == (f"rows/{first}", "missing", (2, 3))
        assert ids_of(stores.open(path)) == list(range(10, 20))

    def test_verification_changes_no_file(self, path: Any) -> None:
        self.created(path, (0, 10), attached={"a.bin": b"a"})
        before = path.client.entries("")
        assert stores.verify(path).damages == ()
        assert path.client.entries("") == before


def made(bucket: MemoryStore, *parts: tuple[int, int]) -> stores.Store:
    store = stores.create(at(bucket), numbered(0, 1).schema)
    for part in parts:
        store.append(numbered(*part))
    return store


# -- writers --------------------------------------------------------------------------------------------


def append_in_threads(bucket: MemoryStore, writers: int, count: int) -> None:
    def write(first: int) -> None:
        store = stores.open(at(bucket))
        for row in range(first, first + count):
            store.append(numbered(row, row + 1))

    threads = [threading.Thread(target=write, args=(count * number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_no_append_of_two_writers_is_lost() -> None:
    bucket = MemoryStore()
    made(bucket)
    append_in_threads(bucket, 2, 5)
    store = stores.open(at(bucket))
    assert sorted(ids_of(store)) == list(range(10))
    assert [version.operation for version in store.versions()].count("append") == 10
    assert store.verify() == []


def test_an_append_to_a_stale_version_follows_the_newest() -> None:
    bucket = MemoryStore()
    first = made(bucket, (0, 2))
    stale = stores.open(at(bucket))
    first.append(numbered(2, 3))
    stale._latest = lambda: stale.version  # type: ignore[method-assign]  # the other commit is noticed by nobody
    assert stale.append(numbered(3, 4)) == 4
    assert ids_of(stores.open(at(bucket))) == [0, 1, 2, 3]


def test_an_append_whose_answer_was_lost_is_committed_once() -> None:
    bucket = MemoryStore()
    store = made(bucket, (0, 2))
    client = store.path.client  # type: ignore[attr-defined]
    client.lost = True
    store.append(numbered(2, 4))
    assert ids_of(stores.open(at(bucket))) == [0, 1, 2, 3]


def test_an_append_is_saved_though_merging_its_files_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = MemoryStore()
    store = made(bucket, *((row, row + 1) for row in range(7)))

    def fail(*_: Any) -> None:
        raise StorageError("no answer")

    monkeypatch.setattr(arrow, "read_block", fail)
    assert store.append(numbered(7, 8)) == 9
    assert ids_of(stores.open(at(bucket))) == list(range(8))
    assert len(store.path.client.entries("people/rows")) == 8  # type: ignore[attr-defined]


def test_files_whose_commit_has_no_answer_are_not_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = MemoryStore()
    store = made(bucket, (0, 2))
    client = store.path.client  # type: ignore[attr-defined]
    create = client.create

    def commit_without_answer(*given: Any) -> bool:
        create(*given)
        raise StorageError("no answer")

    monkeypatch.setattr(client, "create", commit_without_answer)
    with pytest.raises(StorageError):
        store.append(numbered(2, 4))
    monkeypatch.undo()
    assert ids_of(stores.open(at(bucket))) == [0, 1, 2, 3]


def test_a_deletion_sees_the_rows_that_another_writer_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = MemoryStore()
    store = made(bucket, (0, 4))
    appended = []

    def choose(table: pa.Table) -> np.ndarray:
        if not appended:
            appended.append(stores.open(at(bucket)).append(numbered(4, 8)))
        return table.column("id").to_numpy() % 2 == 0

    assert store.delete(choose) == 4
    assert ids_of(stores.open(at(bucket))) == [1, 3, 5, 7]
    assert stores.verify(at(bucket)).damages == ()


def test_a_compaction_of_changed_rows_is_refused_and_one_beside_an_append_is_not() -> None:
    bucket = MemoryStore()
    store = made(bucket, (0, 4), (4, 8))

    def meanwhile(change: Any) -> Any:
        def progress(*_: Any) -> None:
            if change:
                change.pop()(stores.open(at(bucket)))

        return progress

    store.compact(progress=meanwhile([lambda other: other.append(numbered(8, 9))]))
    assert ids_of(stores.open(at(bucket))) == list(range(9))
    with pytest.raises(StoreConflictError, match="Nothing was committed; try again"):
        store.compact(progress=meanwhile([lambda other: other.delete(lambda t: t.column("id").to_numpy() == 1)]))
    assert ids_of(stores.open(at(bucket))) == [0, *range(2, 9)]


def _append(path: ObjectPath) -> None:
    stores.open(path).append(numbered(20, 30))


def _delete(path: ObjectPath) -> None:
    stores.open(path).delete(lambda table: table.column("id").to_numpy() < 5)


def _compact(path: ObjectPath) -> None:
    stores.open(path).compact(keep=1)


@pytest.mark.parametrize("operation", [_append, _delete, pytest.param(_compact, marks=pytest.mark.long)])
def test_a_client_that_stops_at_any_request_leaves_a_readable_version(operation: Any) -> None:
    after = {_append: list(range(30)), _delete: list(range(5, 20)), _compact: list(range(20))}[operation]
    stops = 0
    while True:
        bucket = MemoryStore()
        made(bucket, (0, 10), (10, 20))
        before = ids_of(stores.open(at(bucket)))
        try:
            operation(at(bucket, left=stops))
            break
        except Stopped:
            stops += 1
        assert ids_of(stores.open(at(bucket))) in (before, after)
        assert stores.verify(at(bucket)).damages == ()
        if ids_of(stores.open(at(bucket))) == before:
            operation(at(bucket))
        assert ids_of(stores.open(at(bucket))) == after
        assert stores.verify(at(bucket)).damages == ()
    assert stops > 8


def test_a_creation_that_stops_at_any_request_can_be_repeated() -> None:
    for left in range(100):
        bucket = MemoryStore()
        try:
            stores.create(at(bucket, left), numbered(0, 1).schema, tables=[numbered(0, 9)], attached={"a": b"a"})
            break
        except Stopped:
            pass
        if not stores.is_store(at(bucket)):
            stores.create(at(bucket), numbered(0, 1).schema, tables=[numbered(0, 9)], attached={"a": b"a"})
        assert ids_of(stores.open(at(bucket))) == list(range(9))
        assert stores.verify(at(bucket)).damages == ()
    assert left > 5


def test_an_open_version_of_removed_files_is_told_to_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_BLOCK_CACHE", "0")
    bucket = MemoryStore()
    store = made(bucket, (0, 10))
    reader = stores.open(at(bucket))
    store.delete(lambda table: table.column("id").to_numpy() < 4)
    store.compact(keep=1)
    with pytest.raises(DamagedStoreError, match="refresh"):
        ids_of(reader)
    assert reader.refresh()
    assert ids_of(reader) == list(range(4, 10))


def test_compaction_keeps_files_that_another_writer_is_about_to_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = MemoryStore()
    store = made(bucket, (0, 10))
    foreign = store.path / "rows" / f"{'0' * 32}.arrow"
    obstore.put(bucket, foreign.key, b"rows of an append that goes on")  # type: ignore[attr-defined]
    store.compact(keep=1)
    assert foreign.exists()
    monkeypatch.setattr(remote, "_UNNAMED_SECONDS", -60.0)
    store.compact(keep=1)
    assert not foreign.exists()


# -- reading --------------------------------------------------------------------------------------------

WIDE = pa.table(
    {
        "x": np.arange(24_000.0),
        "y": np.arange(24_000.0) ** 2,
        "text": [f"a long text of row {row:0180d}" for row in range(24_000)],
        "label": ["low", "high"] * 12_000,
    }
)


def wide(bucket: MemoryStore) -> RemoteStore:
    """Create a store of three files of 8,000 rows, in which the texts take most bytes."""
    store = stores.create(at(bucket), WIDE.schema)
    for start in range(0, 24_000, 8_000):
        store.append(WIDE.slice(start, 8_000))
    assert isinstance(store, RemoteStore)
    return store


def test_a_column_is_read_without_the_others_and_once() -> None:
    bucket = MemoryStore()
    wide(bucket)
    path = at(bucket)
    store = stores.open(path)
    assert isinstance(store, RemoteStore)
    read = store.traffic.read
    assert store.to_table(["y"]).column("y").to_pylist() == WIDE.column("y").to_pylist()
    read = store.traffic.read - read
    assert 24_000 * 8 < read < 24_000 * 8 + 3 * 4 * PAGE + 10_000 < WIDE.nbytes / 4
    ranges = path.client.ranges  # type: ignore[attr-defined]
    assert all(stop - start < 4 * PAGE for _, start, stop in ranges)
    again = stores.open(at(bucket))
    assert again.to_table(["y"]).equals(store.to_table(["y"]))
    assert again.path.client.ranges == []  # type: ignore[attr-defined]


def test_the_rows_of_one_block_are_taken_without_the_other_blocks() -> None:
    bucket = MemoryStore()
    wide(bucket)
    path = at(bucket)
    store = stores.open(path)
    assert store.take(np.array([8_003, 15_999])).to_pylist() == WIDE.take([8_003, 15_999]).to_pylist()
    keys = {key for key, _, _ in path.client.ranges}  # type: ignore[attr-defined]
    assert keys == {f"people/rows/{store.block_names()[1]}"}


def test_a_few_rows_are_read_without_the_other_pages_of_their_columns() -> None:
    bucket, draw = MemoryStore(), np.random.default_rng(0)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(draw.standard_normal(64_000).astype(np.float32)), 8)
    columns = {
        "flag": pa.array(draw.random(8_000) < 0.5, mask=draw.random(8_000) < 0.1),
        "large": pa.array([f"text {row:0200d}" for row in range(8_000)], pa.large_string()),
        "vector": vectors,
        "list": [[row] * (row % 3) for row in range(8_000)],
        "kind": pa.array(["a", "b", "c", None] * 2_000).dictionary_encode(),
    }
    first = WIDE.slice(0, 8_000)
    table = pa.table({name: first.column(name) for name in first.column_names} | columns)
    stores.create(at(bucket), table.schema, tables=iter([table]))
    rows, store = np.array([0, 4_321, 7_999]), stores.open(at(bucket))
    for names in (["text"], ["y", "large", "flag"], ["vector", "x"], table.column_names):
        assert store.take(rows, names).equals(table.select(names).take(pa.array(rows)))
    fresh = RemoteStore(at(bucket), cache=BlockCache(Path(), 0))
    read = fresh.traffic.read
    fresh.take(np.array([4_321]), ["text", "large"])
    assert fresh.traffic.read - read < 12 * PAGE < table.select(["text", "large"]).nbytes / 3


def test_a_query_reads_the_key_the_value_and_the_rows_of_evidence() -> None:
    bucket = MemoryStore()
    wide(bucket)
    path = at(bucket)
    texts = sum(table.nbytes for table in [WIDE.select(["text"])])
    options: dict[str, Any] = {"score": "gaussian:1", "normalizer": "topk:3", "where": "x > 100"}
    answer = Database.open(path, "x", "label", memory="1 MiB").ask(12_000.2, **options)
    assert f"from {path}" in answer.common_notes[-1]
    assert "read " in str(answer.plan)
    assert path.client.traffic.read < texts / 3
    assert answer.rows[0].record["text"] == WIDE.column("text")[12_000].as_py()
    loaded = Database.open(at(bucket), "x", "label").ask(12_000.2, **options)
    for other in (loaded, Database.open(WIDE, "x", "label").ask(12_000.2, **options)):
        assert (other.value, len(other.rows)) == (answer.value, len(answer.rows))
        assert [row.record for row in other.rows] == [row.record for row in answer.rows]
        assert [row.weight for row in other.rows] == pytest.approx([row.weight for row in answer.rows], abs=1e-12)


def test_a_store_that_was_uploaded_from_a_disk_is_read(tmp_path: Path) -> None:
    local = stores.create(tmp_path / "local", WIDE.schema, tables=[WIDE])
    local.delete(lambda table: table.column("x").to_numpy() < 7)
    bucket = MemoryStore()
    for file in (tmp_path / "local").rglob("*"):
        if file.is_file():
            obstore.put(bucket, f"people/{file.relative_to(tmp_path / 'local')}", file.read_bytes())
    store = stores.open(at(bucket))
    assert store.to_table(["y"]).equals(local.to_table(["y"]))
    assert stores.open(at(bucket)).to_table().equals(local.to_table())
    store.append(WIDE.slice(0, 5))
    assert len(stores.open(at(bucket))) == len(local) + 5


def test_a_changed_page_is_never_read() -> None:
    bucket = MemoryStore()
    wide(bucket)
    store = stores.open(at(bucket))
    key = f"people/rows/{store.block_names()[0]}"
    data = bytearray(obstore.get(bucket, key).bytes())
    data[len(data) // 2] ^= 1
    obstore.put(bucket, key, bytes(data))
    with pytest.raises(DamagedStoreError, match="the checksum does not match"):
        store.to_table(["text"])
    assert store.to_table(["x"]).num_rows == 24_000  # its pages are intact
    skipped = stores.open(at(bucket), damaged="skip")
    assert len(skipped) == 16_000
    obstore.put(bucket, key, bytes(data[:100_000]))
    with pytest.raises(DamagedStoreError, match="cut off"):
        stores.open(at(bucket)).to_table(["text"])


def test_a_damaged_cache_is_read_again(tmp_path: Path) -> None:
    bucket = MemoryStore()
    wide(bucket)
    stores.open(at(bucket)).to_table()
    files = list((tmp_path / "cache" / "blocks").iterdir())
    assert len(files) == 6
    for file in files:
        data = bytearray(file.read_bytes())
        for place in random.Random(0).sample(range(len(data)), min(20, len(data))):
            data[place] ^= 255
        file.write_bytes(data[: len(data) - 10])
    assert stores.open(at(bucket)).to_table().equals(WIDE)


def test_the_cache_stays_within_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = BlockCache(tmp_path / "blocks", 2**20)
    for number in range(40):
        cache.write(f"{number}.arrow", 0, bytes([number]) * 100_000)
        assert cache.size() <= 2**20 + 2**16
    assert cache.size() > 2**19
    monkeypatch.setenv("QKV_BLOCK_CACHE", "0")
    bucket = MemoryStore()
    wide(bucket)
    assert stores.open(at(bucket)).to_table().equals(WIDE)
    assert not (tmp_path / "cache" / "blocks").exists()


def test_dictionaries_and_nested_columns_are_read_alone() -> None:
    rows = 30_000
    table = pa.table(
        {
            "city": pa.array([f"city {row % 5_000}" for row in range(rows)]).dictionary_encode(),
            "list": pa.array([[row, row + 1] for row in range(rows)]),
            "record": pa.array([{"a": row, "b": str(row)} for row in range(rows)]),
            "number": pa.array(range(rows)),
        }
    )
    path = at(MemoryStore())
    store = stores.create(path, table.schema, tables=[table])
    for name in table.column_names:
        assert stores.open(path).to_table([name]).equals(table.select([name]))
    assert store.to_table(["number", "city"]).equals(table.select(["number", "city"]))


def test_a_read_only_place_is_not_written() -> None:
    bucket = MemoryStore()
    made(bucket, (0, 4))
    client = TestClient(bucket, url="https://host/bucket")
    client.writable, client.lists = False, False
    store = stores.open(ObjectPath(client, "people"))
    assert ids_of(store) == [0, 1, 2, 3]
    assert [version.number for version in store.versions()] == [1, 2]
    with pytest.raises(StorageError, match="read-only"):
        store.append(numbered(4, 5))
