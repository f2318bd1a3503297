"""Recognition of columns of identifiers, which are compared by equality rather than by distance or spelling.

An identifier is a whole number or a text whose neighbors mean nothing. A column holds identifiers if one of these
holds:

    whole numbers    the name is that of an identifier, such as id, order_id, userId, isbn or zip
    whole numbers    a number is 2^53 or larger in magnitude, where float64 does not represent all integers
    texts            more than half of them are UUIDs
    texts            more than nine of ten consist of digits, or more than half if the column is named like an
                     identifier; text files with numbers such as 02139 are read this way
    texts            more than nine of ten are codes, such as u1002, AB-101 and 2024-Q1: they have a digit, no sign
                     of a currency, and no space or more digits than letters
    texts            more than half are codes or one word, and the last word of the column's name is that of an
                     identifier of texts, such as user_id, sku, country code, ticker or invoice number

Floats named like identifiers, more than half of which are whole numbers, become whole numbers when they are read: with
a missing cell, pandas makes floats of integers. The other cells are excluded and counted, see
`qkv.database.io.bad_cells`. Texts of another form remain keys.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from unicodedata import category

import numpy as np

from qkv.core.typing import Bool
from qkv.database.io.identifier_names import has_identifier_name, has_text_identifier_name
from qkv.encoders.columns import Column
from qkv.encoders.exact_cells import is_uuid

__all__ = ["TextForms", "identifier_reason", "is_code", "is_whole_number", "key_note"]

_DIGIT = re.compile("[0-9]")
_LARGEST = 2.0**53
# More than this share of the texts of a column that is not named like an identifier consists of digits.
_LEAST_SHARE = 0.9
_REASONS = {
    "uuid": "every text is a UUID",
    "mostly uuid": "more than half of its texts are UUIDs",
    "digits": "every text consists of digits",
    "mostly digits": "nearly every text consists of digits",
    "codes": "every text is a code of letters and digits",
    "mostly codes": "nearly every text is a code of letters and digits",
    "named": "it is named like an identifier",
}


def is_whole_number(column: Column) -> bool:
    """Return whether a column has an Arrow type of integers, or of decimals without digits after the point."""
    import pyarrow as pa

    if column.kind != "number":
        return False
    return bool(pa.types.is_integer(column.type) or (pa.types.is_decimal(column.type) and column.type.scale <= 0))


@dataclass(frozen=True)
class TextForms:
    """How many of some texts have which form. Counts of several parts of a column are added.

    Attributes:
        texts: the number of texts.
        uuids: the number of UUIDs.
        digits: the number of texts that consist of digits.
        codes: the number of codes, with those of digits.
        single: the number of texts that are codes or one word.
    """

    texts: int = 0
    uuids: int = 0
    digits: int = 0
    codes: int = 0
    single: int = 0

    @staticmethod
    def count(column: Column, selected: Bool[np.ndarray, " rows"]) -> TextForms:
        """Return the counts of the selected texts of a column; 0 for other kinds."""
        if column.kind != "text":
            return TextForms()
        texts, numbers = column.distinct
        rows = np.bincount(numbers[selected], minlength=len(texts))
        uuids, digits, codes = (np.array(list(map(form, texts)), bool) for form in (is_uuid, _is_digits, is_code))
        single = codes | np.array([" " not in text for text in texts], bool)
        return TextForms(int(rows.sum()), *(int(rows[form].sum()) for form in (uuids, digits, codes, single)))

    def __add__(self, other: TextForms) -> TextForms:
        own, more = (dataclasses.astuple(each) for each in (self, other))
        return TextForms(*(one + two for one, two in zip(own, more, strict=True)))

    def form(self, name: str) -> str:
        """Return the form of the texts of the column `name`, or "" if they have none.

        "uuid", "digits" and "codes" mean all texts, "mostly uuid", "mostly digits" and "mostly codes" not all; "named"
        means that the column is named like an identifier.
        """
        if 2 * self.uuids > self.texts:
            return "uuid" if self.uuids == self.texts else "mostly uuid"
        least = 0.5 if has_identifier_name(name) else _LEAST_SHARE
        if self.digits > least * self.texts:
            return "digits" if self.digits == self.texts else "mostly digits"
        if self.codes > _LEAST_SHARE * self.texts:
            return "codes" if self.codes == self.texts else "mostly codes"
        return "named" if has_text_identifier_name(name) and 2 * self.single > self.texts else ""


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


def is_code(text: str) -> bool:
    """Return whether a text is a code: it has a digit, no sign of a currency, and no space or more digits than letters.

    Example:
        >>> [text for text in ("u1002", "2024-Q1", "+1 555 0100", "Rocky 2", "denver", "$5") if is_code(text)]
        ['u1002', '2024-Q1', '+1 555 0100']
    """
    if _DIGIT.search(text) is None or any(category(character) == "Sc" for character in text):
        return False
    return " " not in text or sum(map(str.isdigit, text)) > sum(map(str.isalpha, text))


def key_note(name: str, reason: str) -> str:
    """Return a sentence which says that a key is read as an identifier, and how its numbers are compared instead."""
    remedy = "; a score such as gaussian compares its numbers" if "whole numbers" in reason else ""
    return f"{name} is read as an identifier, because {reason}{remedy}"


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()
