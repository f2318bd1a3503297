"""The command `qkv store`, which creates and maintains a database on disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.shared_options import (
    KeyColumns,
    MaxDistance,
    MinSimilarity,
    NormalizerName,
    ReadingOptions,
    ScoreName,
    TableOptions,
    ValueColumn,
    argument,
    expand_options,
    flag,
    option,
)
from qkv.cli.verify_store import (
    AsJson,
    StorePath,
    damage_record,
    describe_damages,
    print_wrapped,
    verify,
    version_ranges,
)
from qkv.core.printable import escaped_json, printable
from qkv.core.progress import ProgressBar
from qkv.errors import DamagedStoreError, OptionError

if TYPE_CHECKING:
    from qkv.database.storage.stored import StoredDatabase
    from qkv.store import Repair


def repair(
    path: StorePath,
    dry_run: Annotated[bool, flag("--dry-run", "Show what would be lost. Write nothing.")] = False,
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
    from qkv.core.formatting import counted

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
    from qkv.core.formatting import counted

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
    summary = f"{counted(done.rows, 'row', 'rows')} in version {done.version}"
    if dry_run:
        print_wrapped(f"would keep {summary}; nothing was written")
        return
    print_wrapped(f"kept {summary}")
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


_Version = Annotated[int | None, option("N", "Version; default: the newest.", "--version", min=1)]


def copy(
    path: StorePath,
    target: Annotated[str, argument("COPY", "Folder of the copy.")],
    version: _Version = None,
    overwrite: Annotated[bool, flag("--overwrite", "Replace a store at COPY.")] = False,
    backend: Annotated[str, option("arrow|lance", "Storage format of the copy.")] = "arrow",
    damaged: Annotated[
        str, option("refuse|skip", "Refuse to copy a damaged store, or leave out what is damaged.")
    ] = "refuse",
) -> None:
    """Copy one version of a store to another folder, where it is version 1.

    The copy is consistent while other processes append, delete and compact. It appears when it is complete: if the
    command is interrupted or the disk is full, nothing is left, or the store that was there before.

    \b
    Examples:
      qkv store copy people.qkv backup.qkv
      qkv store copy people.qkv march.qkv --version 2
      qkv store copy people.qkv backup.qkv --overwrite
    """
    from qkv import store
    from qkv.core.formatting import counted

    store.require_free(target, backend, overwrite)
    opened = store.open(path, version=version, damaged=damaged)
    with ProgressBar() as progress:
        copied = store.copy(opened, target, backend=backend, overwrite=overwrite, progress=progress)
    rows = counted(len(copied), "row", "rows")
    print_wrapped(f"{rows} of version {opened.version} of {opened.path.name} copied to {target}")
    if opened.damages:
        describe_damages(replace(damage, versions=(opened.version,)) for damage in opened.damages)
        raise DamagedStoreError(f"the copy {target!r} must have all rows, but {opened.skipped}. Restore the files.")


def export(
    path: StorePath,
    target: Annotated[str, argument("FILE", "File that ends in .parquet or .arrow.")],
    version: _Version = None,
    overwrite: Annotated[bool, flag("--overwrite", "Replace FILE if it exists.")] = False,
) -> None:
    """Write the rows of one version of a store to a Parquet or Arrow file.

    Types are preserved; a column whose type Parquet would change is refused. Vectors of an encoder are left out. The
    file is consistent while other processes write, and appears when it is complete.

    \b
    Examples:
      qkv store export people.qkv people.parquet
      qkv store export people.qkv people.arrow --version 2
    """
    from qkv import store
    from qkv.core.formatting import counted, memory_text
    from qkv.database.storage.create import visible_columns

    store.check_exportable(Path(target), overwrite)
    opened = store.open(path, version=version)
    with ProgressBar() as progress:
        store.export(opened, target, columns=visible_columns(opened), overwrite=overwrite, progress=progress)
    rows, size = counted(len(opened), "row", "rows"), memory_text(Path(target).stat().st_size)
    print_wrapped(f"{rows} of version {opened.version} of {opened.path.name} written to {target}, {size}")


store = typer.Typer(
    invoke_without_command=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@store.callback()
def _store(context: typer.Context) -> None:
    """Create and maintain a database on disk, which qkv ask can query like a file.

    Rows are appended and deleted in versions; every change is synced to the disk before the command returns. A
    database larger than memory is read block by block. STORE may be a URL, such as s3://bucket/people, gs://, az:// or
    https:// (pip install "qkv[stores]").

    \b
    Examples:
      qkv store create people.qkv people.csv --key name --value income
      qkv ask people.qkv "Jon Smiht"
      qkv store append people.qkv people.csv
      qkv store delete people.qkv "city = 'Oslo'"
      qkv store versions people.qkv
      qkv ask people.qkv --version 2 "Jon Smiht"
      qkv store compact people.qkv --keep 1
      qkv store verify people.qkv
      qkv store repair people.qkv
      qkv store copy people.qkv backup.qkv
      qkv store export people.qkv people.parquet
      qkv store create guests.qkv people.csv --key name --value city --encoder latent
      qkv store compress guests.qkv
      qkv ask guests.qkv "Smith"
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@store.command()
@expand_options
def create(
    path: StorePath,
    file: Annotated[str, argument("FILE", "File of the first rows, in a format of qkv ask.")],
    key: KeyColumns = "",
    value: ValueColumn = "",
    score: ScoreName = None,
    normalizer: NormalizerName = None,
    min_similarity: MinSimilarity = None,
    max_distance: MaxDistance = None,
    encoder: Annotated[
        str | None,
        option(
            "NAME|PATH", "Compare keys as vectors: latent[:N], sentences, table, a model folder, or a word vector file."
        ),
    ] = None,
    backend: Annotated[str, option("arrow|lance", "Storage format; lance needs the extra stores.")] = "arrow",
    *,
    reading: TableOptions,
) -> None:
    """Create a store from the rows of a file.

    The store records the key and value columns, and the defaults for score, normalizer and the limit of a match.

    \b
    Example:
      qkv store create people.qkv people.csv --key name --value income
    """
    from qkv.database.database import Database

    if not key or not value:
        raise OptionError(
            f"--{'value' if key else 'key'} must be given. Name the column, for example --key name --value income."
        )
    arguments = reading.arguments()
    with ProgressBar() as progress:
        created = Database.create(
            path,
            file,
            key,
            value,
            score=score,
            normalizer=normalizer,
            min_similarity=min_similarity,
            max_distance=max_distance,
            encoder=encoder,
            backend=backend,
            progress=progress,
            **arguments,
        )
    print(printable(str(created)))
    _print_notes(created)


