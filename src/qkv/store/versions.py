"""Descriptions of the versions of a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from qkv.errors import DataError

__all__ = ["Version", "missing_version", "older_version"]


@dataclass(frozen=True)
class Version:
    """The description of a version of a store, which is a committed state of its rows.

    Attributes:
        number: the number, 1 for the empty store that `create` makes, increased by 1 with each commit.
        operation: the operation that committed the version: `create`, `append`, `delete`, `compact` or `repair`.
        rows: number of rows.
        written: time of the commit, in UTC.
        lost: number of rows that were damaged and that a repair left out.
    """

    number: int
    operation: str
    rows: int
    written: datetime
    lost: int = 0


def missing_version(store: str, version: int, versions: Sequence[int]) -> DataError:
    """Return the error to raise if `store` does not have a version; it names the newest of the `versions`."""
    newest = (
        f"The newest versions are {', '.join(map(str, versions[-5:]))}" if versions else "The store has no versions"
    )
    return DataError(f"version must exist in {store!r}, got {version}. {newest}.")


def older_version(version: int, versions: Sequence[int]) -> str:
    """Return ", or open version …" with the newest of the `versions` before `version`, or "" if there is none."""
    older = [number for number in versions if number < version]
    return f", or open version {max(older)}" if older else ""
