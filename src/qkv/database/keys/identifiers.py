"""Recognition of columns of identifiers, which are compared by equality rather than by distance or spelling.

An identifier is a whole number or a text whose neighbors mean nothing. A column holds identifiers if one of these
holds:

    whole numbers    the name is that of an identifier, such as id, order_id, userId, isbn or zip
    whole numbers    a number is 2^53 or larger in magnitude, where float64 does not represent all integers
    texts            every text is a UUID
    texts            every text consists of digits; text files with numbers such as 02139 are read this way
"""

from __future__ import annotations

import re

import numpy as np

from qkv.core.typing import Bool
from qkv.database.keys.columns import Column
from qkv.database.keys.exact_cells import is_uuid

__all__ = ["has_identifier_name", "identifier_reason", "is_whole_number", "same_form"]

_WORDS = frozenset({"id", "ids", "uid", "uuid", "guid", "isbn", "issn", "ean", "upc", "gtin", "ssn", "sku", "plz"})
_WORDS |= {"barcode", "zip", "zipcode", "postcode"}
_LARGEST = 2.0**53


def is_whole_number(column: Column) -> bool:
    """Return whether a column has an Arrow type of integers, or of decimals without digits after the point."""
    import pyarrow as pa

    if column.kind != "number":
        return False
    return bool(pa.types.is_integer(column.type) or (pa.types.is_decimal(column.type) and column.type.scale <= 0))


def has_identifier_name(name: str) -> bool:
    """Return whether the last or the first word of a column's name is that of an identifier.

    Example:
        >>> [name for name in ("id", "order_id", "userID", "zip code", "paid", "member") if has_identifier_name(name)]
        ['id', 'order_id', 'userID', 'zip code']
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    split = [word.lower() for word in re.split(r"[^A-Za-z0-9]+", words) if word]
    return bool(split) and (split[-1] in _WORDS or split[0] in _WORDS)


def same_form(column: Column, selected: Bool[np.ndarray, " rows"]) -> str:
    """Return "uuid" or "digits" if all selected texts of a column have this form, otherwise ""."""
    if column.kind != "text":
        return ""
    texts = column.cells[selected]
    if not len(texts):
        return ""
    return "uuid" if all(map(is_uuid, texts)) else "digits" if all(map(_is_digits, texts)) else ""


def identifier_reason(column: Column, largest: float, form: str) -> str:
    """Return why a column holds identifiers, as the end of a sentence; "" if it does not hold identifiers.

    Args:
        column: the column.
        largest: the largest magnitude of the selected numbers.
        form: the result of `same_form` for the selected texts.
    """
    if form:
        return "every text is a UUID" if form == "uuid" else "every text consists of digits"
    if not is_whole_number(column):
        return ""
    if has_identifier_name(column.name):
        return "its whole numbers are named like identifiers"
    return "it holds whole numbers of 2^53 or more" if largest >= _LARGEST else ""


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()
