"""Files that are written whole or not at all."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from qkv.errors import DataError

__all__ = ["write_whole"]


def write_whole(target: Path, content: bytes | Callable[[IO[bytes]], object], what: str = "the file") -> None:
    """Write beside the target, then rename: a reader never sees half a file, and a failure leaves none.

    Args:
        target: the file; one that is there is replaced.
        content: bytes, or what writes them into a stream.
        what: what the file is, for the message.

    Raises:
        DataError: it cannot be written.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_whole(Path(folder) / "a.txt", b"whole")
        ...     [path.name for path in Path(folder).iterdir()]
        ['a.txt']
    """
    if not target.parent.is_dir():
        raise DataError(f"there is no folder {str(target.parent)!r} for {what}. Make it first.")
    try:
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except OSError as error:
        raise _unwritable(what, target, error) from None
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            if isinstance(content, bytes):
                stream.write(content)
            else:
                content(stream)
        # mkstemp makes private files; this one is as readable as any other new file.
        mask = os.umask(0)
        os.umask(mask)
        partial.chmod(0o666 & ~mask)
        partial.replace(target)
    except OSError as error:
        raise _unwritable(what, target, error) from None
    finally:
        partial.unlink(missing_ok=True)


def _unwritable(what: str, target: Path, error: OSError) -> DataError:
    return DataError(f"{what} {str(target)!r} cannot be written: {error.strerror}. Choose another folder.")
