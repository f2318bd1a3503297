"""The history of a store: an older, missing or foreign manifest is reported, and crashes between two files are not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qkv import store as stores
from qkv.core.checksums import checksum
from qkv.errors import DamagedError, DamagedStoreError, DataError
from qkv.store import manifest, versions
from qkv.store.manifest import read_manifest
from qkv.testing.stores import ids_of, numbered


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    return made(tmp_path / "store", 0)


def made(path: Path, start: int) -> Path:
    store = stores.create(path, numbered(0, 1).schema)
    for i in range(3):
        store.append(numbered(start + 10 * i, start + 10 * i + 10))
    return path


@pytest.fixture(name="complete")
def _complete(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A store of which every manifest lists all files."""
    monkeypatch.setattr(manifest, "MAX_DELTAS", 0)
    return made(tmp_path / "complete", 0)


def manifests_of(path: Path) -> list[Path]:
    return sorted((path / "versions").glob("0*.json"))


def resealed(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    """Change a manifest and make its checksum right again."""
    body = json.loads(json.loads(path.read_bytes())["manifest"])
    change(body)
    text = json.dumps(body)
    path.write_text(json.dumps({"check": checksum(text.encode()), "manifest": text}))


def test_the_newest_manifest_cannot_be_removed_unnoticed(path: Path) -> None:
    manifests_of(path)[-1].unlink()  # ten acknowledged rows were lost
    with pytest.raises(DamagedStoreError, match=r"versions/0000000004\.json: missing\. Restore these files"):
        stores.open(path)
    rest = stores.open(path, damaged="skip")
    assert ids_of(rest) == list(range(20))
    assert [damage.file for damage in rest.damages] == ["versions/0000000004.json"]


def test_a_compaction_between_two_readings_is_not_damage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other, listed = stores.open(path), versions.numbers

    def compact_and_list(*arguments: Any) -> list[int]:
        monkeypatch.setattr(versions, "numbers", listed)
        other.append(numbered(30, 40))
        other.compact(keep=1)
        return listed(*arguments)

    monkeypatch.setattr(versions, "numbers", compact_and_list)
    assert ids_of(stores.open(path)) == list(range(40))
    assert versions.numbers is listed


def test_a_store_opened_in_spite_of_a_missing_manifest_continues(path: Path) -> None:
    manifests_of(path)[-1].unlink()
    rest = stores.open(path, damaged="skip")
    assert rest.append(numbered(20, 25)) == 4
    store = stores.open(path)
    assert ids_of(store) == list(range(25))
    assert store.verify() == []


def test_an_older_manifest_in_the_place_of_a_newer_one_is_reported(path: Path) -> None:
    shutil.copyfile(manifests_of(path)[2], manifests_of(path)[3])
    with pytest.raises(DamagedStoreError, match="it is the manifest of version 3"):
        stores.open(path)
    resealed(manifests_of(path)[3], lambda body: body.update(number=4))
    with pytest.raises(DamagedStoreError, match="not the manifest that was written"):
        stores.open(path)
    assert ids_of(stores.open(path, version=3)) == list(range(20))


def test_a_manifest_of_another_store_is_reported(path: Path, tmp_path: Path) -> None:
    other = made(tmp_path / "other", 1000)
    shutil.copyfile(manifests_of(other)[3], manifests_of(path)[3])
    with pytest.raises(DamagedStoreError, match="not the manifest that was written"):
        stores.open(path)


def test_a_manifest_of_another_store_after_the_newest_is_reported(path: Path, tmp_path: Path) -> None:
    other = stores.open(made(tmp_path / "other", 1000))
    other.append(numbered(30, 31))
    shutil.copyfile(manifests_of(tmp_path / "other")[4], path / "versions" / "0000000005.json")
    with pytest.raises(DamagedStoreError, match=r"versions/0000000005\.json: not a version of this store"):
        stores.open(path)
    rest = stores.open(path, damaged="skip")
    assert ids_of(rest) == list(range(30))
    assert rest.append(numbered(30, 32)) == 6
    assert ids_of(stores.open(path, damaged="skip")) == list(range(32))


def test_an_older_version_is_compared_with_the_link_of_the_next(complete: Path, tmp_path: Path) -> None:
    other = made(tmp_path / "other", 1000)
    shutil.copyfile(manifests_of(other)[2], manifests_of(complete)[2])
    store = stores.open(complete)
    assert ids_of(store) == list(range(30))
    with pytest.raises(DamagedStoreError, match="not the manifest that was written"):
        store.at(3)
    assert [damage.file for damage in store.verify()] == ["versions/0000000003.json"]
    with pytest.raises(DamagedStoreError, match=r"0000000003\.json"):
        store.versions()
    assert [v.number for v in stores.open(complete, damaged="skip").versions()] == [1, 2, 4]


def test_a_missing_link_is_reported_by_verify_and_versions(complete: Path) -> None:
    manifests_of(complete)[1].unlink()
    store = stores.open(complete)
    assert [(d.file, d.problem) for d in store.verify()] == [("versions/0000000002.json", "missing")]
    with pytest.raises(DamagedStoreError, match=r"0000000002\.json: missing"):
        store.versions()


def test_a_missing_or_damaged_newest_json_is_reported_and_written_again(path: Path) -> None:
    newest = path / "versions" / versions.NEWEST
    for change in (newest.unlink, lambda: newest.write_bytes(b"{}"), lambda: newest.write_bytes(b"")):
        change()
        with pytest.raises(DamagedStoreError, match=r"versions/newest\.json"):
            stores.open(path)
        store = stores.open(path, damaged="skip")
        assert ids_of(store)[:30] == list(range(30))
        store.append(numbered(len(store), len(store) + 1))
        assert stores.open(path).verify() == []


def test_a_crash_before_newest_json_is_written_loses_nothing(path: Path) -> None:
    before = (path / "versions" / versions.NEWEST).read_bytes()
    stores.open(path).append(numbered(30, 35))
    (path / "versions" / versions.NEWEST).write_bytes(before)
    assert ids_of(stores.open(path)) == list(range(35))
    stores.open(path).append(numbered(35, 36))
    (path / "versions" / "0000000007.json").write_bytes(b"")
    with pytest.raises(DamagedStoreError, match=r"0000000007\.json: not a version of this store"):
        stores.open(path)


ABSURD = {
    "number": [0, -1, 2**70, "4", None, 1.5, True],
    "rows": [-1, 2**62, 10**6, 1.5, "10", None],
    "size": [-1, 2**62, "x"],
    "check": [-1, 2**32, None],
    "changed": [2**70, "now"],
    "name": ["../../etc/passwd", "/etc/passwd", "", "a/b", "..", "a\0", 5, None],
    "schema": ["x", "", "QQ==", 5],
    "written": ["yesterday", "2026-01-01", 5],
    "metadata": [[], 5, None],
    "pieces": [{}, None, [5], 5],
    "parent": [5, {"number": 9, "digest": ""}, {"number": 1}],
    "format": [None, "2", 0],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in ABSURD.items() for value in values])
