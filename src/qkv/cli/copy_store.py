"""The commands `qkv store copy` and `qkv store export`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.verify_store import StorePath, describe_damages, print_wrapped
from qkv.core.progress import ProgressBar
from qkv.errors import DamagedStoreError

__all__ = ["copy", "export"]

_Version = Annotated[int | None, typer.Option("--version", metavar="N", min=1, help="Version; default: the newest.")]


def copy(
    path: StorePath,
    target: Annotated[str, typer.Argument(metavar="COPY", help="Folder of the copy.", show_default=False)],
    version: _Version = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a store at COPY.")] = False,
    backend: Annotated[str, typer.Option(metavar="arrow|lance", help="Storage format of the copy.")] = "arrow",
    damaged: Annotated[
        str, typer.Option(metavar="refuse|skip", help="Refuse to copy a damaged store, or leave out what is damaged.")
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
    from qkv.plan.cost import counted

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
    target: Annotated[
        str, typer.Argument(metavar="FILE", help="File that ends in .parquet or .arrow.", show_default=False)
    ],
    version: _Version = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE if it exists.")] = False,
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
    from qkv.database.storage.create import visible_columns
    from qkv.plan.cost import counted, memory_text

    store.check_exportable(Path(target), overwrite)
    opened = store.open(path, version=version)
    with ProgressBar() as progress:
        store.export(opened, target, columns=visible_columns(opened), overwrite=overwrite, progress=progress)
    rows, size = counted(len(opened), "row", "rows"), memory_text(Path(target).stat().st_size)
    print_wrapped(f"{rows} of version {opened.version} of {opened.path.name} written to {target}, {size}")
