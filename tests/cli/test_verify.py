"""The command `qkv verify` finds damage in every kind of saved file."""

from pathlib import Path

import numpy as np
import pytest

from qkv.cli.main import run
from qkv.core.container import write_container
from qkv.database import Database


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    Database.create(tmp_path / "store", {"name": ["Ada", "Alan"], "income": [1.0, 2.0]}, "name", "income")
    write_container(tmp_path / "m.model", "an estimator", {"version": 1}, {"x": np.arange(128)})
    (tmp_path / "index").mkdir()
    write_container(tmp_path / "index" / "index.qkv", "a search index", {}, {"keys": np.ones(64)})
    return tmp_path


def test_intact_files_are_said_to_be_intact(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(folder / "store")]) == 0
    assert run(["verify", str(folder / "m.model")]) == 0
    assert run(["verify", str(folder / "index")]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert all(line.startswith("all checksums match: ") for line in printed)
    assert printed[1] == f"all checksums match: m.model, {(folder / 'm.model').stat().st_size:,} bytes"


@pytest.mark.parametrize("name", ["m.model", "index/index.qkv"])
def test_a_changed_bit_is_found(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray((folder / name).read_bytes())
    data[100] ^= 4
    (folder / name).write_bytes(data)
    target = folder / name.split("/")[0]
    assert run(["verify", str(target)]) == 2
    error = capsys.readouterr().err
    assert "must be intact, got damage: " in error
    assert "Traceback" not in error


def test_files_without_checksums_and_missing_files_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "old.npz").write_bytes(b"PK")
    assert run(["verify", str(folder / "old.npz")]) == 2
    assert "have no checksums: load and save them again" in capsys.readouterr().err
    assert run(["verify", str(folder / "none")]) == 2
    assert "PATH must exist" in capsys.readouterr().err
