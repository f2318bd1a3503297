"""Columns that are named like identifiers, such as id, order_id, userId, isbn or zip, and their whole numbers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.typing import Float
from qkv.database.io.arrow_columns import null_mask, stored_numbers

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

__all__ = ["as_integers", "has_identifier_name", "is_mostly_whole", "whole_sql"]

_WORDS = frozenset({"id", "ids", "uid", "uuid", "guid", "isbn", "issn", "ean", "upc", "gtin", "ssn", "sku", "plz"})
_WORDS |= {"barcode", "zip", "zipcode", "postcode"}
_MOST = 2.0**63


def has_identifier_name(name: str) -> bool:
    """Return whether the last or the first word of a column's name is that of an identifier.

    Example:
        >>> [name for name in ("id", "order_id", "userID", "zip code", "paid", "member") if has_identifier_name(name)]
        ['id', 'order_id', 'userID', 'zip code']
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    split = [word.lower() for word in re.split(r"[^A-Za-z0-9]+", words) if word]
    return bool(split) and (split[-1] in _WORDS or split[0] in _WORDS)


def as_integers(column: pa.ChunkedArray) -> tuple[pa.Array | None, Float[np.ndarray, " other"]]:
    """Return a column of floats as integers, and the cells that are no whole numbers, which are null.

    Return None in place of the integers if half of the finite cells are no whole numbers of 64 bits.

    Example:
        >>> import pyarrow as pa
        >>> integers, other = as_integers(pa.chunked_array([[1001.0, None, 1002.0, 12.5]]))
        >>> integers.to_pylist(), other.tolist()
        ([1001, None, 1002, None], [12.5])
    """
    import pyarrow as pa

    cells = np.concatenate([np.zeros(0), *(stored_numbers(chunk).astype(np.float64) for chunk in column.chunks)])
    cells[np.concatenate([np.zeros(0, bool), *map(null_mask, column.chunks)])] = np.nan
    finite = np.isfinite(cells)
    whole = finite & (np.floor(np.where(finite, cells, 0.5)) == cells) & (np.abs(cells) < _MOST)
    other = cells[~whole & ~np.isnan(cells)]
    if 2 * whole.sum() <= finite.sum():
        return None, other
    return pa.array(np.where(whole, cells, 0.0).astype(np.int64), mask=~whole), other


def whole_sql(number: str) -> str:
    """Return the SQL test whether a float is a whole number of 64 bits."""
    return f"(isfinite({number}) and {number} = floor({number}) and abs({number}) < {_MOST:.0f})"


def is_mostly_whole(relation: duckdb.DuckDBPyRelation, name: str, number: str, entirely: bool = False) -> bool:
    """Return whether a column is named like an identifier, and more than half of its finite numbers are whole.

    Args:
        relation: the rows.
        name: the column.
        number: the SQL expression of the number in a cell `x`.
        entirely: whether all numbers must be finite and whole.
    """
    if not has_identifier_name(name):
        return False
    quoted = '"' + name.replace('"', '""') + '"'
    numbers = relation.project(f"{quoted} as x").project(f"{number} as x")
    counts = f"count(*) filter ({whole_sql('x')}), count(*) filter (isfinite(x)), count(*) filter (isinf(x))"
    ((whole, finite, infinite),) = numbers.aggregate(counts).fetchall()
    return bool(whole == finite > 0 == infinite if entirely else 2 * whole > finite)
