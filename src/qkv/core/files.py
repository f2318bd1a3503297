"""Files that are written whole or not at all."""

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from qkv.errors import DataError

__all__ = ["atomic_path", "check_creatable", "check_writable", "fsync", "write_atomic"]


@contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """A file beside the target, to be filled in the `with` block; then it takes the target's name.

    A reader sees the old file or the new one, never a part, and a block that fails leaves nothing.

    Raises:
        OSError: there is no room for it.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with atomic_path(Path(folder) / "a.txt") as partial:
        ...         _ = partial.write_text("whole")
        ...     [path.name for path in Path(folder).iterdir()]
        ['a.txt']
    """
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    os.close(descriptor)
    partial = Path(name)
    try:
        yield partial
        # mkstemp makes private files; this one is as readable as any other new file.
        mask = os.umask(0)
        os.umask(mask)
        partial.chmod(0o666 & ~mask)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def check_writable(target: Path, what: str = "the file") -> None:
    """Look where a file will go, before the long work that fills it.

    Raises:
        DataError: its folder is not there, or this user may not write in it.

    Example:
        >>> check_writable(Path("no-such-folder/a.txt"))
        Traceback (most recent call last):
        qkv.errors.DataError: there is no folder 'no-such-folder' for the file. Make it first.
    """
    if target.parent.exists() and not target.parent.is_dir():
        raise DataError(f"{str(target.parent)!r} is no folder, so {what} cannot be in it. Choose another place.")
    if not target.parent.is_dir():
        raise DataError(f"there is no folder {str(target.parent)!r} for {what}. Make it first.")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise DataError(
            f"{what} {str(target)!r} cannot be written: {os.strerror(errno.EACCES)}. Choose another folder."
        )


def check_creatable(folder: Path, what: str) -> None:
    """Look where a folder will be, with those above it, before the long work that fills it.

    Raises:
        DataError: this user may not make it, or what is above it is a file.

    Example:
        >>> check_creatable(Path("/dev/null/a"), "the store")
        Traceback (most recent call last):
        qkv.errors.DataError: '/dev/null' is no folder, so the store cannot be in it. Choose another place.
    """
    above = next(part for part in (folder, *folder.parents) if part.exists())
    check_writable(above / folder.name, what)


def fsync(path: Path) -> None:
    """Wait until the bytes of a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(
    target: Path,
    content: bytes | Callable[[IO[bytes]], object],
    what: str = "the file",
    *,
    sync: bool = False,
) -> None:
    """Write a file whole, and say in a sentence where it cannot be.

    Args:
        target: the file; one that is there is replaced.
        content: bytes, or what writes them into a stream.
        what: what the file is, for the message.
        sync: wait until the bytes are on the disk before the file takes its name, so that it is whole after a
            loss of power too.

    Raises:
        DataError: it cannot be written.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_atomic(Path(folder) / "a.txt", b"whole")
        ...     (Path(folder) / "a.txt").read_text()
        'whole'
    """
    check_writable(target, what)
    try:
        with atomic_path(target) as partial, partial.open("wb") as stream:
            if isinstance(content, bytes):
                stream.write(content)
            else:
                content(stream)
            if sync:
                stream.flush()
                os.fsync(stream.fileno())
    except OSError as error:
        raise DataError(f"{what} {str(target)!r} cannot be written: {error.strerror}. Choose another folder.") from None
