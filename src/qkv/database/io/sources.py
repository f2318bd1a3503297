"""Anything that holds rows becomes one pyarrow table.

Files are told by their suffix (`.csv`, `.tsv`, `.txt`, `.jsonl`, `.ndjson`, `.json`, `.parquet`, `.arrow`,
`.feather`, each also with `.gz`), objects by what they can do: a mapping of columns, a list of records, and
whatever exports an Arrow stream (pyarrow, pandas, polars, DuckDB relations).
"""

import difflib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qkv.database.io import duckdb_reader
from qkv.database.io.arrow_columns import with_microseconds
from qkv.errors import DataError, QkvError

__all__ = ["report_rows", "describe", "suggest_name", "read", "read_parts", "require_columns", "iterate_tables"]

_ARROW = (".arrow", ".feather", ".ipc")
_KNOWN = (*duckdb_reader.DELIMITED, *duckdb_reader.JSON, *duckdb_reader.PARQUET, *_ARROW)


def read(source: Any, wanted: tuple[str, ...] = ()) -> Any:
    """The pyarrow table in `source`: a path, a frame, a table, a mapping of columns or a list of records.

    Args:
        source: see the module.
        wanted: columns that the caller needs; they help to tell a header line from data.

    Raises:
        DataError: there is no such file, it cannot be read, or the object holds no columns.

    Example:
        >>> read({"name": ["Zhang", "Li"], "income": [1000, 2000]}).num_rows
        2
    """
    if isinstance(source, (str, os.PathLike)):
        table = _read_path(Path(source), wanted)
    else:
        try:
            table = _read_object(source)
        except QkvError:
            raise
        except Exception as error:  # pyarrow, pandas and polars each raise their own kinds
            raise DataError(
                f"the {type(source).__name__} does not make a table: {_first_line(error)}. "
                "Give columns of equal length, each of one type."
            ) from None
    _refuse_repeated_names(table)
    return table


def read_parts(source: Any) -> Iterator[Any]:
    """The same rows, of a file in tables of some hundred thousand, so that it may be larger than memory."""
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        kind = _kind(path)
        if kind not in _ARROW:
            yield from duckdb_reader.read_parts(str(path), kind)
            return
    yield read(source)


def iterate_tables(source: Any) -> Iterator[Any]:
    """The tables in a source, or in each of an iterator of sources, in the form that stores keep."""
    each: Iterable[Any] = source if isinstance(source, Iterator) else (source,)
    for one in each:
        for table in read_parts(one):
            yield with_microseconds(table)


def report_rows(tables: Iterable[Any], progress: Callable[[str, int, int], None] | None) -> Iterator[Any]:
    """The tables; how many rows went by is told."""
    rows = 0
    for table in tables:
        yield table
        rows += table.num_rows
        if progress is not None:
            progress("writing rows", rows, 0)


def describe(source: Any) -> str:
    """What a source is called in messages: the file's name, or the type of the object."""
    if isinstance(source, (str, os.PathLike)):
        return Path(source).name
    return f"the {type(source).__name__}"


def require_columns(table: Any, names: Iterable[str], where: str) -> None:
    """Raise a `DataError` that names the nearest column if one of `names` is not in the table."""
    for name in names:
        if name not in table.column_names:
            shown = ", ".join(table.column_names[:20]) + (", …" if table.num_columns > 20 else "")
            raise DataError(
                f"there is no column {name!r} in {where}; it has {shown}." + suggest_name(name, table.column_names)
            )


def suggest_name(name: str, choices: Iterable[str]) -> str:
    """` Did you mean 'income'?`, or nothing where no choice is near."""
    lowered = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return f" Did you mean {lowered[near[0]]!r}?" if near else ""


def _read_path(path: Path, wanted: tuple[str, ...]) -> Any:
    kind = _kind(path)
    return _read_arrow(path) if kind in _ARROW else duckdb_reader.read_file(str(path), kind, wanted)


