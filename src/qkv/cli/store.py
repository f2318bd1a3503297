"""`qkv store`: make a database on disk, and keep it."""

from typing import TYPE_CHECKING, Annotated

import typer

from qkv.errors import DamagedStoreError, OptionError

if TYPE_CHECKING:
    from qkv.database.storage.stored import StoredDatabase

__all__ = ["store"]

_HELP = """Make and keep a database on disk, which qkv ask takes in place of a file.

Rows are appended and deleted in versions; what is acknowledged is on the disk, synced. A database larger than
memory is asked block by block.

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
  qkv store create guests.qkv people.csv --key name --value city --encoder latent
  qkv ask guests.qkv "Smith"
"""

store = typer.Typer(
    invoke_without_command=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@store.callback(help=_HELP)
def _store(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


Folder = Annotated[str, typer.Argument(metavar="STORE", help="The folder of the store.", show_default=False)]


@store.command()
def create(
    path: Folder,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The first rows, as qkv ask takes.", show_default=False)],
    key: Annotated[str, typer.Option(metavar="A[,B]", help="The key column, or several.", show_default=False)] = "",
    value: Annotated[str, typer.Option(metavar="C", help="The value column.", show_default=False)] = "",
    score: Annotated[
        str | None, typer.Option(metavar="NAME[:NUMBER]", help="How keys are compared, unless ask says.")
    ] = None,
    normalizer: Annotated[
        str | None, typer.Option(metavar="NAME[:NUMBER]", help="How scores become weights, unless ask says.")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", help="Least similarity, or largest distance, of a match."),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|PATH",
            help="Compare vectors of keys: latent[:RANK], sentences, table, a model's folder, word vectors.",
        ),
    ] = None,
    backend: Annotated[
        str, typer.Option(metavar="arrow|lance", help="What the store is made of; lance is an extra.")
    ] = "arrow",
) -> None:
    """Make a store from the rows of a file. It remembers its key and value."""
    from qkv.core.progress import ProgressBar
    from qkv.database.database import Database

    if not key or not value:
        raise OptionError(
            f"there is no --{'value' if key else 'key'}. Name the column, as in --key name --value income."
        )
    with ProgressBar() as progress:
        made = Database.create(
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
        )
    print(made)


@store.command()
def append(
    path: Folder,
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="Rows with the store's columns.", show_default=False),
    ],
) -> None:
    """Add the rows of files, all or none, as one version."""
    from qkv.core.progress import ProgressBar

    opened = _open(path)
    before = len(opened.store)
    with ProgressBar() as progress:
        opened.append(iter(files), progress=progress)
    print(f"{_counted(len(opened.store) - before, 'row')} added; {opened}")


@store.command()
def delete(
    path: Folder,
    where: Annotated[
        str, typer.Argument(metavar="SQL", help="A predicate; rows that satisfy it go.", show_default=False)
    ],
) -> None:
    """Take out the rows that satisfy a predicate. Older versions keep them until compact --keep."""
    opened = _open(path)
    gone = opened.delete(where)
    print(f"{_counted(gone, 'row')} deleted; {opened}")


@store.command()
def versions(path: Folder) -> None:
    """List the versions that can be asked, oldest first."""
    for version in _open(path, damaged="skip").versions():
        written = version.written.astimezone().isoformat(" ", "seconds")
        print(f"{version.number:>8}  {written}  {version.operation:<8} {_counted(version.rows, 'row')}")


@store.command(short_help="Rewrite small and thinned blocks into full ones.")
def compact(
    path: Folder,
    keep: Annotated[int | None, typer.Option(metavar="N", min=1, help="Forget all but the N newest versions.")] = None,
) -> None:
    """Rewrite small and thinned blocks into full ones, and free what no version needs."""
    from qkv.core.progress import ProgressBar
    from qkv.plan.cost import memory_text

    opened = _open(path)
    with ProgressBar() as progress:
        freed = opened.compact(keep, progress)
    print(f"{memory_text(freed)} freed; {opened}")


@store.command(short_help="Compare every byte with its checksum.")
def verify(path: Folder) -> None:
    """Compare every byte with its checksum; damaged files are named, and the exit code is 2."""
    from qkv.core.progress import ProgressBar

    opened = _open(path, damaged="skip")
    with ProgressBar() as progress:
        damages = opened.verify(progress)
    if damages:
        raise DamagedStoreError(
            f"{path!r} is damaged: {'; '.join(map(str, damages))}. Restore these files from a copy."
        )
    print(f"every byte is as it was written; {opened}")


def _open(path: str, damaged: str = "refuse") -> "StoredDatabase":
    from qkv.database.storage.create import open_database

    return open_database(path, None, None, fold=None, memory="512 MiB", damaged=damaged)


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"
