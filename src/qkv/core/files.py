"""Functions that write files atomically: a reader sees the old or the new content; and the folders for caches."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from qkv.errors import DataError


def user_cache(name: str) -> Path:
    """Return a path for caches: `name` in the folder `QKV_CACHE`, otherwise in the platform's folder for caches."""
    folder = os.environ.get("QKV_CACHE")
    if folder:
        return Path(folder) / name
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home()))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "qkv" / name


_WORKING_FOLDER = -100
"""The value of `AT_FDCWD` on Linux, relative to which paths are resolved."""
_EXCHANGE = 2
"""The value of `RENAME_EXCHANGE` on Linux and of `RENAME_SWAP` on macOS."""


@contextmanager
def atomic_path(target: Path, *, prefix: str | None = None, sync: bool = False) -> Iterator[Path]:
    """Yield a path for a temporary file, and rename the file to `target` when the `with` block ends.

    The temporary file is in the folder of `target`. If the block raises an exception, the file is deleted.

    Args:
        target: the final file, which is replaced if it exists.
        prefix: start of the temporary file's name; None: a dot and the name of the target.
        sync: flush the file to the disk before it is renamed, so that it is complete after a power loss.

    Raises:
        OSError: the file cannot be written.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with atomic_path(Path(folder) / "a.txt") as temporary:
        ...         _ = temporary.write_text("complete")
        ...     [path.name for path in Path(folder).iterdir()]
        ['a.txt']
    """
    start, end = (f".{target.name}.", ".part") if prefix is None else (prefix, "")
    temporary = target.with_name(f"{start}{secrets.token_hex(8)}{end}")
    try:
        yield temporary
        if sync:
            fsync(temporary)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def check_writable(target: Path, description: str = "the file", suffixes: Sequence[str] = ()) -> None:
    """Check, before a long computation, that its result can be written to a file.

    The file name must have an allowed suffix, and the folder must exist and be writable.

    Args:
        description: name of the file in error messages.
        suffixes: file name suffixes that are allowed; empty: any name is allowed.

    Raises:
        DataError: the name has another suffix, the folder does not exist, or the current user may not write to it.

    Example:
        >>> check_writable(Path("no-such-folder/a.txt"))
        Traceback (most recent call last):
        qkv.errors.DataError: the folder of the file must exist, got 'no-such-folder'. Create the folder first.
    """
    if suffixes and target.suffix.lower() not in suffixes:
        raise DataError(
            f"the name of {description} must end in {' or '.join(suffixes)}, got {target.name!r}. Change the suffix."
        )
    folder = target.parent
    if folder.exists() and not folder.is_dir():
        raise DataError(f"the parent of {description} must be a folder, got {str(folder)!r}. Choose another folder.")
    if not folder.is_dir():
        raise DataError(f"the folder of {description} must exist, got {str(folder)!r}. Create the folder first.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _unwritable(description, target, os.strerror(errno.EACCES))


def check_creatable(folder: Path, description: str) -> None:
    """Check, before a long computation, that its result can be written to a folder, which need not exist yet.

    Args:
        description: name of the folder in error messages.

    Raises:
        DataError: the current user may not create the folder, or one of its parents is a file.

    Example:
        >>> check_creatable(Path("/dev/null/a"), "the store")
        Traceback (most recent call last):
        qkv.errors.DataError: the parent of the store must be a folder, got '/dev/null'. Choose another folder.
    """
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    check_writable(existing / folder.name, description)


def fsync(path: Path) -> None:
    """Flush the content of a file, or the entries of a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(
    target: Path, content: bytes | Callable[[IO[bytes]], object], description: str = "the file", *, sync: bool = False
) -> None:
    """Write a file such that a reader sees either the old or the new content, never a partial file.

    Args:
        target: the file, which is replaced if it exists.
        content: the bytes, or a function that writes the content to a binary stream.
        description: name of the file in error messages.
        sync: flush the file to the disk before it is renamed, so that it is complete after a power loss.

    Raises:
        DataError: the file cannot be written.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_atomic(Path(folder) / "a.txt", b"complete")
        ...     (Path(folder) / "a.txt").read_text()
        'complete'
    """
    check_writable(target, description)
    try:
        with atomic_path(target, sync=sync) as temporary, temporary.open("xb") as stream:
            if isinstance(content, bytes):
                stream.write(content)
            else:
                content(stream)
    except OSError as error:
        raise _unwritable(description, target, error.strerror) from None


def write_atomic_with_siblings(target: Path, save: Callable[[Path], object], description: str = "the file") -> None:
    """Write a file, and further files that `save` creates next to it, each atomically and the target last.

    Args:
        target: the main file, which is replaced if it exists.
        save: function that is called with a path in a temporary folder; the file has the name of the target.
        description: name of the file in error messages.

    Raises:
        DataError: a file cannot be written.
    """
    folder = None
    try:
        folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part"))
        save(folder / target.name)
        for path in sorted(folder.iterdir(), key=lambda path: path.name == target.name):
            path.replace(target.parent / path.name)
    except OSError as error:
        raise _unwritable(description, target, error.strerror) from None
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def make_folders(path: Path) -> None:
    """Create a folder and those of its parents that do not exist, and sync each to the disk.

    Raises:
        OSError: a folder cannot be created.

    Example:
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     make_folders(Path(parent) / "a" / "b")
        ...     (Path(parent) / "a" / "b").is_dir()
        True
    """
    absolute = path.absolute()
    new = [folder for folder in (absolute, *absolute.parents) if not folder.exists()]
    absolute.mkdir(parents=True, exist_ok=True)
    # The entry of a new folder is in its parent; after a power loss, a folder without it is lost with its files.
    for folder in reversed(new):
        fsync(folder.parent)


def exchange_folders(first: Path, second: Path) -> None:
    """Exchange two folders of the same disk. On Linux and macOS, both paths exist at every moment.

    Where the system cannot exchange folders, the second path is absent for a moment.

    Raises:
        OSError: a folder cannot be renamed.

    Example:
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     a, b = Path(parent) / "a", Path(parent) / "b"
        ...     (a / "x").mkdir(parents=True)
        ...     b.mkdir()
        ...     exchange_folders(a, b)
        ...     [path.name for path in b.iterdir()], [*a.iterdir()]
        (['x'], [])
    """
    if not _exchanged(os.fsencode(first), os.fsencode(second)):
        aside = first.with_name(f"{first.name}.{secrets.token_hex(8)}")
        first.rename(aside)
        second.rename(first)
        aside.rename(second)


def _exchanged(first: bytes, second: bytes) -> bool:
    """Exchange two paths by one call of the system, and return whether it supports that."""
    if os.name != "posix":
        return False
    library = ctypes.CDLL(None, use_errno=True)
    if hasattr(library, "renameat2"):
        failed = library.renameat2(_WORKING_FOLDER, first, _WORKING_FOLDER, second, _EXCHANGE)
    elif hasattr(library, "renamex_np"):
        failed = library.renamex_np(first, second, _EXCHANGE)
    else:
        return False
    if failed and ctypes.get_errno() not in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), os.fsdecode(second))
    return not failed


def _unwritable(description: str, target: Path, reason: str | None) -> DataError:
    return DataError(f"{description} {str(target)!r} cannot be written: {reason}. Choose another folder.")
