"""Recognition of columns of identifiers, which are compared by equality rather than by distance or spelling.

An identifier is a whole number or a text whose neighbors mean nothing. A column holds identifiers if one of these
holds:

    whole numbers    the name is that of an identifier, such as id, order_id, userId, isbn or zip
    whole numbers    a number is 2^53 or larger in magnitude, where float64 does not represent all integers
    texts            more than half of them are UUIDs
    texts            more than nine of ten consist of digits, or more than half if the column is named like an
                     identifier; text files with numbers such as 02139 are read this way

Floats named like identifiers, more than half of which are whole numbers, become whole numbers when they are read: with
a missing cell, pandas makes floats of integers. The other cells are excluded and counted, see
`qkv.database.io.bad_cells`. Texts of another form remain keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qkv.core.typing import Bool
from qkv.database.io.identifier_names import has_identifier_name
from qkv.database.keys.columns import Column
from qkv.database.keys.exact_cells import is_uuid

__all__ = ["TextForms", "identifier_reason", "is_whole_number"]

_LARGEST = 2.0**53
# More than this share of the texts of a column that is not named like an identifier consists of digits.
_LEAST_SHARE = 0.9
_REASONS = {
    "uuid": "every text is a UUID",
    "mostly uuid": "more than half of its texts are UUIDs",
    "digits": "every text consists of digits",
    "mostly digits": "nearly every text consists of digits",
}


def is_whole_number(column: Column) -> bool:
    """Return whether a column has an Arrow type of integers, or of decimals without digits after the point."""
    import pyarrow as pa

    if column.kind != "number":
        return False
    return bool(pa.types.is_integer(column.type) or (pa.types.is_decimal(column.type) and column.type.scale <= 0))


@dataclass(frozen=True)
class TextForms:
    """How many of some texts are UUIDs, and how many consist of digits. Counts of several parts of a column are added.

    Attributes:
        texts, uuids, digits: the numbers of texts.
    """

    texts: int = 0
    uuids: int = 0
    digits: int = 0

    @staticmethod
    def count(column: Column, selected: Bool[np.ndarray, " rows"]) -> TextForms:
        """Return the counts of the selected texts of a column; 0 for other kinds."""
        if column.kind != "text":
            return TextForms()
        texts = column.cells[selected].tolist()
        return TextForms(len(texts), sum(map(is_uuid, texts)), sum(map(_is_digits, texts)))

    def __add__(self, other: TextForms) -> TextForms:
        return TextForms(self.texts + other.texts, self.uuids + other.uuids, self.digits + other.digits)

    def form(self, name: str) -> str:
        """Return the form of the texts of the column `name`, or "" if they have none.

        "uuid" and "digits" mean all texts, "mostly uuid" and "mostly digits" not all.
        """
        if 2 * self.uuids > self.texts:
            return "uuid" if self.uuids == self.texts else "mostly uuid"
        least = 0.5 if has_identifier_name(name) else _LEAST_SHARE
        if not self.digits or self.digits <= least * self.texts:
            return ""
        return "digits" if self.digits == self.texts else "mostly digits"


def identifier_reason(column: Column, largest: float, form: str) -> str:
    """Return why a column holds identifiers, as the end of a sentence; "" if it does not hold identifiers.

    Args:
        column: the column.
        largest: the largest magnitude of the selected numbers.
        form: the form of the selected texts, see `TextForms.form`.
    """
    if form:
        return _REASONS[form]
    if not is_whole_number(column):
        return ""
    if has_identifier_name(column.name):
        return "its whole numbers are named like identifiers"
    return "it holds whole numbers of 2^53 or more" if largest >= _LARGEST else ""


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()
