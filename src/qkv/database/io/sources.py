"""Functions that read files and objects, such as data frames and dicts, as pyarrow tables.

The format of a file is its suffix (`.csv`, `.tsv`, `.txt`, `.jsonl`, `.ndjson`, `.json`, `.parquet`, `.arrow`,
`.feather`, each also with `.gz` or `.zst`). Folders, patterns and lists of files are read as one table, and
so is an open file such as standard input, whose format is recognized from its first bytes. An object may be a mapping
of columns, a list of records, or any object that exports an Arrow stream (pyarrow, pandas, polars, DuckDB relations).
"""

from __future__ import annotations

import difflib
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from qkv.core.arrays import plain_array
from qkv.core.extras import missing_package
from qkv.core.printable import first_line
from qkv.core.progress import Progress, report
from qkv.core.typing import Shaped
from qkv.database.io import duckdb_reader
from qkv.database.io.bad_cells import add_cell_notes
from qkv.database.io.cell_notes import (
    assumed_formats,
    check_units,
    join_cell_notes,
    type_conflict,
    undecided_columns,
    with_line_note,
)
from qkv.database.io.duckdb_file import DELIMITED, PARQUET
from qkv.database.io.file_bytes import COMPRESSIONS, open_binary, read_ends, unpacked_blocks, unpacking_errors
from qkv.database.io.paths import ARROW, SUFFIXES, is_paths, source_files, stream_suffix
from qkv.database.io.python_to_arrow import exact_array
from qkv.database.io.read_options import ReadOptions
from qkv.database.io.table_layout import copy_table, read_layout
from qkv.encoders.arrow_columns import HALF, with_category_texts, with_metadata, with_microseconds, with_uuid_texts
from qkv.encoders.columns import split_names
from qkv.errors import DamagedError, DataError, OptionError, QkvError
from qkv.store.arrow_files import map_file, parse_table

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

    Raises:
        MissingPackageError: The file has another format or another option is set, which needs DuckDB.
        DataError: The file cannot be read, or has a bad cell that is refused.
    """
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


_REMEDY = "Write the file again with pyarrow.feather."

_CONVERT = """
import sys
import pyarrow as pa
from pyarrow import feather
table = feather.read_table(sys.argv[1], memory_map=False)
table.validate(full=True)
with pa.ipc.new_stream(sys.stdout.buffer, table.schema) as writer:
    writer.write_table(table)
