"""Formats of columns that several files, or a file and the store to which it is appended, have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from qkv.database.io.cell_notes import decided_formats, undecided_columns
from qkv.encoders.arrow_columns import BOOLEAN_SPELLING, DATE_FORMAT, metadata_text

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["assumed_formats", "stated_types", "type_conflict"]


def assumed_formats(schemas: Sequence[pa.Schema], required: tuple[str, ...]) -> dict[str, str]:
    """Return the formats of columns that some of several files decide and another does not, by name."""
    decided: dict[str, str] = {}
    for schema in schemas:
        decided = decided_formats(schema) | decided
    undecided = dict.fromkeys(name for schema in schemas for name in undecided_columns(schema))
    found = {name: decided[name] for name in undecided if name in decided}
    return {**found, **_varied_booleans(schemas, required)}


def _varied_booleans(schemas: Sequence[pa.Schema], names: Sequence[str]) -> dict[str, str]:
    """Return "text" for each column of booleans that several files spell differently, by name."""
    import pyarrow as pa

    varied = {}
    for name in dict.fromkeys(names):
        types = [schema.field(name).type for schema in schemas if name in schema.names]
        spelled = {metadata_text(schema, name, BOOLEAN_SPELLING) for schema in schemas} - {""}
        if spelled and (len(spelled) > 1 or any(map(pa.types.is_string, types))):
            varied[name] = "text"
    return varied


def type_conflict(tables: Sequence[pa.Table], names: Sequence[str]) -> str:
    """Return which of the columns has types in several files that cannot be converted to one, or ""."""
    import pyarrow as pa

    for name in dict.fromkeys((*names, *tables[0].column_names)):
        schemas = [table.schema for table in tables if name in table.column_names]
        types = list(
            dict.fromkeys((schema.field(name).type, metadata_text(schema, name, DATE_FORMAT)) for schema in schemas)
        )
        try:
            pa.unify_schemas([pa.schema([(name, type_)]) for type_, _ in types], promote_options="permissive")
        except pa.ArrowException:
            forms = [f"{type_}{f' (in the format {form})' if form else ''}" for type_, form in types]
            return f"{' and '.join(forms)} for {name!r}"
    return ""


def stated_types(schema: pa.Schema) -> Mapping[str, str]:
    """Return "boolean", "text" or "number", what a store states that a column holds, by name."""
    import pyarrow as pa

    kinds = {pa.types.is_boolean: "boolean", pa.types.is_string: "text"}
    kinds |= {pa.types.is_integer: "number", pa.types.is_floating: "number", pa.types.is_decimal: "number"}
    return {field.name: kind for test, kind in kinds.items() for field in schema if test(field.type)}
