"""Delimited files are read in Pyodide without DuckDB as with it, or as texts."""

from pathlib import Path

import pyarrow as pa
import pytest

from qkv.database.io.duckdb_reader import read_file
from qkv.database.io.read_options import ReadOptions
from qkv.database.io.sources import read_delimited
from qkv.errors import DataError, MissingPackageError

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", [path.name for path in sorted(EXAMPLES.glob("*.csv"))])
def test_an_example_is_read_as_by_duckdb(name: str) -> None:
    path = EXAMPLES / name
    with_duckdb = read_file(str(path), ".csv")
    assert read_delimited(path, ".csv", (), ReadOptions()).to_pydict() == with_duckdb.to_pydict()


def test_cells_with_leading_zeros_or_of_several_kinds_are_read_as_texts(tmp_path: Path) -> None:
    path = tmp_path / "cells.tsv"
    path.write_text(
        'code\tcount\tday\tmixed\tempty\n007\t1\t2024-02-30\t1\t\n008\t-2\t2024-01-31\tx\t\n"a\tb"\t\t\t2.5\t\n'
    )
    table = read_delimited(path, ".tsv", (), ReadOptions())
    assert table.to_pydict() == {
        "code": ["007", "008", "a\tb"],
        "count": [1, -2, None],
        "day": ["2024-02-30", "2024-01-31", None],
        "mixed": ["1", "x", "2.5"],
        "empty": [None, None, None],
    }
    assert table.schema.types == [pa.string(), pa.int64(), *[pa.string()] * 3]


def test_another_format_needs_duckdb_and_a_row_of_another_length_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a,b\n1,2\n3\n4,5\n")
    with pytest.raises(DataError, match="cannot be read as csv"):
        read_delimited(path, ".csv", (), ReadOptions())
    with pytest.raises(MissingPackageError, match="duckdb"):
        read_delimited(path, ".json", (), ReadOptions())
