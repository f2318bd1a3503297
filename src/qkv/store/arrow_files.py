"""Reading of Arrow files that may be damaged or crafted, with a check of every offset, length and index.

pyarrow reads Arrow files without checking their buffers, so an offset beyond the end of a buffer is followed into
memory of other objects, which crashes the process or shows their contents.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from qkv.core.printable import first_line
from qkv.errors import DamagedError
from qkv.store.object_client import Folder

_REMEDY = "Restore the file from a copy."


def map_file(path: Folder) -> pa.Buffer:
    """Return the contents of a file as a memory-mapped buffer, which remains readable if the file is removed.

    An object of an object store is read.
    """
    if not isinstance(path, Path):
        return pa.py_buffer(path.read_bytes())
    if not path.stat().st_size:
        return pa.py_buffer(b"")
    with pa.memory_map(str(path)) as mapped:
        return mapped.read_buffer()


def parse_table(data: pa.Buffer, name: str, *, validate: bool = True, remedy: str = _REMEDY) -> pa.Table:
    """Return the table in the bytes of an Arrow IPC file or stream. Its columns are views of the bytes.

    Args:
        data: the bytes.
        name: names the file in errors.
        validate: whether every offset, length, index and text is checked.
        remedy: the last sentence of errors.

    Raises:
        DamagedError: the bytes are no Arrow file, or a check fails.
    """
    try:
        try:
            table = pa.ipc.open_file(data).read_all()
        except pa.ArrowInvalid:
            if data.size >= 6 and data[:6].to_pybytes() == b"ARROW1":
                raise
            table = pa.ipc.open_stream(data).read_all()
        problem = arrow_problem(table) if validate else None
        # Names of columns are not covered by the validation of columns.
        _ = table.schema.names, str(table.schema)
    except Exception as error:  # pyarrow raises many kinds: ArrowException, OSError, UnicodeDecodeError, MemoryError
        problem = first_line(error)
    if problem is not None:
        raise DamagedError(f"{name} must be an intact Arrow file, but {problem}. {remedy}")
    return table


def arrow_problem(table: pa.Table) -> str | None:
    """Return what is wrong with the buffers of a table, or None if every offset, length, index and text is valid."""
    try:
        # A column of nulls has no buffers, whatever its length is.
        if table.num_rows > 8 * table.get_total_buffer_size():
            return f"it has {table.num_rows:,} rows without data"
        table.validate(full=True)
    except Exception as error:  # ArrowInvalid for most
        return first_line(error)
    return None


def parse_schema(data: bytes, name: str) -> pa.Schema:
    """Return a schema from the bytes to which `Schema.serialize` converted it.

    Raises:
        DamagedError: the bytes are no schema, or two columns have the same name.
    """
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data))
        names = schema.names
        _ = str(schema)
    except Exception as error:  # as in `parse_table`
        raise DamagedError(
            f"the schema in {name} must be that of a table, but {first_line(error)}. Restore the file from a copy."
        ) from None
    if len(set(names)) < len(names):
        raise DamagedError(f"the schema in {name} must have distinct columns. Restore the file from a copy.")
    return schema
