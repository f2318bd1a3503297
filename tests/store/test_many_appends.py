"""Many small appends: deltas and checkpoints give the rows of a list, few files remain, and no version is lost."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv import store as stores
from qkv.errors import DamagedStoreError, DataError, StoreFullError
from qkv.store import arrow, manifest
from qkv.store.arrow import FAN_IN, first_merged
from qkv.store.manifest import RowFile, manifest_path, numbers, read_manifest, read_record
from qkv.testing.stores import ids_of, numbered
from tests.effort import cases

APPENDS = 300


@pytest.fixture(name="built", scope="module")
def _built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int], list[int]]:
    """A store after 300 appends of 10 rows, and after each the bytes that it wrote and the files that it left."""
    path = tmp_path_factory.mktemp("stream") / "store"
    store = stores.create(path, numbered(0, 1).schema)
    sizes, read = [], []
    for i in range(APPENDS):
        before = set(os.listdir(path / "versions"))
        store.append(numbered(10 * i, 10 * i + 10))
        new = set(os.listdir(path / "versions")) - before
        sizes.append(sum((path / "versions" / name).stat().st_size for name in new))
        read.append(len(store.block_lengths()))
    return path, sizes, read


@pytest.fixture(name="stream", scope="module")
def _stream(built: tuple[Path, list[int], list[int]]) -> Path:
    """A store after 300 appends of 10 rows."""
    return built[0]


def test_few_files_and_few_deltas_remain(stream: Path) -> None:
    store = stores.open(stream)
    assert isinstance(store, arrow.ArrowStore)
    assert len(store.block_lengths()) < FAN_IN * 4
    records = [read_record(stream / "versions", number) for number in numbers(stream / "versions")]
    checkpoints = [record.number for record in records if record.inherited is None]
    assert max(np.diff([*checkpoints, records[-1].number])) <= manifest.MAX_DELTAS + 1


def test_a_manifest_takes_at_most_300_bytes_beyond_the_entry_of_its_row_file(stream: Path) -> None:
    folder = stream / "versions"
    size = sum((folder / name).stat().st_size for name in os.listdir(folder))
    entries = 0
    for number in numbers(folder):
        record = read_record(folder, number)
        if record.inherited is not None:
            body = json.loads(json.loads((folder / f"{number:010d}.json").read_bytes())["manifest"])
            entries += len(json.dumps(json.dumps(body["pieces"], separators=(",", ":"))))
    assert (size - entries) / len(numbers(folder)) <= 300


def test_a_small_append_writes_as_much_after_300_appends_as_after_10(built: tuple[Path, list[int], list[int]]) -> None:
    _, sizes, read = built
    deltas = [size for size in sizes if size < 2000]
    assert np.mean(deltas[-50:]) <= 1.2 * np.mean(deltas[5:50])
    assert len(deltas) >= 0.9 * len(sizes)
    assert max(read) < FAN_IN * 4


@given(
    st.lists(st.integers(1, 30) | st.integers(10**10 - 3, 10**10 + 3) | st.integers(10**17, 10**18 - 1), unique=True),
    st.integers(1, 31) | st.integers(10**10 - 4, 10**10 + 4),
)
@settings(max_examples=cases(50), deadline=None)
def test_the_numbers_from_a_version_on_are_those_of_all_manifests(made: list[int], least: int) -> None:
    names = [
        *(manifest_path(Path(), number).name for number in made),
        "newest.json",
        ".0000000031.json.tmp",
        "0000000032",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "listdir", lambda _: names)
        assert numbers(Path(), least) == sorted(number for number in made if number >= least)


def test_an_append_lists_no_folder_of_many_files_and_reads_no_older_manifest(
    stream: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stores.open(stream)
    store.append(numbered(0, 10))

    real = os.listdir

    def refuse(*_: object) -> None:
        raise AssertionError("the folder was listed")

    # The folder of the store is listed for the writers that wait.
    monkeypatch.setattr(os, "listdir", lambda path: real(path) if path == stream else refuse())
    monkeypatch.setattr(Path, "iterdir", refuse)
    monkeypatch.setattr("qkv.store.manifest.read_record", refuse)
    store.append(numbered(0, 10))
    monkeypatch.undo()
    store.delete(lambda table: np.ones(len(table), bool))
    store.append(numbered(0, 10 * APPENDS))


def test_a_checkpoint_in_the_place_of_a_delta_keeps_the_links(tmp_path: Path) -> None:
    store = stores.create(tmp_path / "s", numbered(0, 1).schema)
    for i in range(6):
        store.append(numbered(10 * i, 10 * i + 10))
    folder = tmp_path / "s" / "versions"
    before = [read_manifest(folder, number) for number in numbers(folder)]
    from qkv.store.manifest import replace_by_checkpoint

    for number in reversed(numbers(folder)):
        replace_by_checkpoint(folder, number)
    after = [read_manifest(folder, number) for number in numbers(folder)]
    assert [(m.digest, m.row_files, m.parent, m.rows) for m in after] == [
        (m.digest, m.row_files, m.parent, m.rows) for m in before
    ]
    assert stores.open(tmp_path / "s").verify() == []


@pytest.mark.parametrize("error", [StoreFullError("full"), OSError(28, "No space left on device")])
def test_an_append_is_saved_even_if_merging_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    store = stores.create(tmp_path / "s", numbered(0, 1).schema)
    for i in range(FAN_IN - 1):
        store.append(numbered(10 * i, 10 * i + 10))
    whole = arrow.ArrowStore._commit

    def fail(self: arrow.ArrowStore, operation: str, files: tuple[RowFile, ...]) -> None:
        if operation == "compact":
            raise error
        whole(self, operation, files)

    monkeypatch.setattr(arrow.ArrowStore, "_commit", fail)
    assert store.append(numbered(70, 80)) == FAN_IN + 1
    monkeypatch.undo()
    assert ids_of(stores.open(tmp_path / "s")) == list(range(80))
    names = {file.name for file in read_manifest(tmp_path / "s" / "versions", FAN_IN + 1).row_files}
    assert set(os.listdir(tmp_path / "s" / "rows")) == names
    store.append(numbered(80, 90))
    assert store.versions()[-1].operation == "compact"


def test_a_damaged_delta_is_named_by_the_versions_that_need_it_and_the_newest_does_not(tmp_path: Path) -> None:
    store = stores.create(tmp_path / "s", numbered(0, 1).schema)
    for i in range(5):
        store.append(numbered(10 * i, 10 * i + 10))
    file = tmp_path / "s" / "versions" / "0000000003.json"
    data = file.read_bytes()
    file.write_bytes(data.replace(b'"rows', b'"rowz'))
    assert ids_of(stores.open(tmp_path / "s")) == list(range(50))
    assert [damage.file for damage in store.verify()] == ["versions/0000000003.json"]
    with pytest.raises(DamagedStoreError, match=r"0000000003\.json"):
        stores.open(tmp_path / "s", version=5)
    assert len(stores.open(tmp_path / "s", version=2)) == 10
    file.write_bytes(data)
    assert len(stores.open(tmp_path / "s", version=5)) == 40


def test_without_the_files_in_newest_json_the_same_rows_are_found(stream: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copy"
    shutil.copytree(stream, copied)
    newest = copied / "versions" / "newest.json"
    body = json.loads(json.loads(newest.read_bytes())["manifest"])
    assert "files" in body
    del body["files"], body["depth"]
    newest.write_bytes(manifest.seal(body))
    assert ids_of(stores.open(copied)) == ids_of(stores.open(stream))


@settings(max_examples=cases(25))
@given(st.lists(st.tuples(st.sampled_from("aaaaadck"), st.integers(1, 90)), min_size=1, max_size=40), st.data())
def test_any_sequence_of_operations_gives_the_rows_of_a_list(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, int]], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("sequence") / "s"
    store, expected, after = stores.create(path, numbered(0, 1).schema), [], 0
    history: dict[int, list[int]] = {1: []}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "MAX_DELTAS", data.draw(st.sampled_from([0, 1, 3, 64])))
        for kind, size in operations:
            if kind == "a":
                expected = expected + list(range(after, after + size))
                store.append(numbered(after, after + size))
                after += size
            elif kind == "d":
                store.delete(lambda table, size=size: table.column("id").to_numpy() % 97 < size // 4)
                expected = [row for row in expected if row % 97 >= size // 4]
            else:
                store.compact(keep=size if kind == "k" else None)
            history[store.version] = expected
        assert ids_of(store) == expected
        assert ids_of(stores.open(path)) == expected
        versions = {version.number: version.rows for version in store.versions()}
        for number in set(history) & set(versions):
            assert ids_of(stores.open(path, version=number)) == history[number]
        assert store.verify() == []


@given(st.lists(st.integers(1, 5000), max_size=300))
def test_files_grow_with_the_logarithm_of_the_rows(appends: list[int]) -> None:
    files: list[RowFile] = []
    for place, rows in enumerate(appends):
        files.append(RowFile(str(place), rows, rows * 100, 0, 0))
        start = first_merged(files)
        total = sum(file.rows for file in files[start:])
        files[start:] = [RowFile("m", total, total * 100, 0, 0)] * (start < len(files))
        assert first_merged(files) == len(files)
    assert sum(file.rows for file in files) == sum(appends)
    assert len(files) <= FAN_IN * (1 + sum(appends).bit_length() // 3 + 1)


def test_columns_of_several_types_survive_merging(tmp_path: Path) -> None:
    def table(i: int) -> pa.Table:
        return pa.table({"text": [f"t{i}", None], "vector": [[float(i)], []], "when": pa.array([i, None], pa.date32())})

    store = stores.create(tmp_path / "s", table(0).schema)
    for i in range(FAN_IN * FAN_IN):
        store.append(table(i))
    assert len(store.block_lengths()) == 1
    assert store.to_table().combine_chunks() == pa.concat_tables(map(table, range(FAN_IN**2))).combine_chunks()


def test_a_removal_of_versions_that_was_interrupted_leaves_no_half_version(
    stream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    shutil.copytree(stream, path)
    real, removed = Path.unlink, []

    def unlink(self: Path, missing_ok: bool = False) -> None:
        if self.suffix == ".json":
            removed.append(self.name)
            if len(removed) > 10:
                raise KeyboardInterrupt
        real(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(KeyboardInterrupt):
        stores.open(path).compact(keep=5)
    monkeypatch.undo()
    store = stores.open(path)
    assert ids_of(store) == list(range(10 * APPENDS))
    versions = store.versions()  # versions 11 to 63 were listed, and their deltas had lost their checkpoint
    assert len(versions) == 5
    assert [ids_of(store.at(version.number)) for version in versions]
    with pytest.raises(DataError, match="version must exist"):
        store.at(30)
    assert stores.open(path).verify() == []
    assert store.compact(keep=3) > 0
    assert len(numbers(path / "versions")) == 3
