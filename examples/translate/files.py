"""Files that are written atomically."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from qkv.core.files import write_atomic
from qkv.errors import DataError

__all__ = ["read_json", "write", "write_json"]


def write(target: Path, content: bytes | Callable[[IO[bytes]], object]) -> None:
    """Write a file atomically: after a crash or power loss, the old file remains.

    Raises:
        DataError: the file cannot be written there.
    """
    write_atomic(target, content, sync=True)


def write_json(target: Path, held: Any) -> None:
    """Write readable JSON."""
    text = json.dumps(held, indent=1, ensure_ascii=False) + "\n"
    write(target, text.encode())


def read_json(path: Path, what: str) -> Any:
    """Return the contents of a JSON file.

    Raises:
        DataError: the file does not exist or is not JSON. The message begins with `what`.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"{what} {str(path)!r} cannot be read: {error.strerror}. Name a folder that "
            "`python -m examples.translate train` wrote."
        ) from None
    except ValueError as error:
        raise DataError(f"{what} {str(path)!r} is damaged: {error}. Train again.") from None
