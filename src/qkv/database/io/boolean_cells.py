"""The reading of columns of texts such as true and false as booleans.

A column is read as booleans if its cells are spelled in one of three ways: true and false, True and False, TRUE and
FALSE. Each key is then printed as a text that is read as the same key. Columns with other or several spellings, such
as yes, t or true beside TRUE, stay texts, because their cells are different texts, and are printed as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qkv.database.io.text_readings import TextReading, quoted_name
from qkv.encoders.arrow_columns import BOOLEAN_SPELLING

if TYPE_CHECKING:
    import duckdb

__all__ = ["BooleanCells", "boolean_reading", "has_one_spelling"]

_SPELLINGS = (frozenset({"true", "false"}), frozenset({"True", "False"}), frozenset({"TRUE", "FALSE"}))


@dataclass(frozen=True)
class BooleanCells(TextReading):
    """The reading of a column of texts as booleans.

    Attributes:
        spelling: how true is spelled, such as "TRUE"; "" if it is unknown.
    """

    spelling: str = ""

    def sql(self, cell: str) -> str:
        """Return the SQL expression of the converted cell, which is null for cells that are no booleans."""
        return f"try_cast(trim({cell}) as boolean)"

    @property
    def metadata(self) -> dict[bytes, str]:
        """The texts in the metadata of the converted column."""
        return {BOOLEAN_SPELLING: self.spelling} if self.spelling else {}


def has_one_spelling(texts: Sequence[str]) -> bool:
    """Return whether distinct texts are booleans that are spelled in one way.

    Example:
        >>> has_one_spelling(["TRUE", "FALSE"]), has_one_spelling(["TRUE", "true"]), has_one_spelling(["yes", "no"])
        (True, False, False)
    """
    trimmed = {text.strip() for text in texts}
    return len(trimmed) == len(texts) > 0 and any(trimmed <= spelling for spelling in _SPELLINGS)


def boolean_reading(relation: duckdb.DuckDBPyRelation, name: str, assumed: str = "") -> BooleanCells | None:
    """Return how a column of texts is read as booleans, or None if it has several spellings or other texts.

    Args:
        relation: all rows of the file.
        name: the column.
        assumed: "boolean" reads any spelling, because a store states that the column holds booleans; "text" none.
    """
    cells = relation.project(f"{quoted_name(name)} as x").filter("trim(x) <> ''")
    first = cells.limit(1).fetchall()
    if assumed == "text" or not first or first[0][0].strip().lower() not in ("true", "false", "t", "f", "yes", "no"):
        return None
    if assumed == "boolean":
        every = cells.aggregate("bool_and(try_cast(trim(x) as boolean) is not null)").fetchall()[0][0]
        return BooleanCells("boolean", "boolean") if every else None
    distinct = [text for (text,) in cells.distinct().limit(3).fetchall()]
    if not has_one_spelling(distinct):
        return None
    spelling = next(each for each in _SPELLINGS if distinct[0].strip() in each)
    return BooleanCells("boolean", "boolean", spelling=next(text for text in spelling if text.lower() == "true"))
