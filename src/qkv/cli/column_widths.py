"""Widths of the columns of evidence tables, which are shortened on narrow terminals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ColumnWidth", "fit_widths"]

_LEAST = 4
"""Minimum number of characters of a shortened text: three characters and an ellipsis."""


@dataclass(frozen=True)
class ColumnWidth:
    """The widths that a column needs, in characters.

    Attributes:
        title: the width of the title.
        cells: the width of the widest cell.
        rigid: whether the cells must not be shortened, as those of numbers.
    """

    title: int
    cells: int
    rigid: bool = False

    @property
    def full(self) -> int:
        """The width with which neither title nor cells are shortened."""
        return max(self.title, self.cells)


def fit_widths(columns: Sequence[ColumnWidth], total: int, last: int) -> list[int]:
    """Return the width of each column, so that their sum is at most `total`, if the rigid columns leave room.

    Titles are shortened first, then the widest texts; those of the column `last` are shortened after all others.

    Example:
        >>> fit_widths([ColumnWidth(4, 30), ColumnWidth(20, 6, rigid=True)], 26, last=1)
        [20, 6]
    """
    widths = [column.full for column in columns]
    title_floors = [column.cells for column in columns]
    text_floors = [column.cells if column.rigid else min(column.cells, _LEAST) for column in columns]
    others = [index for index in range(len(columns)) if index != last]
    for floors, indices in (
        (title_floors, others),
        (title_floors, [last]),
        (text_floors, others),
        (text_floors, [last]),
    ):
        while sum(widths) > total:
            shortened = [index for index in indices if widths[index] > max(floors[index], 1)]
            if not shortened:
                break
            widths[max(shortened, key=widths.__getitem__)] -= 1
    return widths