def _kind(path: Path) -> str:
    """The suffix that says what a file holds."""
    if path.is_dir():
        raise DataError(f"{str(path)!r} is a folder, and a table is one file. Name a file in it.")
    if not path.exists():
        there = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"there is no file {str(path)!r}.{suggest_name(path.name, there)}")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    gzipped = suffixes[-1:] == [".gz"]
    kind = (suffixes[:-1] if gzipped else suffixes)[-1:]
    if not kind or kind[0] not in _KNOWN:
        raise DataError(
            f"{path.name!r} ends in none of {', '.join(_KNOWN)} (each also with .gz). "
            "Rename the file to what it holds, or convert it."
        )
    if not os.access(path, os.R_OK):
        raise DataError(f"{str(path)!r} may not be read by this user. Change its permissions.")
    if not path.stat().st_size:
        raise DataError(f"{str(path)!r} is empty. Give a file with rows.")
    return kind[0]


def _read_arrow(path: Path) -> Any:
    """An Arrow IPC file, an IPC stream or a Feather file; uncompressed files are memory-mapped."""
    import pyarrow as pa
    from pyarrow import feather

    try:
        if path.suffix.lower() == ".gz":
            with pa.input_stream(str(path)) as stream:
                return _ipc_table(pa.py_buffer(stream.read()))
        with pa.memory_map(str(path)) as mapped:
            head = mapped.read(6)
            mapped.seek(0)
            if head[:4] == b"FEA1":
                return feather.read_table(str(path))
            return _ipc_table(mapped)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise DataError(
            f"{path.name!r} cannot be read as Arrow: {_first_line(error)}. Write it with pyarrow.feather."
        ) from None


def _ipc_table(source: Any) -> Any:
    import pyarrow as pa

    try:
        return pa.ipc.open_file(source).read_all()
    except pa.ArrowInvalid:
        if hasattr(source, "seek"):
            source.seek(0)
        return pa.ipc.open_stream(source).read_all()


def _read_object(source: Any) -> Any:
    import pyarrow as pa

    if isinstance(source, pa.Table):
        return source
    if type(source).__module__.split(".")[0] == "pandas" and hasattr(source, "columns"):
        # A named index is a column in its owner's eyes; the row numbers that pandas makes are not.
        named = [name for name in source.index.names if name is not None]
        return pa.Table.from_pandas(source.reset_index(level=named) if named else source, preserve_index=False)
    if hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__"):
        return pa.table(source)
    if isinstance(source, Mapping):
        return pa.table({str(name): _column(values) for name, values in source.items()})
    if isinstance(source, Sequence) and source and all(isinstance(row, Mapping) for row in source):
        return pa.Table.from_pylist([dict(row) for row in source])
    raise DataError(
        f"a {type(source).__name__} is no table. Give a path, a pandas or polars frame, a pyarrow table, "
        "a dict of columns or a list of records."
    )


def _column(values: Any) -> Any:
    """A column from a list or an array; a matrix becomes a column of vectors."""
    import pyarrow as pa

    if isinstance(values, np.ndarray) and values.ndim == 2:
        flat = pa.array(np.ascontiguousarray(values).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise DataError(f"a column has {values.ndim} axes, and a table takes 1 (values) or 2 (vectors). Reshape it.")
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise DataError(f"a column is {values!r}, and a list or an array is wanted. Put it in a list.")
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values
    if hasattr(values, "__arrow_c_stream__") or hasattr(values, "__arrow_c_array__"):
        return pa.chunked_array(values) if hasattr(values, "__arrow_c_stream__") else pa.array(values)
    return pa.array(values if isinstance(values, np.ndarray) else list(values))


def _refuse_repeated_names(table: Any) -> None:
    names = table.column_names
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DataError(
            f"the columns {', '.join(repeated)} occur more than once. Rename them so that a name means one."
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip().split("\n")[0] or type(error).__name__).rstrip(". ")
