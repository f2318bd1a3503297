"""Files that are there whole or not at all."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from qkv.errors import DataError

__all__ = ["read_json", "write", "write_json"]


def write(target: Path, fill: Callable[[IO[bytes]], None]) -> None:
    """Write beside the target, then rename: a reader, or a killed writer, never leaves half a file.

    Raises:
        DataError: the file cannot be written there.
    """
    try:
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except OSError as error:
        raise DataError(
            f"{str(target)!r} cannot be written: {error.strerror}. Choose another place."
        ) from None
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            fill(stream)
            # A rename may reach the disk before the bytes do.
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes private files; these are as readable as any other new file.
        mask = os.umask(0)
        os.umask(mask)
        partial.chmod(0o666 & ~mask)
        partial.replace(target)
    except OSError as error:
        raise DataError(
            f"{str(target)!r} cannot be written: {error.strerror}. Choose another place."
        ) from None
    finally:
        partial.unlink(missing_ok=True)


def _unwritten(target: Path, error: OSError) -> DataError:
    return DataError(f"{str(target)!r} cannot be written: {error.strerror}. Choose another place.")


def write_json(target: Path, held: Any) -> None:
    """Write JSON that a person can read."""
    text = json.dumps(held, indent=1, ensure_ascii=False) + "\n"
    write(target, lambda stream: stream.write(text.encode()) and None)


def read_json(path: Path, what: str) -> Any:
    """What a JSON file holds.

    Raises:
        DataError: it is not there, or no JSON. The message calls it `what`.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"{what} {str(path)!r} cannot be read: {error.strerror}. Is this a folder that "
            "`python -m examples.translate train` made?"
        ) from None
    except ValueError as error:
        raise DataError(f"{what} {str(path)!r} is damaged: {error}. Train anew.") from None
