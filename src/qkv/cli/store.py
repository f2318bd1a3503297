"""The command `qkv store`, which creates and maintains a database on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.copy_store import copy, export
from qkv.cli.repair_store import repair
from qkv.cli.shared_options import (
    ON_BAD_CELL,
    DateFormat,
    Decimal,
    Delimiter,
    Encoding,
    HeaderRow,
    KeyColumns,
    NormalizerName,
    OnBadCell,
    ScoreName,
    SkipFooter,
    Threshold,
    ValueColumn,
)
from qkv.cli.verify_store import StorePath, verify
from qkv.core.checks import check_choice
from qkv.core.printable import printable
from qkv.core.progress import ProgressBar
from qkv.errors import OptionError

if TYPE_CHECKING:
    from qkv.database.storage.stored import StoredDatabase

__all__ = ["store"]

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
    https:// (pip install "qkv[cloud]").

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
      qkv ask guests.qkv "Smith"
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@store.command()
def create(
    path: StorePath,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="File of the first rows, in a format of qkv ask.", show_default=False)
    ],
    key: KeyColumns = "",
    value: ValueColumn = "",
    score: ScoreName = None,
    normalizer: NormalizerName = None,
    threshold: Threshold = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|PATH",
            help="Compare keys as vectors: latent[:RANK], sentences, table, a model folder, or a word vector file.",
        ),
    ] = None,
    backend: Annotated[
        str, typer.Option(metavar="arrow|lance", help="Storage format; lance needs the extra of this name.")
    ] = "arrow",
    on_bad_cell: OnBadCell = "exclude",
    encoding: Encoding = None,
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    date_format: DateFormat = None,
    header_row: HeaderRow = None,
    skip_footer: SkipFooter = None,
) -> None:
    """Create a store from the rows of a file.

    The store records the key and value columns, and the defaults for score, normalizer and threshold.

    \b
    Example:
      qkv store create people.qkv people.csv --key name --value income
    """
    from qkv.database.database import Database

    if not key or not value:
        raise OptionError(
            f"--{'value' if key else 'key'} must be given. Name the column, for example --key name --value income."
        )
    check_choice("--on-bad-cell", on_bad_cell, ON_BAD_CELL)
    with ProgressBar() as progress:
        created = Database.create(
            path,
            file,
            key,
            value,
            score=score,
            normalizer=normalizer,
            threshold=threshold,
            encoder=encoder,
            backend=backend,
            progress=progress,
            on_bad_cell=on_bad_cell,
            encoding=encoding,
            delimiter=delimiter,
            decimal=decimal,
            date_format=date_format,
            header_row=header_row,
            skip_footer=skip_footer,
        )
    print(printable(str(created)))
    _print_notes(created)


@store.command()
def append(
    path: StorePath,
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="Files of rows with the columns of the store.", show_default=False),
    ],
    on_bad_cell: OnBadCell = "exclude",
    encoding: Encoding = None,
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    date_format: DateFormat = None,
    header_row: HeaderRow = None,
    skip_footer: SkipFooter = None,
) -> None:
    """Append the rows of one or more files to a store as one new version.

    \b
    Example:
      qkv store append people.qkv people.csv
    """
    from qkv.plan.cost import counted

    check_choice("--on-bad-cell", on_bad_cell, ON_BAD_CELL)
    opened = _open(path)
    before = len(opened.store)
    with ProgressBar() as progress:
        opened.append(
            iter(files),
            progress=progress,
            on_bad_cell=on_bad_cell,
            encoding=encoding,
            delimiter=delimiter,
            decimal=decimal,
            date_format=date_format,
            header_row=header_row,
            skip_footer=skip_footer,
        )
    print(printable(f"{counted(len(opened.store) - before, 'row', 'rows')} added; {opened}"))
    _print_notes(opened)


@store.command(short_help="Delete the rows that satisfy a predicate.")
def delete(
    path: StorePath,
    where: Annotated[
        str, typer.Argument(metavar="SQL", help="SQL predicate of the rows to delete.", show_default=False)
    ],
) -> None:
    """Delete the rows of a store that satisfy a predicate. Older versions still contain these rows.

    `qkv store compact --keep N` deletes older versions.

    \b
    Example:
      qkv store delete people.qkv "city = 'Oslo'"
    """
    from qkv.plan.cost import counted

    opened = _open(path)
    deleted = opened.delete(where)
    print(printable(f"{counted(deleted, 'row', 'rows')} deleted; {opened}"))


@store.command()
def versions(path: StorePath) -> None:
    """List the versions of a store, oldest first.

    \b
    Example:
      qkv store versions people.qkv
    """
    from qkv.plan.cost import counted

    for version in _open(path, damaged="skip").versions():
        written = version.written.astimezone().isoformat(" ", "seconds")
        lost = f", {version.lost:,} lost" if version.lost else ""
        print(f"{version.number:>8}  {written}  {version.operation:<8} {counted(version.rows, 'row', 'rows')}{lost}")
    _open(path).versions()  # an error names what is damaged


@store.command(short_help="Merge small blocks and free disk space.")
def compact(
    path: StorePath,
    keep: Annotated[int | None, typer.Option(metavar="N", min=1, help="Delete all but the N newest versions.")] = None,
) -> None:
    """Merge the small blocks of a store and its blocks with deleted rows, and free disk space that no version uses.

    \b
    Example:
      qkv store compact people.qkv --keep 1
    """
    from qkv.plan.cost import memory_text

    opened = _open(path)
    with ProgressBar() as progress:
        freed = opened.compact(keep, progress)
    print(printable(f"{memory_text(freed)} freed; {opened}"))


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
