"""A streamed query computes the checksum of each file while it uses its rows, and answers if all checksums match."""

import os
from pathlib import Path

import numpy as np
import pytest

from qkv import Database
from qkv.database.execute import scan
from qkv.errors import DamagedStoreError
from qkv.store import block, row_files

WIDTH = 16


@pytest.fixture(name="path")
def _path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of two files of 500 vectors, with the cached results of first queries, such as norms."""
    monkeypatch.setattr(scan, "_PIECE", 1000)
    monkeypatch.setattr(row_files, "_VERIFIED", set())
    draw = np.random.default_rng(0)
    rows = [{"key": draw.normal(size=(500, WIDTH)).astype(np.float32), "value": draw.normal(size=500)} for _ in "ab"]
    store = Database.create(tmp_path / "store", rows[0], "key", "value")
    store.append(rows[1])
    for score in ("dot", "cosine"):
        opened(tmp_path / "store").ask([1.0] * WIDTH, score=score)
    return tmp_path / "store"


def opened(path: Path) -> Database:
    row_files._VERIFIED.clear()
    return Database.open(path, memory="1 KiB")


def flip_unseen(file: Path, share: float) -> None:
    state, data = file.stat(), bytearray(file.read_bytes())
    data[int(share * len(data))] ^= 4
    file.write_bytes(data)
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))


@pytest.mark.parametrize("score", ["dot", "cosine", "gaussian:1"])
@pytest.mark.parametrize("queries", [1, 3])
def test_answers_equal_those_without_checksums(
    path: Path, score: str, queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = np.random.default_rng(1).normal(size=(queries, WIDTH)).tolist()
    checked = opened(path).ask(query, score=score)
    monkeypatch.setenv("QKV_CHECKSUMS", "0")
    plain = opened(path).ask(query, score=score)
    assert [entry.value for entry in checked] == pytest.approx([entry.value for entry in plain], rel=1e-6)
    for one, other in zip(checked, plain, strict=True):
        assert [row.record for row in one.rows] == [row.record for row in other.rows]


def test_the_first_query_adds_each_byte_to_a_checksum_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    checksum = block.checksum
    monkeypatch.setattr(block, "checksum", lambda data, value: sizes.append(len(data)) or checksum(data, value))
    monkeypatch.setattr(row_files, "_TICK", -(10**12))  # the files are older than a tick of the clock
    opened(path).ask([1.0] * WIDTH, score="dot")
    assert sum(sizes) == sum(file.stat().st_size for file in path.glob("rows/*.arrow"))
    assert len(sizes) >= 16  # pieces
    Database.open(path, memory="1 KiB").ask([2.0] * WIDTH, score="dot")
    assert sum(sizes) == sum(file.stat().st_size for file in path.glob("rows/*.arrow"))


@pytest.mark.parametrize("score", ["dot", "cosine"])
@pytest.mark.parametrize("share", [0.01, 0.4, 0.8, 0.99])
def test_a_changed_bit_is_an_error_instead_of_an_answer(path: Path, score: str, share: float) -> None:
    file = min(path.glob("rows/*.arrow"))
    flip_unseen(file, share)
    with pytest.raises(DamagedStoreError, match=rf"{file.name}: the checksum does not match"):
        opened(path).ask([1.0] * WIDTH, score=score)


def test_norms_of_damaged_vectors_are_not_saved(path: Path) -> None:
    file = min(path.glob("rows/*.arrow"))
    intact = file.read_bytes()
    wanted = opened(path).ask([1.0] * WIDTH, score="dot").value
    for norms in path.glob("notes/*.norms"):
        norms.unlink()
    flip_unseen(file, 0.4)
    with pytest.raises(DamagedStoreError):
        opened(path).ask([1.0] * WIDTH, score="cosine")
    file.write_bytes(intact)
    cosine = opened(path).ask([1.0] * WIDTH, score="cosine").value
    assert opened(path).ask([1.0] * WIDTH, score="dot").value == wanted
    for norms in path.glob("notes/*.norms"):
        norms.unlink()
    assert opened(path).ask([1.0] * WIDTH, score="cosine").value == cosine


def test_damaged_example_rows_are_read_again(path: Path) -> None:
    (examples,) = path.glob("notes/*.examples")
    wanted, size = opened(path).ask([1.0] * WIDTH).value, examples.stat().st_size
    examples.write_bytes(examples.read_bytes()[: size // 2])
    assert opened(path).ask([1.0] * WIDTH).value == wanted
    assert examples.stat().st_size == size
