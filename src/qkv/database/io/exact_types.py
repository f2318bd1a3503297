"""Types in which a text file is read so that no two of its keys become one.

DuckDB reads numbers with a fraction, with an exponent or beyond its integers as float64, and timestamps in
microseconds. The key and value columns that it detects as such are therefore read differently:

    numbers       as texts, which become float64 if it represents each of them, whole numbers of up to 38 digits or
                  decimals of up to 38 digits; longer whole numbers remain texts, and longer decimals become
                  float64 if they remain different
    timestamps    in nanoseconds, then in microseconds if no digit is lost
"""

from __future__ import annotations

import decimal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from qkv.core.printable import quoted_name
from qkv.encoders.exact_cells import MOST_DIGITS, is_written_float

if TYPE_CHECKING:
    import duckdb


_NANOSECONDS = {"TIMESTAMP_NS": "TIMESTAMP", "TIMESTAMPTZ_NS": "TIMESTAMPTZ"}
# A decimal of so few digits is the shortest text of a float64.
_FLOAT_DIGITS = 15
# Shorter texts of whole numbers are 64-bit integers.
_LONG = 19
_AT_ONCE = 10_000


def inexact_columns(types: Mapping[str, str], names: Sequence[str], delimited: bool) -> list[str]:
    """Return the columns that are read as texts, because the type that DuckDB detected may lose digits.

    Args:
        types: the detected types by column.
        names: the key and value columns.
        delimited: whether the file is delimited; timestamps of such files are read as texts in any case.
    """
    times = ("DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE")
    inexact = ("DOUBLE", "BIGNUM", *(() if delimited else times))
    return [name for name in dict.fromkeys(names) if types.get(name) in inexact]


def exact_number_type(column: duckdb.DuckDBPyRelation, text: str, mixed: bool) -> tuple[str, int]:
    """Return the DuckDB type that represents each number in a column of texts, and the number of infinite cells.

    Args:
        column: a relation with the texts `x`.
        text: the SQL expression of the text with a decimal point.
        mixed: whether cells that are no numbers are allowed.

    Returns:
        "bigint", "hugeint", "double" or a decimal type; "varchar" for whole numbers of more than 38 digits, for
        numbers that have more than 38 digits together and of which two would be one float64, and if some cells are no
        numbers and `mixed` is False.
    """
    cells = column.project(f"x as cell, {text} as x, try_cast({text} as double) as y")
    # A cast accepts "1_203", which is a number with a separator of thousands.
    number = "isfinite(y) and not contains(x, '_')"
    other = "trim(cell) <> '' and (y is null or contains(cell, '_'))"
    whole = "not (contains(x, '.') or contains(x, 'e') or contains(x, 'E'))"
    ((most, every_whole, others, infinite),) = cells.aggregate(
        f"max(length(x)) filter ({number}), bool_and({whole}) filter ({number}), "
        f"count(*) filter ({other}), count(*) filter (isinf(y))"
    ).fetchall()
    if others and not mixed:
        return "varchar", infinite
    return _exact_type(cells.filter(number), most, every_whole), infinite


def _exact_type(numbers: duckdb.DuckDBPyRelation, most: int | None, every_whole: bool | None) -> str:
    """Return the type of the numbers `y`, whose longest text `x` has `most` characters."""
    if every_whole:
        beyond = (most or 0) >= _LONG and numbers.aggregate("bool_or(try_cast(x as bigint) is null)").fetchall()[0][0]
        if not beyond:
            return "bigint"
        digits = numbers.aggregate("max(length(regexp_extract(x, '^[+-]?0*([0-9]*)$', 1)))").fetchall()[0][0]
        return "hugeint" if digits <= MOST_DIGITS else "varchar"
    inexact = (most or 0) > _FLOAT_DIGITS and _find_inexact(numbers)
    if not inexact:
        return "double"
    plain = numbers.filter("not contains(lower(x), 'e')")
    fraction = "length(regexp_extract(x, '[.]([0-9]*)', 1))"
    leading = "length(regexp_extract(x, '^[+-]?0*([0-9]*)', 1))"
    ((scale, before),) = plain.aggregate(f"coalesce(max({fraction}), 0), coalesce(max({leading}), 0)").fetchall()
    with_exponents = numbers.filter("contains(lower(x), 'e')").project("x").distinct().limit(_AT_ONCE + 1).fetchall()
    for (cell,) in with_exponents:
        number = decimal.Decimal(cell)
        scale, before = max(scale, -int(number.as_tuple().exponent)), max(before, number.adjusted() + 1)
    if len(with_exponents) > _AT_ONCE or scale + before > MOST_DIGITS:
        short = numbers.filter(f"length(regexp_replace(x, '[^0-9]', '', 'g')) <= {MOST_DIGITS}")
        return "varchar" if inexact == "merged" or _find_inexact(short) else "double"
    return f"decimal({MOST_DIGITS}, {scale})"


def _find_inexact(numbers: duckdb.DuckDBPyRelation) -> Literal["", "merged", "rounded"]:
    """Return "merged" if two numbers of a column `x` are one float64, "rounded" if a number is not a float64 itself."""
    long = f"length(x) > {_FLOAT_DIGITS} and x <> try_cast(x as double)::varchar"
    chunks = numbers.filter(long).to_arrow_table().column(0).chunks
    other = rounded = False
    for cell in (cell for chunk in chunks for cell in chunk.to_pylist()):
        number = decimal.Decimal(cell)
        if number != decimal.Decimal(repr(float(cell))):
            other, rounded = True, not is_written_float(number)
            if rounded:
                break
    if not other:
        return ""
    groups = numbers.aggregate("list(distinct x) as texts", "y")
    merged = (texts for (texts,) in groups.filter("len(texts) > 1").project("texts").fetchall())
    if any(len({decimal.Decimal(text) for text in texts}) > 1 for texts in merged):
        return "merged"
    return "rounded" if rounded else ""


def with_microsecond_columns(relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """Return a relation whose timestamps in nanoseconds are in microseconds where no digit of the column is lost."""
    types = dict(zip(relation.columns, map(str, relation.types), strict=True))
    names = [name for name, type_ in types.items() if type_ in _NANOSECONDS]
    if not names:
        return relation
    tests = ", ".join(f"coalesce(bool_or(epoch_ns({quoted_name(name)}) % 1000 <> 0), false)" for name in names)
    (lossy,) = relation.aggregate(tests).fetchall()
    casts = [
        f"{quoted_name(name)}::{_NANOSECONDS[types[name]]} as {quoted_name(name)}"
        for name, lost in zip(names, lossy, strict=True)
        if not lost
    ]
    return relation.project(f"* replace ({', '.join(casts)})") if casts else relation
