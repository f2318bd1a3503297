"""The command `qkv verify`, which compares saved files with their checksums."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from qkv.cli.shared_options import argument, flag
from qkv.cli.verify_store import print_wrapped
from qkv.cli.verify_store import verify as verify_store
from qkv.core.container import container_problem, is_container
from qkv.errors import DamagedError, DataError

if TYPE_CHECKING:
    from collections.abc import Sequence


def verify(
    path: Annotated[str, argument("PATH", "A store, a search index, or a file of a model, encoder or estimator.")],
    as_json: Annotated[bool, flag("--json", "Print the result for a store as JSON.")] = False,
) -> None:
    """Verify a saved store, search index, join model, encoder or estimator.

    Every byte is compared with its checksum, and nothing is written. The exit code is 0 if all checksums match, and 2
    otherwise.

    \b
    Examples:
      qkv verify people.qkv
      qkv verify people.model
    """
    from qkv.store import is_store, is_url

    if is_url(path) or is_store(path):
        verify_store(path, as_json)
        return
    files = _containers(Path(path))
    problems = [(file, problem) for file in files if (problem := container_problem(file)) is not None]
    if problems:
        shown = "; ".join(f"{file.name}: {problem}" for file, problem in problems)
        raise DamagedError(f"{path!r} must be intact, got damage: {shown}. Restore it from a copy, or save it again.")
    size = sum(file.stat().st_size for file in files)
    print_wrapped(f"all checksums match: {files[0].name if len(files) == 1 else len(files)}, {size:,} bytes")


def _containers(path: Path) -> Sequence[Path]:
    """Return the file, or the files of a folder, that hold checksums.

    Raises:
        DataError: there is none, for example because an earlier version of qkv wrote the files.
    """
    if path.is_file() and is_container(path):
        return [path]
    # A damaged file of an index may have lost the mark by which containers are recognized.
    index = [path / "index.qkv"] if (path / "index.qkv").is_file() else []
    if index:
        return index
    if not path.exists():
        raise DataError(f"PATH must exist, got {str(path)!r}. Check the path.")
    raise DataError(
        f"PATH must be a store, or a file or index that qkv saved with checksums, got {str(path)!r}. Files that qkv "
        "wrote before 2026-11-22 have no checksums: load and save them again."
    )
