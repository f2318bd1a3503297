"""Columns of JSON files with values of several types, such as the number 1 and the text "1", as columns of texts.

A text stays as it is, and a number, a boolean, a list or an object becomes its JSON text. The text "1" would then be
equal to the number 1. A text that is itself JSON is therefore written as JSON text, with its quotation marks. If most
cells are numbers, such a text is not one of them, but a bad cell like every other text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from qkv.database.io.bad_cells import Conversions
from qkv.database.io.text_readings import TextReading, quoted_name

if TYPE_CHECKING:
    import duckdb

__all__ = ["json_columns", "with_counted_texts", "with_json_texts"]


def json_columns(rows: duckdb.DuckDBPyRelation) -> list[str]:
    """Return the columns of a JSON file with values of several types, such as numbers and texts."""
    return [name for name, type_ in zip(rows.columns, rows.types, strict=True) if str(type_) == "JSON"]


def with_json_texts(
    rows: duckdb.DuckDBPyRelation, names: Sequence[str], distinct: Sequence[str]
) -> duckdb.DuckDBPyRelation:
    """Return a relation in which columns of JSON values are texts.

    Args:
        rows: the relation.
        names: the columns of JSON values.
        distinct: the columns in which different values are different texts. In others, all texts are as they are.
    """
    texts = [f"{_sql(quoted_name(name), name in distinct)} as {quoted_name(name)}" for name in names]
    return rows.project(f"* replace ({', '.join(texts)})") if texts else rows


def with_counted_texts(rows: duckdb.DuckDBPyRelation, names: Sequence[str], found: Conversions) -> Conversions:
    """Return conversions whose readings of numbers say how many of the numbers are written as texts in a JSON file.

    Args:
        rows: the relation of JSON values.
        names: the columns of values of several types in which such a text is read as the number.
        found: how the columns are converted.
    """
    readings = dict(found.readings)
    for name in names:
        reading = readings.get(name)
        if not isinstance(reading, TextReading) or "number" not in reading.noun:
            continue
        cell = quoted_name(name)
        text = f"json_extract_string({cell}, '$')"
        written = f"filter (json_type({cell}) = 'VARCHAR' and ({reading.sql(text)}) is not null)"
        ((count, example),) = rows.aggregate(f"count(*) {written}, min({text}) {written}").fetchall()
        if count:
            counted = "1 of which is a text" if count == 1 else f"{count:,} of which are texts"
            said = f"is read as numbers, {counted}, such as {example!r}"
            readings[name] = replace(reading, said=f"{reading.said}; it {said}" if reading.said else said)
    return replace(found, readings=readings)


def _sql(cell: str, distinct: bool) -> str:
    text = f"json_extract_string({cell}, '$')"
    if not distinct:
        return text
    # DuckDB takes nan and inf for JSON, which are marks of missing cells.
    alike = f"json_valid({text}) and not regexp_matches(lower({text}), '^[-+]?(nan|inf)')"
    return f"case when json_type({cell}) = 'VARCHAR' and {alike} then {cell}::varchar else {text} end"
