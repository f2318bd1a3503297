"""Containers: no changed bit is read, crafted fields are named, and a crash leaves the old or the new file."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from qkv.core import container
from qkv.core.checksums import checksum
from qkv.core.container import Container, read_container, write_container
from qkv.errors import DamagedError, DataError

ARRAYS = {
    "x": np.arange(12.0).reshape(3, 4),
    "flags": np.array([True, False]),
    "none": np.zeros((0, 5), np.float32),
    "scalar": np.array(3, np.int64),
    "turned": np.arange(6).reshape(2, 3).T,
}
SETTINGS = {"rank": 2, "names": ["a", "größe", "\ud800"], "nested": {"b": None, "a": 0.1}}


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    write_container(tmp_path / "model", "an example", SETTINGS, {**ARRAYS, "raw": b"bytes"})
    return tmp_path / "model"


def read(path: Path) -> Container:
    return read_container(path, "an example", "Write it again.")


def everything(path: Path) -> object:
    found = read(path)
    arrays = [(name, found.array(name).dtype.str, found.array(name).tolist()) for name in ARRAYS]
    return found.settings, arrays, bytes(found.bytes("raw"))


def test_settings_and_arrays_are_read_as_written(path: Path) -> None:
    found = read(path)
    assert found.settings == SETTINGS
    assert list(found.settings["nested"]) == ["b", "a"]  # type: ignore[call-overload]
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found.array(name), array)
        assert found.array(name).dtype == array.dtype
        assert not found.array(name).flags.writeable
    assert bytes(found.bytes("raw")) == b"bytes"
    assert found.verify() == []
    assert {*found} == {*ARRAYS, "raw"}


def test_no_changed_bit_is_read(path: Path) -> None:
    whole, expected = path.read_bytes(), everything(path)
    unnoticed = 0
    for at in range(len(whole)):
        data = bytearray(whole)
        data[at] ^= 1 << (at % 8)
        path.write_bytes(data)
        try:
            assert everything(path) == expected
            unnoticed += 1
        except DataError:
            pass
    # Only the bytes between the parts, and the blanks of the first line, say nothing.
    assert unnoticed < 64 * (len(ARRAYS) + 3)


def test_no_cut_off_or_longer_file_is_read(path: Path) -> None:
    whole = path.read_bytes()
    for end in range(0, len(whole), 7):
        path.write_bytes(whole[:end])
        with pytest.raises(DataError):
            read(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(DamagedError, match=r"must have .* bytes"):
        read(path)


def test_a_container_of_another_kind_is_refused(path: Path) -> None:
    with pytest.raises(DamagedError, match="must hold an index, got 'an example'"):
        read_container(path, "an index", "Build it again.")


def test_a_container_of_a_newer_format_asks_for_an_update(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"qkv container 1", b"qkv container 2", 1))
    with pytest.raises(DataError, match="newer version of qkv"):
        read(path)


def test_each_replacement_has_the_next_number_and_the_digest_of_the_one_before(path: Path) -> None:
    first = read(path)
    write_container(path, "an example", {}, {})
    second = read(path)
    assert (first.number, second.number) == (1, 2)
    data = path.read_bytes()
    manifest = json.loads(data[64 : 64 + int(data[:64].split()[3])])
    assert manifest["parent"] == first.digest
    path.write_bytes(b"something else")
    write_container(path, "an example", {}, {})
    assert read(path).number == 1


def craft(path: Path, field: str, value: object) -> None:
    data = path.read_bytes()
    length = int(data[:64].split()[3])
    manifest = json.loads(data[64 : 64 + length].decode("utf-8", "surrogatepass"))
    target = manifest if field in manifest else manifest["parts"][0]
    target[field] = value
    text = json.dumps(manifest).encode().ljust(length)
    line = b"qkv container 1 %d %08x" % (len(text), checksum(text))
    path.write_bytes(line.ljust(63) + b"\n" + text + data[64 + length :])


ABSURD = {
    "start": [-1, 2**60, "0", None],
    "size": [-1, 2**60, 1.5],
    "shape": [[-1], [2**40, 2**40], [1] * 9, "12", [True], [[3], 4], None],
    "dtype": ["O", "|O8", "<U4", "object", "x" * 999, "f8,f8", 8, "V8", "<M8"],
    "check": [-1, "0"],
    "name": [None, 5],
    "parts": [{}, None, [5]],
    "number": [0, "1", 2**70],
    "settings": [[], None],
    "kind": [5, "other"],
    "written": [5],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in ABSURD.items() for value in values])
def test_an_absurd_field_is_refused(path: Path, field: str, value: object) -> None:
    craft(path, field, value)
    with pytest.raises(DamagedError):
        everything(path)


def test_a_part_of_another_type_is_refused(path: Path) -> None:
    found = read(path)
    for reading in (lambda: found.array("raw"), lambda: found.array("x", 1), lambda: found.bytes("y")):
        with pytest.raises(DamagedError, match=r"Write it again\."):
            reading()


def test_checksums_can_be_turned_off(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(path.read_bytes())
    at = bytes(data).rindex(b"bytes")
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedError):
        read(path).bytes("raw")
    monkeypatch.setenv("QKV_CHECKSUMS", "0")
    assert bytes(read(path).bytes("raw")) == b"cytes"
    assert read(path).verify() == ["raw"]


def test_a_writer_that_fails_leaves_the_file_before(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="No space left"):
        write_container(path, "an example", {}, {})
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["model"]


def test_large_numbers_of_parts_are_placed_after_the_manifest(tmp_path: Path) -> None:
    for count in (0, 1, 9, 10, 99, 100, 300):
        arrays = {f"part {i}": np.full(i, i) for i in range(count)}
        write_container(tmp_path / "m", "an example", {}, arrays)
        found = read(tmp_path / "m")
        assert found.verify() == []
        for name, array in arrays.items():
            np.testing.assert_array_equal(found.array(name), array)
    assert container.is_container(tmp_path / "m")
    assert not container.is_container(tmp_path / "none")