"""


def read_arrow(path: Path) -> pa.Table:
    """Read an Arrow IPC file, an IPC stream or a Feather file, any of which may be compressed, as a pyarrow table.

    Uncompressed IPC files and streams are memory-mapped. Every offset, length, index and text is checked, because
    pyarrow follows an offset of a damaged file into memory of other objects.

    Raises:
        DamagedError: The file is damaged, or is not an Arrow file.
        DataError: The file cannot be read.
    """
    try:
        if path.suffix.lower() in COMPRESSIONS:
            data = pa.py_buffer(b"".join(unpacked_blocks(path)))
        else:
            data = map_file(path)
    except (pa.ArrowException, *unpacking_errors()) as error:
        raise DataError(f"{path.name!r} cannot be read as Arrow: {first_line(error)}. {_REMEDY}") from None
    if data[:4].to_pybytes() == b"FEA1":
        data = _converted(path)
    return parse_table(data, repr(path.name), remedy=_REMEDY)


def _converted(path: Path) -> pa.Buffer:
    """Return a file of Feather version 1 as an Arrow stream.

    The file is read in a process of its own, because pyarrow's reader of version 1 crashes on damaged files.
    """
    done = subprocess.run([sys.executable, "-I", "-c", _CONVERT, str(path)], capture_output=True, check=False)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1][:200] if done.returncode > 0 and lines else "its reader crashes"
        raise DamagedError(f"{path.name!r} must be an intact Feather file, but {reason.rstrip('. ')}. {_REMEDY}")
    return pa.py_buffer(done.stdout)


_DEFAULTS = ReadOptions()


def read(source: object, required: tuple[str, ...] = (), options: ReadOptions = _DEFAULTS) -> pa.Table:
    """Read a path, data frame, table, mapping of columns or list of records as a pyarrow table.

    Args:
        source: a source of a type that the module docstring lists.
        required: columns that the caller needs, by which the header line of a file is recognized.
        options: the encoding and the separators of delimited files.

    Raises:
        DataError: The file does not exist or cannot be read, or the object holds no columns.

    Example:
        >>> read({"name": ["Zhang", "Li"], "income": [1000, 2000]}).num_rows
        2
    """
    if is_paths(source):
        table = _read_paths(source_files(source), required, options)
    elif isinstance(source, io.IOBase):
        table = _read_stream(source, required, options)
    else:
        try:
            table = _read_object(source)
        except QkvError:
            raise
        except Exception as error:  # pyarrow, pandas and polars each raise their own kinds
            raise DataError(
                f"the {type(source).__name__} cannot be read as a table: {first_line(error)}. "
                "Pass columns of equal length, each with cells of one type that Arrow has."
            ) from None
        _refuse_repeated_names(table.column_names)
        _check_stated(describe(source), options)
        table = add_cell_notes(table, required, options.on_bad_cell, describe(source))
    _refuse_repeated_names(table.column_names)
    return with_category_texts(with_uuid_texts(_with_common_types(table)))


def read_parts(source: object, required: tuple[str, ...] = (), options: ReadOptions = _DEFAULTS) -> Iterator[pa.Table]:
    """Yield the rows of a source as pyarrow tables. A CSV, JSON or Parquet file is read in parts of 131,072 rows."""
    if not is_paths(source):
        yield with_microseconds(read(source, required, options))
        return
    paths = source_files(source)
    options = _with_formats(paths, required, options)
    for path in paths:
        kind = _suffix(path)
        if kind in ARROW:
            yield with_microseconds(read(path, required, options))
        else:
            yield from duckdb_reader.read_parts(str(path), kind, required, options)


def _with_formats(paths: Sequence[Path], required: tuple[str, ...], options: ReadOptions) -> ReadOptions:
    """Return options with the formats of columns that some of several files decide, if another file does not."""
    kinds = [(path, _suffix(path)) for path in paths] if len(paths) > 1 else []
    stated = (*ARROW, *PARQUET)
    tables = [
        next(duckdb_reader.read_parts(str(path), kind, required, options)) for path, kind in kinds if kind not in stated
    ]
    schemas = [table.schema for table in tables]
    assumed = assumed_formats([_without_empty_texts(table, schemas).schema for table in tables], required)
    return replace(options, assumed=tuple({**dict(options.assumed), **assumed}.items())) if assumed else options


def iterate_tables(
    source: object, required: tuple[str, ...] = (), options: ReadOptions = _DEFAULTS
) -> Iterator[pa.Table]:
    """Yield the tables of a source or of an iterator of sources."""
    each: Iterable[object] = source if isinstance(source, Iterator) else (source,)
    for one in each:
        yield from read_parts(one, required, options)


def report_rows(tables: Iterable[pa.Table], progress: Progress | None) -> Iterator[pa.Table]:
    """Yield the tables, and call `progress("writing rows", rows, 0)` with the number of rows after each table."""
    rows = 0
    for table in tables:
        yield table
        rows += table.num_rows
        report(progress, "writing rows", rows, 0)


def describe(source: object) -> str:
    """Return a name of a source for messages, such as "people.csv" for a file or "the dict" for a dict.

    Example:
        >>> describe(["parts/2023.csv", "parts/2024.csv"]), describe([f"{year}.csv" for year in range(2000, 2025)])
        ('2 files (2023.csv, 2024.csv)', '25 files (2000.csv … 2024.csv)')
    """
    if is_paths(source):
        try:
            names = [path.name for path in source_files(source)]
        except DataError:
            given = source if isinstance(source, Sequence) and not isinstance(source, str) else [source]
            names = [Path(str(path)).name for path in given]
        return names[0] if len(names) == 1 else f"{len(names):,} files ({_range(names)})"
    if isinstance(source, io.IOBase):
        name = getattr(source, "name", "")
        return "standard input" if name in ("<stdin>", 0) else str(name) or "the open file"
    return f"the {type(source).__name__}"


def _range(names: Sequence[str]) -> str:
    """Return the names of two files, or the first and the last of more."""
    return f"{names[0]}{', ' if len(names) == 2 else ' … '}{names[-1]}"


def is_delimited(source: object) -> bool:
    """Return whether a path, or one of several, names a delimited file."""
    return any(_suffix(path) in DELIMITED for path in source_files(source))


def is_table_name(name: str) -> bool:
    """Return whether the name of a file ends as that of a table.

    Example:
        >>> is_table_name("part-1.csv.gz"), is_table_name("Mr. Smith")
        (True, False)
    """
    stem, suffix = os.path.splitext(name.lower())
    return (os.path.splitext(stem)[1] if suffix in COMPRESSIONS else suffix) in SUFFIXES


def requested_columns(
    key: str | Sequence[str], value: str, source: object = None, options: ReadOptions = _DEFAULTS
) -> tuple[str, ...]:
    """Return the names of the key and value columns, before the columns of the source are known.

    A text with commas is one name if a delimited file of the source has such a column.

    Example:
        >>> requested_columns("city, year", "price")
        ('city', 'year', 'price')
    """
    if isinstance(key, str) and "," in key and is_paths(source):
        delimited = [path for path in source_files(source) if _suffix(path) in DELIMITED]
        if any(key in read_layout(read_ends(path), options, (key, value)).header for path in delimited):
            return key, value
    return tuple(str(name).strip() for name in (*split_names(key), value))


def require_columns(table: pa.Table, names: Iterable[str], where: str) -> None:
    """Raise a `DataError` if one of `names` is not a column of a table. The error suggests the most similar column."""
    for name in names:
        if name not in table.column_names:
            columns = ", ".join(table.column_names[:20]) + (", …" if table.num_columns > 20 else "")
            if table.column_names == [f"column{index}" for index in range(table.num_columns)]:
                remedy = " No line was read as the header; --header-row 1 (in Python: header_row=1) reads the first."
            elif table.num_columns == 1 and name in columns.split():
                remedy = " Its cells are separated by spaces: convert them, as pandas.read_csv(file, sep=r'\\s+') does."
            else:
                remedy = suggest_name(name, table.column_names)
            raise DataError(f"column must be one of {columns} in {where}, got {name!r}.{remedy}")


def suggest_name(name: str, choices: Iterable[str], otherwise: str = " Name one of them.") -> str:
    """Return a sentence that suggests the choice most similar to a name, or `otherwise` if none is similar."""
    lowered = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return f" Did you mean {lowered[near[0]]!r}?" if near else otherwise


def _read_path(path: Path, required: tuple[str, ...], options: ReadOptions) -> pa.Table:
    kind = _suffix(path)
    if kind in ARROW:
        table = read_arrow(path)
        _refuse_repeated_names(table.column_names)
        _check_stated(path.name, options)
        return add_cell_notes(table, required, options.on_bad_cell, repr(str(path)))
    if kind in PARQUET:
        _check_stated(path.name, options)
    if lacks_duckdb():
        return read_delimited(path, kind, required, options)
    return duckdb_reader.read_file(str(path), kind, required, options)


def _read_paths(paths: list[Path], required: tuple[str, ...], options: ReadOptions) -> pa.Table:
    """Read files as one table. Columns that some files lack are null there, unless they are required.

    Raises:
        DataError: A file cannot be read, lacks a required column that the first file has, or has other types.
    """
    tables = [_read_path(path, required, options) for path in paths]
    if len(tables) == 1:
        return tables[0]
    schemas = [table.schema for table in tables]
    tables = [_without_empty_texts(table, schemas) for table in tables]
    formats = assumed_formats([table.schema for table in tables if table.num_rows], required)
    for index, table in enumerate(tables):
        # The format that the cells of one file leave open is that of the others.
        booleans = [field.name for field in table.schema if pa.types.is_boolean(field.type)]
        own = {*undecided_columns(table.schema), *booleans}
        assumed = {name: form for name, form in formats.items() if name in own}
        if assumed:
            again = replace(options, assumed=tuple(assumed.items()))
            tables[index] = _read_path(paths[index], required, again)
    names = [name for name in required if name in tables[0].column_names]
    for path, table in zip(paths, tables, strict=True):
        require_columns(table, names, str(path))
        _refuse_repeated_names(table.column_names)
    # A CSV file without rows has columns of texts, whatever the types in the other files are.
    tables = [table for table in tables if table.num_rows] or tables[:1]
    schemas = [table.schema for table in tables]
    check_units(*schemas)
    for name in {field.name for schema in schemas for field in schema if pa.types.is_dictionary(field.type)}:
        if not all(pa.types.is_dictionary(schema.field(name).type) for schema in schemas if name in schema.names):
            tables = [_with_texts(table, name) for table in tables]  # categories in some files alone are texts
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(
            f"files must have columns of the same types, got {type_conflict(tables, names) or first_line(error)} in "
            f"{len(paths):,} files from {str(paths[0])!r} on. Convert the columns, or name fewer files."
        ) from None
    return join_cell_notes(table, tables, required)


def _without_empty_texts(table: pa.Table, schemas: Sequence[pa.Schema]) -> pa.Table:
    """Return a table whose columns of texts without cells are nulls, where other files have other types."""
    for place, field in enumerate(table.schema):
        others = {schema.field(field.name).type for schema in schemas if field.name in schema.names} - {pa.string()}
        if others and field.type == pa.string() and table.column(place).null_count == len(table):
            table = table.set_column(place, field.name, pa.nulls(len(table)))
    return table


def _with_texts(table: pa.Table, name: str) -> pa.Table:
    """Return a table without a dictionary in a column."""
    place = table.schema.get_field_index(name)
    if place < 0 or not pa.types.is_dictionary(type_ := table.schema.field(place).type):
        return table
    return table.set_column(place, name, table.column(place).cast(type_.value_type))


def _read_stream(stream: io.IOBase, required: tuple[str, ...], options: ReadOptions) -> pa.Table:
    """Read an open file, which is copied to a temporary file, as a pyarrow table."""
    name = describe(stream)
    data = getattr(stream, "buffer", stream).read()
    content = data.encode() if isinstance(data, str) else data
    if not content:
        raise DataError(f"source must be a file with rows, got {name}, which is empty. Pass another file.")
    packed = {b"\x1f\x8b": ".gz", b"\x28\xb5": ".zst"}.get(content[:2], "")
    with tempfile.TemporaryDirectory(prefix="qkv-") as folder:
        file = Path(folder) / f"input{packed}"
        file.write_bytes(content)
        try:
            with open_binary(file) as unpacked:
                kind = stream_suffix(unpacked.read(64))
        except unpacking_errors() as error:
            raise DataError(f"{name} cannot be decompressed: {first_line(error)}. Check the input.") from None
        named = file.rename(Path(folder) / f"input{kind}{packed}")
        try:
            return _read_path(named, required, options)
        except DataError as error:
            raise DataError(str(error).replace(repr(str(named)), name).replace(repr(named.name), name)) from None


def _suffix(path: Path) -> str:
    """Return the suffix of a file name without `.gz` or `.zst`, after checking that the file can be read.

    Raises:
        DataError: The file does not exist, is empty, is unreadable or has an unknown suffix.
    """
    if not path.exists():
        siblings = [p.name for p in path.parent.iterdir() if p.exists()] if path.parent.is_dir() else []
        remedy = suggest_name(path.name, siblings, " Check the path.")
        raise DataError(f"source must be an existing file, got {str(path)!r}.{remedy}")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compressed = suffixes[-1:] and suffixes[-1] in COMPRESSIONS
    kind = (suffixes[:-1] if compressed else suffixes)[-1:]
    if not kind or kind[0] not in SUFFIXES:
        raise DataError(
            f"the name of a source file must end in one of {', '.join(SUFFIXES)}, optionally followed by .gz or .zst, "
            f"got {path.name!r}. Rename the file to the suffix of its format, or convert it."
        )
    if not os.access(path, os.R_OK):
        raise DataError(f"source must be a readable file, got {str(path)!r}. Change the permissions of the file.")
    if not path.stat().st_size:
        raise DataError(f"source must be a file with rows, got {str(path)!r}, which is empty. Pass another file.")
    return kind[0]


def _read_object(source: Any) -> pa.Table:
    if isinstance(source, pa.Table):
        return source
    if hasattr(source, "to_frame"):  # a series of pandas or polars
        return _read_object(source.to_frame())
    if type(source).__name__ == "LazyFrame":
        return _read_object(source.collect())
    if type(source).__module__.split(".")[0] == "pandas" and hasattr(source, "columns"):
        # A named index is a column to its owner; the row numbers that pandas adds are not.
        named = [name for name in source.index.names if name is not None]
        _refuse_repeated_names([str(name) for name in (*named, *source.columns)])
        return _frame_table(source.reset_index(level=named) if named else source)
    if "128" in str(getattr(source, "dtypes", "")):  # integers of polars that Arrow lacks
        wide = {name for name, type_ in source.schema.items() if "128" in str(type_)}
        source = {name: source[name].to_list() if name in wide else source[name] for name in source.columns}
    if hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__"):
        return pa.table(source)
    if isinstance(source, Mapping):
        _refuse_other_indexes(source)
        columns = [_column(values, f"column {name!r}") for name, values in source.items()]
        return pa.table(columns, names=[str(name) for name in source])
    if isinstance(source, Sequence) and source and all(isinstance(row, Mapping) for row in source):
        names = dict.fromkeys(name for row in source for name in row)
        columns = [exact_array([row.get(name) for row in source], f"column {name!r}") for name in names]
        return pa.table(columns, names=[str(name) for name in names])
    raise DataError(
        "source must be a path, a pandas or polars frame, a pyarrow table, a dict of columns or a list of records, "
        f"got a {type(source).__name__}. Convert the source to one of these types."
    )


def _refuse_other_indexes(columns: Mapping[object, Any]) -> None:
    """Raise a `DataError` if columns are pandas series with different indexes, which pandas pairs by index."""
    series = {name: values for name, values in columns.items() if hasattr(values, "iloc")}
    first = next(iter(series), None)
    for name, values in series.items():
        if not values.index.equals(series[first].index):
            raise DataError(
                f"pandas series in a dict must have the same index, got different ones for {first!r} and {name!r}. "
                "Pass a DataFrame of them, which pairs rows by index, or their to_numpy(), which pairs by position."
            )


def _frame_table(frame: Any) -> pa.Table:
    """Return a pandas frame as an Arrow table, with the kinds and all digits of the cells of object columns."""
    sparse = {name: type_.subtype for name, type_ in frame.dtypes.items() if type(type_).__name__ == "SparseDtype"}
    frame = frame.astype(sparse) if sparse else frame
    objects = [name for name in frame.columns if frame[name].dtype == object]
    table = pa.Table.from_pandas(frame.drop(columns=objects), preserve_index=False)
    columns = dict(zip(table.column_names, table.columns, strict=True))
    columns |= {str(name): _column(frame[name], f"column {name!r}") for name in objects}
    return pa.table({str(name): columns[str(name)] for name in frame.columns})


def _column(values: Any, name: str) -> pa.Array | pa.ChunkedArray:
    """Return a list or an array as an Arrow array. A matrix becomes an Arrow array with one vector per row."""
    values = plain_array(values)
    if isinstance(values, np.ndarray) and values.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(_array(values.reshape(-1)), values.shape[1])
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise DataError(
            f"{name} must be an array with 1 axis for single values or 2 axes for vectors, got {values.ndim} axes. "
            "Reshape the array."
        )
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise DataError(f"{name} must be a list or an array, got {values!r}. Put the value in a list.")
    if isinstance(values, (Mapping, set, frozenset)):  # their elements are no cells, or have no order
        raise DataError(
            f"{name} must be a list or an array, got a {type(values).__name__}. Pass a list of its cells; "
            "DataFrame.to_dict of pandas makes lists with orient='list'."
        )
    given: Any = values
    if isinstance(given, (pa.Array, pa.ChunkedArray)):
        return given
    if hasattr(given, "notna") and given.dtype == object:  # Arrow casts cells of several kinds
        return exact_array(given.where(given.notna(), None).tolist(), name)
    if hasattr(values, "__arrow_c_stream__") or hasattr(values, "__arrow_c_array__"):
        return pa.chunked_array(values) if hasattr(values, "__arrow_c_stream__") else pa.array(values)
    if isinstance(values, np.ndarray) and values.dtype != object:
        return _array(values)
    return exact_array(list(values), name)


_COARSE_UNITS = {"M": {**dict.fromkeys("YMW", "D"), **dict.fromkeys("hm", "s")}, "m": dict.fromkeys("WDhm", "s")}
"""The units of dates and durations of NumPy that Arrow lacks, with the nearest one that it has."""


def _array(values: Shaped[np.ndarray, " rows"]) -> pa.Array:
    """Return a NumPy array as an Arrow array; numbers without `pa.array`, which imports pandas if it is installed."""
    values = values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))
    if (coarse := _COARSE_UNITS.get(values.dtype.kind, {})) and (unit := np.datetime_data(values.dtype)[0]) in coarse:
        values = values.astype(f"{values.dtype.kind}8[{coarse[unit]}]")
    if type(values) is not np.ndarray or values.dtype.kind not in "iuf":
        return pa.array(values)
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, buffer])


def _with_common_types(table: pa.Table) -> pa.Table:
    """Return a table without views, of which pyarrow takes no rows, and float16, of which DuckDB reads no cells."""
    for index, field in enumerate(table.schema):
        if (type_ := _common_type(field.type)) != field.type:
            column = table.column(index)
            # pyarrow's cast of a list view to a list is invalid.
            lists = "list_view" in str(field.type)
            column = pa.chunked_array([column.to_pylist()], type_) if lists else column.cast(type_)
            table = table.set_column(index, field.with_type(type_), column)
            if pa.types.is_float16(field.type):
                table = with_metadata(table, field.name, HALF, "float16")
    return table


def _common_type(type_: pa.DataType) -> pa.DataType:
    """Return an Arrow type without views and float16, also within lists, records and dictionaries."""
    types = pa.types
    if types.is_struct(type_):
        return pa.struct([field.with_type(_common_type(field.type)) for field in type_])
    if types.is_dictionary(type_):
        return pa.dictionary(type_.index_type, _common_type(type_.value_type), type_.ordered)
    if types.is_fixed_size_list(type_):
        return pa.list_(type_.value_field.with_type(_common_type(type_.value_type)), type_.list_size)
    small, large = types.is_list(type_) or types.is_list_view(type_), types.is_large_list(type_)
    for new, test in ((pa.list_, small), (pa.large_list, large or types.is_large_list_view(type_))):
        if test:
            return new(type_.value_field.with_type(_common_type(type_.value_type)))
    common = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary(), pa.float16(): pa.float32()}
    return common.get(type_, type_)


def _check_stated(name: str, options: ReadOptions) -> None:
    """Raise an error if a format of dates is given for a table that states the types of its columns."""
    if options.date_format is not None:
        raise OptionError(
            f"date_format must be None for a table that states the types of its columns, got {options.date_format!r} "
            f"for {name}. Convert the dates, for example with strptime in --sql."
        )


def _refuse_repeated_names(names: Sequence[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DataError(
            f"column names must be unique, got {', '.join(repeated)} more than once. Rename the repeated columns."
        )
