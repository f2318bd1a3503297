"""Reading of Arrow IPC files, Arrow streams and Feather files, whose contents are validated before they are used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.database.io.read_options import COMPRESSIONS, unpacked_blocks, unpacking_errors
from qkv.errors import DamagedError, DataError
from qkv.store.arrow_files import first_line, map_file, parse_table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["read_arrow"]

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
    import pyarrow as pa

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
    import pyarrow as pa

    done = subprocess.run([sys.executable, "-I", "-c", _CONVERT, str(path)], capture_output=True, check=False)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1][:200] if done.returncode > 0 and lines else "its reader crashes"
        raise DamagedError(f"{path.name!r} must be an intact Feather file, but {reason.rstrip('. ')}. {_REMEDY}")
    return pa.py_buffer(done.stdout)
