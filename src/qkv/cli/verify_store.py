"""The command `qkv store verify`, and the description of damages of a store."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

from qkv.cli.shared_options import argument, flag
from qkv.core.printable import escaped_json, printable
from qkv.core.progress import ProgressBar
from qkv.errors import DamagedStoreError

if TYPE_CHECKING:
    from qkv.store import Damage


StorePath = Annotated[str, argument("STORE", "Folder or URL of the store.")]
AsJson = Annotated[bool, flag("--json", "Print the result as JSON.")]

_MOST_RANGES = 6


def verify(path: StorePath, as_json: AsJson = False) -> None:
    """Verify the files of all versions of a store, its attached files and its cache.

    Every byte is compared with its checksum. Nothing is written, so the store may be on a read-only disk, and other
    processes may append and compact meanwhile. The exit code is 0 if the store is intact. Otherwise it is 2, and
    each damaged file is listed with what is lost.

    \b
    Examples:
      qkv store verify people.qkv
      qkv store verify people.qkv --json
    """
    from qkv import store
    from qkv.core.formatting import counted, memory_text

    with ProgressBar() as progress:
        found = store.verify(path, progress)
    if as_json:
        record = {
            "store": path,
            "intact": not found.damages,
            "versions": list(found.versions),
            "files": found.files,
            "bytes": found.size,
            "rows": found.rows,
            "lost_rows": found.lost,
            "unchecked_files": found.unchecked,
            "damaged": [damage_record(damage) for damage in found.damages],
        }
        print(escaped_json(json.dumps(record, ensure_ascii=False)))
    if not found.damages:
        if not as_json:
            size = f"{counted(found.files, 'file', 'files')} of {memory_text(found.size)}"
            rows = counted(found.rows, "row", "rows")
            if found.unchecked:
                without = counted(found.unchecked, "file has no checksum and was", "files have no checksums and were")
                print_wrapped(f"{without} only decoded; to record checksums: qkv store repair {path}")
            print_wrapped(f"all checksums match: {rows}, {counted(len(found.versions), 'version', 'versions')}, {size}")
        return
    if not as_json:
        describe_damages(found.damages)
    files = counted(len(found.damages), "damaged file", "damaged files")
    lost = f" and {found.lost:,} of {found.rows:,} rows lost" if found.lost else ""
    remedy = f"keep the other rows with: qkv store repair {path}"
    if store.is_url(path):
        remedy = f"copy the other rows to a folder with: qkv store copy {path} FOLDER --damaged skip"
    raise DamagedStoreError(
        f"the store {path!r} must be intact, got {files}{lost}. Restore the files from a copy, or {remedy}"
    )


def describe_damages(damages: Iterable[Damage]) -> None:
    """Print each damaged file, what is wrong with it, and what is lost, in lines of the width of the terminal."""
    for damage in damages:
        print(printable(damage.file))
        print_wrapped(damage.problem, "  ")
        print_wrapped(_loss(damage), "  ")


def damage_record(damage: Damage) -> dict[str, object]:
    """Return a damage as JSON values."""
    return {
        "file": damage.file,
        "problem": damage.problem,
        "kind": damage.kind,
        "rows": damage.rows,
        "versions": list(damage.versions),
        "lost": _loss(damage).removeprefix("lost: "),
    }


def _loss(damage: Damage) -> str:
    """Return in words what cannot be read because of a damaged file."""
    from qkv.core.formatting import counted

    ranges = version_ranges(damage.versions)
    if damage.kind == "checksums":
        return "nothing is lost, but some files cannot be verified"
    if damage.kind == "cache":
        return "nothing is lost: the results are computed again"
    if damage.kind == "attachment":
        return f"lost: what is read from this file in {ranges}, such as the encoder; no rows"
    if damage.kind == "manifest":
        return f"lost: {ranges}" if damage.versions else "no rows are lost"
    what = "which of its rows are deleted, so " if damage.kind == "deletions" else ""
    return f"lost: {what}{counted(damage.rows, 'row', 'rows')} of {ranges}, all columns"


def version_ranges(versions: Sequence[int]) -> str:
    """Return version numbers in words.

    Example:
        >>> version_ranges([1, 3, 4, 5]), version_ranges([7])
        ('versions 1, 3 to 5', 'version 7')
    """
    starts = [number for before, number in pairwise([-1, *versions]) if number > before + 1 or before < 0]
    ends = [number for number, after in pairwise([*versions, -1]) if after != number + 1]
    ranges = [str(start) if start == end else f"{start} to {end}" for start, end in zip(starts, ends, strict=True)]
    more = [f"and {len(ranges) - _MOST_RANGES} more ranges"] if len(ranges) > _MOST_RANGES else []
    return f"{'version' if len(versions) == 1 else 'versions'} {', '.join(ranges[:_MOST_RANGES] + more)}"


def print_wrapped(text: str, indent: str = "") -> None:
    """Print a text in lines of at most the width of the terminal."""
    width = max(20, shutil.get_terminal_size((120, 24)).columns)
    print(textwrap.fill(printable(text), width, initial_indent=indent, subsequent_indent=indent))
