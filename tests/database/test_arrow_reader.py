"""Arrow files that are damaged or crafted raise errors; none crashes the process."""

import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import feather

from qkv.database import Database
from qkv.database.io import sources
from qkv.errors import DamagedError

TABLE = pa.table({"name": ["Ada Lovelace", "Alan Turing", "Grace Hopper"], "income": [1.0, 2.0, 3.0]})


def written(path: Path, table: pa.Table = TABLE, new: Any = pa.ipc.new_file) -> bytearray:
    with new(str(path), table.schema) as writer:
        writer.write_table(table)
    return bytearray(path.read_bytes())


@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream])
def test_an_offset_beyond_its_text_is_refused(tmp_path: Path, new: Any) -> None:
    path = tmp_path / "people.arrow"
    data = written(path, TABLE, new)
    at = data.index(struct.pack("<4i", 0, 12, 23, 35))
    for offset in (2**30, 2**31 - 1, -1):  # a read of these crashed the process by SIGSEGV and SIGBUS
        data[at + 8 : at + 12] = struct.pack("<i", offset)
        path.write_bytes(data)
        with pytest.raises(DamagedError, match=r"'people.arrow' must be an intact Arrow file, but .*offset"):
            Database.open(path, "name", "income")


def test_an_index_beyond_its_dictionary_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "people.arrow"
    indices = pa.array([0, 1, 2], pa.int32())
    table = pa.table(
        {"name": pa.DictionaryArray.from_arrays(indices, TABLE["name"].chunk(0)), "income": [1.0, 2.0, 3.0]}
    )
    data = written(path, table)
    at = data.index(struct.pack("<3i", 0, 1, 2))
    data[at + 8 : at + 12] = struct.pack("<i", 10**6)
    path.write_bytes(data)
    with pytest.raises(DamagedError, match="must be an intact Arrow file"):
        Database.open(path, "name", "income")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "people.arrow"
    path.write_bytes(bytes(written(path)).replace(b"Alan Turing", b"Alan \xffuring"))
    with pytest.raises(DamagedError, match="must be an intact Arrow file"):
        Database.open(path, "name", "income")


def test_more_rows_than_a_file_can_hold_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "people.arrow"
    nothing = pa.Array.from_buffers(pa.null(), 2**31 - 1, [None])
    batch = pa.RecordBatch.from_arrays([nothing, nothing], ["name", "income"])
    with pa.ipc.new_file(str(path), batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(DamagedError, match=r"2,147,483,647 rows without data"):
        Database.open(path, "name", "income")


@pytest.mark.filterwarnings("ignore:Feather V1")
def test_a_damaged_file_of_feather_1_is_read_in_another_process(tmp_path: Path) -> None:
    path = tmp_path / "people.feather"
    feather.write_feather(TABLE, path, version=1)
    assert sources.read_arrow(path).to_pylist() == TABLE.to_pylist()
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DamagedError, match=r"'people.feather' must be an intact Feather file"):
        sources.read_arrow(path)
