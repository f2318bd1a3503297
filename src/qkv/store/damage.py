"""Damaged files of a store: their descriptions, the result of a verification, and sentences about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from qkv.core.formatting import counted

_MOST_PASSES = 20
_SHOWN = 3


@dataclass(frozen=True)
class Damage:
    """The description of a damaged file of a store.

    Attributes:
        file: the path of the file within the store.
        problem: the kind of damage, such as `missing`, `cut off at 10 of 20 bytes`, `the checksum does not match`.
        rows: number of rows that cannot be read because of the damage, in the last version that needs the file.
        versions: the versions that cannot be read completely, if they are known.
        kind: what the file holds.
    """

    file: str
    problem: str
    rows: int
    versions: tuple[int, ...] = ()
    kind: Literal["rows", "deletions", "manifest", "attachment", "cache", "checksums"] = "rows"

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}" + (f" ({self.rows:,} rows)" if self.rows else "")


def problem_of(error: Exception) -> str:
    """Return what is wrong with a file according to an error, without the remedy."""
    return str(error).split("is damaged: ")[-1].split(" Restore ")[0].rstrip(".")


@dataclass(frozen=True)
class Verification:
    """The result of verifying a store.

    Attributes:
        versions: the numbers of the versions that were verified, in ascending order.
        files: number of files that were verified.
        size: number of bytes that were verified.
        damages: a description of each damaged file.
        rows: number of rows of the newest version.
        lost: number of rows of the newest version that cannot be read.
        unchecked: number of files that have no checksum, which were decoded instead.
    """

    versions: tuple[int, ...]
    files: int
    size: int
    damages: tuple[Damage, ...]
    rows: int
    lost: int
    unchecked: int = 0


def unread_text(fragments: Sequence[str], total: int, rows: int) -> str:
    """Return which fragments of how many could not be read, and how many rows are left out because of them.

    Example:
        >>> unread_text(["rows/a.arrow: missing"], 3, 1000)
        '1 of 3 fragments could not be read, 1,000 rows left out: rows/a.arrow: missing'
    """
    more = f"; and {len(fragments) - _SHOWN} more" if len(fragments) > _SHOWN else ""
    return (
        f"{len(fragments)} of {counted(total, 'fragment', 'fragments')} could not be read, "
        f"{counted(rows, 'row', 'rows')} left out: {'; '.join(fragments[:_SHOWN])}{more}"
    )


def verify_repeatedly(verify_once: Callable[[], Verification]) -> Verification:
    """Verify a store until nothing is damaged or the same damages are found twice, and return the last result.

    While another process appends or compacts, a file may be removed between the reading of its manifest and its own.
    """
    before = None
    for _ in range(_MOST_PASSES):
        found = verify_once()
        state = {(damage.file, damage.problem) for damage in found.damages}
        if not state or state == before:
            break
        before = state
    return found
