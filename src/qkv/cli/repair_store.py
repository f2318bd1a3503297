"""The command `qkv store repair`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.verify_store import AsJson, StorePath, damage_record, describe_damages, print_wrapped, version_ranges
from qkv.core.printable import escaped_json
from qkv.core.progress import ProgressBar

if TYPE_CHECKING:
    from qkv.store import Repair

__all__ = ["repair"]


def repair(
    path: StorePath,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be lost. Write nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Keep every row of the intact files of a damaged store, and list what is lost.

    The rows that remain become a new version. Nothing is deleted: damaged files are moved to the folder "damaged" of
    the store. Restoring the damaged files from a backup loses less. If the command is interrupted, repeat it.

    \b
    Examples:
      qkv store repair people.qkv --dry-run
      qkv store repair people.qkv
    """
    from qkv import store
    from qkv.plan.cost import counted

    with ProgressBar() as progress:
        done = store.repair(path, dry_run=dry_run, progress=progress)
    if as_json:
        print(escaped_json(json.dumps(_record(path, done, dry_run), ensure_ascii=False)))
        return
    if done.recorded:
        verb = "would be recorded" if dry_run else "are now recorded"
        print_wrapped(f"the checksums of {counted(done.recorded, 'file', 'files')} {verb}")
    if not done.damages:
        print_wrapped(f"{path} is intact: version {done.version}, {done.rows:,} rows")
        return
    describe_damages(done.damages)
    print()
    _describe(path, done, dry_run)


def _describe(path: str, done: Repair, dry_run: bool) -> None:
    """Print what a repair keeps, restores and loses."""
    from qkv.plan.cost import counted

    would = "would be " if dry_run else ""
    for file in done.restored:
        print_wrapped(f"{would}restored from other files: {file}")
    if done.lost_versions:
        print_wrapped(f"lost: {version_ranges(done.lost_versions)}")
    for rows, versions in _by_loss(done.lost):
        print_wrapped(f"lost: {counted(rows, 'row', 'rows')} of {version_ranges(versions)}")
    if done.undeleted:
        again = counted(done.undeleted, "deleted row", "deleted rows")
        print_wrapped(f"{again} {'would be ' if dry_run else ''}present again; delete them once more")
    for file, rows in done.unclaimed:
        place = f"{done.folder}/{file}" if done.folder else f"{path}/{file}"
        print_wrapped(f"{counted(rows, 'row', 'rows')} of no known version: {place}")
    if done.unclaimed:
        print_wrapped("Such rows may be of a lost version, or copies. To add them: qkv store append STORE FILE")
    kept = f"{counted(done.rows, 'row', 'rows')} in version {done.version}"
    if dry_run:
        print_wrapped(f"would keep {kept}; nothing was written")
        return
    print_wrapped(f"kept {kept}")
    if done.folder is not None:
        print_wrapped(f"The damaged files are in {done.folder}, which may be removed.")


def _by_loss(lost: dict[int, int]) -> list[tuple[int, list[int]]]:
    """Return the numbers of lost rows, each with the versions that lost as many."""
    groups: dict[int, list[int]] = {}
    for number, rows in lost.items():
        groups.setdefault(rows, []).append(number)
    return list(groups.items())


def _record(path: str, done: Repair, dry_run: bool) -> dict[str, object]:
    return {
        "store": path,
        "dry_run": dry_run,
        "version": done.version,
        "rows": done.rows,
        "lost_rows": {str(number): rows for number, rows in done.lost.items()},
        "lost_versions": list(done.lost_versions),
        "restored": list(done.restored),
        "recorded_checksums": done.recorded,
        "undeleted_rows": done.undeleted,
        "unclaimed": [{"file": file, "rows": rows} for file, rows in done.unclaimed],
        "damaged_folder": None if done.folder is None else str(done.folder),
        "damaged": [damage_record(damage) for damage in done.damages],
    }