@store.command()
@expand_options
def append(
    path: StorePath,
    files: Annotated[list[str], argument("FILE", "Files of rows with the columns of the store.")],
    *,
    reading: ReadingOptions,
) -> None:
    """Append the rows of one or more files to a store as one new version.

    \b
    Example:
      qkv store append people.qkv people.csv
    """
    from qkv.core.formatting import counted

    arguments = reading.arguments()
    opened = _open(path)
    before = len(opened.store)
    with ProgressBar() as progress:
        opened.append(iter(files), progress=progress, **arguments)
    print(printable(f"{counted(len(opened.store) - before, 'row', 'rows')} added; {opened}"))
    _print_notes(opened)


@store.command(short_help="Delete the rows that satisfy a predicate.")
def delete(path: StorePath, where: Annotated[str, argument("SQL", "SQL predicate of the rows to delete.")]) -> None:
    """Delete the rows of a store that satisfy a predicate. Older versions still contain these rows.

    `qkv store compact --keep N` deletes older versions.

    \b
    Example:
      qkv store delete people.qkv "city = 'Oslo'"
    """
    from qkv.core.formatting import counted

    opened = _open(path)
    deleted = opened.delete(where)
    print(printable(f"{counted(deleted, 'row', 'rows')} deleted; {opened}"))
    _print_notes(opened)


@store.command()
def versions(path: StorePath) -> None:
    """List the versions of a store, oldest first.

    \b
    Example:
      qkv store versions people.qkv
    """
    from qkv.core.formatting import counted

    for version in _open(path, damaged="skip").versions():
        written = version.written.astimezone().isoformat(" ", "seconds")
        lost = f", {version.lost:,} lost" if version.lost else ""
        print(f"{version.number:>8}  {written}  {version.operation:<8} {counted(version.rows, 'row', 'rows')}{lost}")
    _open(path).versions()  # an error names what is damaged


@store.command(short_help="Merge small blocks and free disk space.")
def compact(
    path: StorePath, keep: Annotated[int | None, option("N", "Delete all but the N newest versions.", min=1)] = None
) -> None:
    """Merge the small blocks of a store and its blocks with deleted rows, and free disk space that no version uses.

    \b
    Example:
      qkv store compact people.qkv --keep 1
    """
    from qkv.core.formatting import memory_text

    opened = _open(path)
    with ProgressBar() as progress:
        freed = opened.compact(keep, progress)
    print(printable(f"{memory_text(freed)} freed; {opened}"))


@store.command(short_help="Save codes of the vectors of the key, which are read faster.")
def compress(path: StorePath) -> None:
    """Save codes of one byte for each number of the vectors of the key, from which most questions are answered.

    The answers remain the same: rows that the codes cannot exclude are read exactly. A softmax needs --tolerance.

    \b
    Example:
      qkv store compress guests.qkv
    """
    from qkv.core.formatting import memory_text

    opened = _open(path)
    with ProgressBar() as progress:
        size = opened.compress(progress)
    print(printable(f"{memory_text(size)} of codes; {opened}"))


store.command(short_help="Verify the files of all versions.")(verify)
store.command(short_help="Keep the rows of all intact files.")(repair)
store.command(short_help="Copy one version to another folder.")(copy)
store.command(short_help="Write one version to a Parquet or Arrow file.")(export)


def _open(path: str, damaged: str = "refuse") -> StoredDatabase:
    from qkv.database.storage.create import open_database

    # With "skip" every file would be read at opening, which the list of versions does not need.
    checksums = False if damaged == "skip" else None
    return open_database(path, None, None, fold=None, memory="512 MiB", damaged=damaged, checksums=checksums)


def _print_notes(opened: StoredDatabase) -> None:
    for note in opened.cell_notes:
        print(printable(f"· {note}"))
