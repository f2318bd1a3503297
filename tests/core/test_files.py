"""Files are written whole or not at all."""

import os
from pathlib import Path

import pytest

from qkv.core import files
from qkv.core.files import (
    atomic_path,
    check_creatable,
    check_writable,
    make_folders,
    write_atomic,
    write_atomic_with_siblings,
)
from qkv.errors import DataError


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("prefix", [None, "temporary-"])
def test_the_file_appears_when_the_block_ends_and_the_temporary_file_is_gone(tmp_path, prefix):
    target = tmp_path / "a.txt"
    target.write_text("old")
    with atomic_path(target, prefix=prefix, sync=True) as temporary:
        temporary.write_text("new")
        assert temporary.parent == tmp_path
        assert temporary.name.startswith(".a.txt." if prefix is None else prefix)
        assert temporary.name.endswith(".part") == (prefix is None)
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert names(tmp_path) == ["a.txt"]


def test_an_error_leaves_the_old_file_and_no_temporary_one(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")

    def write_half(error):
        with atomic_path(target) as temporary:
            temporary.write_text("half")
            raise error

    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error):
            write_half(error)
    assert target.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_suffix_that_is_not_allowed_is_refused_and_capitals_are_allowed(tmp_path):
    with pytest.raises(DataError, match=r"the name of the plot must end in .png or .svg, got 'a.txt'"):
        check_writable(tmp_path / "a.txt", "the plot", (".png", ".svg"))
    check_writable(tmp_path / "a.PNG", "the plot", (".png", ".svg"))
    assert names(tmp_path) == []


def test_a_parent_that_is_a_file_or_missing_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match=r"the parent of the plot must be a folder, got '.*file'"):
        check_writable(tmp_path / "file" / "a", "the plot")
    with pytest.raises(DataError, match=r"the folder of the file must exist, got '.*missing'"):
        check_writable(tmp_path / "missing" / "a")
    with pytest.raises(DataError, match=r"the parent of the store must be a folder, got '.*file'"):
        check_creatable(tmp_path / "file" / "a" / "b", "the store")
    check_creatable(tmp_path / "a" / "b", "the store")
    assert names(tmp_path) == ["file"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write to every folder")
def test_a_folder_without_permission_is_refused(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(DataError, match=r"the file '.*a' cannot be written: Permission denied"):
        check_writable(tmp_path / "closed" / "a")


@pytest.mark.parametrize("content", [b"bytes", lambda stream: stream.write(b"bytes")])
def test_bytes_and_functions_are_written(tmp_path, content):
    write_atomic(tmp_path / "a", content, sync=True)
    assert (tmp_path / "a").read_bytes() == b"bytes"
    assert names(tmp_path) == ["a"]


def full(_):
    raise OSError(28, "No space left on device")


def test_a_failure_to_write_names_the_file_and_the_reason_and_leaves_nothing(tmp_path):
    with pytest.raises(DataError, match=r"the model '.*a' cannot be written: No space left on device"):
        write_atomic(tmp_path / "a", full, "the model")
    with pytest.raises(DataError, match=r"the plot '.*a' cannot be written: No space left on device"):
        write_atomic_with_siblings(tmp_path / "a", full, "the plot")
    with pytest.raises(DataError, match=r"the file '.*a' cannot be written: No such file or directory"):
        write_atomic_with_siblings(tmp_path / "missing" / "a", full)
    assert names(tmp_path) == []


def test_a_file_and_its_siblings_are_moved_with_the_file_last(tmp_path, monkeypatch):
    moved = []
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, to: moved.append(Path(to).name) or replace(self, to))

    def save(path):
        assert path.parent.parent == tmp_path
        assert path.parent.name.startswith(".m.json.")
        assert path.parent.name.endswith(".part")
        for name in ("a.bin", "m.json", "z.bin"):
            path.with_name(name).write_text(name)

    write_atomic_with_siblings(tmp_path / "m.json", save)
    assert moved == ["a.bin", "z.bin", "m.json"]
    assert names(tmp_path) == ["a.bin", "m.json", "z.bin"]
    assert (tmp_path / "z.bin").read_text() == "z.bin"


def test_each_new_folder_is_synced_in_its_parent(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(files, "fsync", lambda folder: synced.append(folder))
    (tmp_path / "a").mkdir()
    make_folders(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path / "a", tmp_path / "a" / "b"]
    assert (tmp_path / "a" / "b" / "c").is_dir()
    synced.clear()
    make_folders(tmp_path / "a" / "b" / "c")
    assert synced == []


def test_a_folder_without_permission_to_write_is_refused_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(DataError, match="Permission denied"):
        check_writable(tmp_path / "a.txt")