def test_an_absurd_field_of_a_manifest_is_named(complete: Path, field: str, value: object) -> None:
    def change(body: dict[str, object]) -> None:
        target = body if field in body else body["pieces"][0]  # type: ignore[index]
        target[field] = value

    file = manifests_of(complete)[3]
    resealed(file, change)
    (complete / "versions" / versions.NEWEST).unlink()
    with pytest.raises(DamagedError) as caught:
        stores.open(complete, damaged="skip")
    assert field in str(caught.value) or "the manifest of version" in str(caught.value)


def test_a_file_outside_of_the_store_is_never_opened(complete: Path, tmp_path: Path) -> None:
    rows = read_manifest(complete / "versions", 4).row_files[0].name
    shutil.copyfile(complete / "rows" / rows, tmp_path / "outside.arrow")
    resealed(manifests_of(complete)[3], lambda body: body["pieces"][0].update(name="../../outside.arrow"))  # type: ignore[index]
    (complete / "versions" / versions.NEWEST).unlink()
    with pytest.raises(DamagedStoreError, match=r"name in the row files of .* must be the name of a file in the same"):
        stores.open(complete, damaged="skip")


def test_deep_and_huge_manifests_are_refused(path: Path) -> None:
    file = manifests_of(path)[3]
    file.write_bytes(b"[" * 10**6)
    with pytest.raises(DamagedStoreError, match="at most 64 levels"):
        stores.open(path)
    with file.open("wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(DamagedStoreError, match="at most 268,435,456 bytes"):
        stores.open(path)


def test_a_store_of_format_1_is_linked_from_its_next_change_on(complete: Path) -> None:
    for file in manifests_of(complete):
        resealed(file, lambda body: (body.update(format=1), body.pop("parent")))
    (complete / "versions" / versions.NEWEST).unlink()
    store = stores.open(complete)
    assert ids_of(store) == list(range(30))
    assert store.verify() == []
    store.append(numbered(30, 31))
    assert stores.open(complete).verify() == []
    manifests_of(complete)[-1].unlink()
    with pytest.raises(DataError, match=r"0000000005\.json: missing"):
        stores.open(complete)
