"""Reading of delimited files by pyarrow in Pyodide, where DuckDB may be missing.

Columns have the types of DuckDB's reader where all cells are written in one way: integers without leading zeros,
decimal numbers, `true` and `false`, and dates in ISO 8601. Every other column is read as texts.
"""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.core.extras import missing_package
from qkv.database.io.bad_cells import add_cell_notes
from qkv.database.io.cell_notes import with_line_note
from qkv.database.io.read_options import ReadOptions, read_ends
from qkv.database.io.table_layout import copy_table, read_layout
from qkv.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["lacks_duckdb", "read_delimited"]

_TYPES = {
    "int64": r"^-?(0|[1-9][0-9]{0,17})$",
    "float64": r"^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$",
    "bool": r"^(true|false)$",
    "date32": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
}
"""Types by name, with a regular expression that all cells of a column of this type match."""


def lacks_duckdb() -> bool:
    """Return whether this is Pyodide without DuckDB, where delimited files are read by pyarrow."""
    return sys.platform == "emscripten" and find_spec("duckdb") is None


def read_delimited(path: Path, kind: str, required: tuple[str, ...], options: ReadOptions) -> pa.Table:
    """Read a delimited file, which may be compressed, as a pyarrow table.

    Args:
        path: an existing file.
        kind: its suffix without that of the compression.
        required: the columns that will be used.
        options: the delimiter, and what to do with bad cells of the required columns.

    Raises:
        MissingPackageError: The file has another format or another option is set, which needs DuckDB.
        DataError: The file cannot be read, or has a bad cell that is refused.
    """
    import pyarrow as pa
    from pyarrow import csv

    if kind not in (".csv", ".tsv", ".txt") or options.encoding or options.decimal or options.date_format:
        raise missing_package(f"reading {path.name!r} with these options needs", "duckdb", "ask")
    layout = read_layout(read_ends(path), replace(options, delimiter="\t") if kind == ".tsv" else options, required)
    rows = io.StringIO()
    copy_table(path, layout, rows)
    names = next(layout.rows(rows.getvalue().splitlines(keepends=True)), (1, []))[1]
    try:
        table = csv.read_csv(
            pa.py_buffer(rows.getvalue().encode("utf-8", "surrogateescape")),
            parse_options=csv.ParseOptions(
                delimiter=layout.delimiter or ",", quote_char=layout.quote or False, newlines_in_values=True
            ),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowException as error:
        raise DataError(f"{str(path)!r} cannot be read as {kind[1:]}: {error}. Check the file.") from None
    columns = {name: _typed(column) for name, column in zip(table.column_names, table.columns, strict=True)}
    table = with_line_note(pa.table(columns), layout.note)
    return add_cell_notes(table, required, options.on_bad_cell, repr(str(path)))


def _typed(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts as integers, numbers truth values or dates if all of them are written so."""
    import pyarrow as pa
    from pyarrow import compute

    if texts.null_count == len(texts):
        return texts
    for name, expression in _TYPES.items():
        if compute.all(compute.match_substring_regex(texts, expression)).as_py():
            try:
                return texts.cast(pa.type_for_alias(name))
            except pa.ArrowInvalid:  # such as February 30
                return texts
    return texts
