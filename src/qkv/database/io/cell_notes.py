"""Notes about the cells of columns, which are stored in the metadata of Arrow fields and get into the notes of answers.

A note about bad cells holds for the rows of one file. How a column is read, such as the format of its dates, is
stored with the column, also in stores. Several files, or a file and the store to which it is appended, have formats in
common.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import pyarrow as pa

from qkv.encoders.arrow_columns import (
    ASSUMED,
    BOOLEAN_SPELLING,
    DATE_FORMAT,
    NUMBER_FORMAT,
    READING,
    metadata_text,
    with_metadata,
)
from qkv.encoders.number_formats import NumberFormat
from qkv.errors import DataError

_NOTE = b"qkv cell note"
_LINES = b"qkv lines"


@dataclass(frozen=True)
class CellNote:
    """A count of cells that are not what the column holds, or another remark about a column of texts.

    Attributes:
        count: the number of bad cells; of cells that are numbers, if the column holds texts.
        noun: what the other cells are, such as "finite number" or "date"; "" if the column holds texts.
        example: one of the bad cells.
        total: the number of all cells of a column of texts.
        remark: the rest of a sentence about a column of texts; "" for a count.
    """

    count: int = 0
    noun: str = ""
    example: str = ""
    total: int = 0
    remark: str = ""

    def text(self, name: str) -> str:
        """Return the count as a sentence about the column `name`."""
        if self.remark:
            return f"{name} {self.remark}"
        if not self.noun:
            return f"{name} holds texts, although {self.count:,} of {self.total:,} cells are numbers"
        counted = f"1 cell is not a {self.noun}" if self.count == 1 else f"{self.count:,} cells are not {self.plural}"
        return f"{name}: {counted}, such as {self.example!r}, left out"

    @property
    def plural(self) -> str:
        """The noun in the plural."""
        return re.sub("(number|date|duration|time)", r"\1s", self.noun, count=1)

    def dump(self) -> str:
        """Return the count as JSON text, for the metadata of a column."""
        return json.dumps(asdict(self))


def with_cell_note(table: pa.Table, name: str, note: CellNote) -> pa.Table:
    """Return a table with a note in the metadata of the column `name`."""
    return with_metadata(table, name, _NOTE, note.dump())


def cell_note_of(table: pa.Table, name: str) -> CellNote | None:
    """Return the note about the cells of a column that were found when it was read."""
    dumped = metadata_text(table.schema, name, _NOTE)
    return CellNote(**json.loads(dumped)) if dumped else None


def with_line_note(table: pa.Table, note: str) -> pa.Table:
    """Return a table with a note about the lines of its file that are left out, unless it is ""."""
    metadata = {**(table.schema.metadata or {}), _LINES: note.encode()}
    return table.replace_schema_metadata(metadata) if note else table


def line_note(table: pa.Table) -> str:
    """Return the note about the lines of its file that are left out, or ""."""
    metadata: Mapping[bytes, bytes] = table.schema.metadata or {}
    return metadata.get(_LINES, b"").decode()


def join_cell_notes(table: pa.Table, parts: Sequence[pa.Table], names: Sequence[str]) -> pa.Table:
    """Return the concatenation of tables with the sums of their notes about the columns `names`, and their readings."""
    for name in dict.fromkeys(names):
        each = [part for part in parts if name in part.column_names]
        notes = [note for part in each if (note := cell_note_of(part, name))]
        if notes:
            bad = [note for note in notes if note.noun] or notes
            total = sum(note.total for note in bad)
            table = with_cell_note(table, name, replace(bad[0], count=sum(note.count for note in bad), total=total))
        for key in (DATE_FORMAT, NUMBER_FORMAT, READING):
            found = dict.fromkeys(text for part in each if (text := metadata_text(part.schema, name, key)))
            if found:
                joined = "; in other files it ".join(found) if key == READING else next(iter(found))
                table = with_metadata(table, name, key, joined)
    return with_line_note(table, "; in other files ".join(filter(None, dict.fromkeys(map(line_note, parts)))))


def collect_notes(tables: Iterable[pa.Table], names: Sequence[str], notes: list[str]) -> Iterator[pa.Table]:
    """Yield the tables, and append the notes about the columns `names` to a list, each once."""
    for table in tables:
        if (lines := line_note(table)) and lines not in notes:
            notes.append(lines)
        for name in names:
            note = cell_note_of(table, name) if name in table.column_names else None
            reading = metadata_text(table.schema, name, READING)
            for text in ([f"{name} {reading}"] if reading else []) + ([note.text(name)] if note else []):
                if text not in notes:
                    notes.append(text)
        yield table


def decided_formats(schema: pa.Schema) -> dict[str, str]:
    """Return the formats of dates and the decimal separators that cells of a file decided, by column."""
    formats = {}
    for name in schema.names:
        number = metadata_text(schema, name, NUMBER_FORMAT)
        form = NumberFormat.load(number).decimal if number else metadata_text(schema, name, DATE_FORMAT)
        if form and not metadata_text(schema, name, ASSUMED):
            formats[name] = form
    return formats


def undecided_columns(schema: pa.Schema) -> list[str]:
    """Return the columns of a file whose format no cell decided."""
    return [name for name in schema.names if metadata_text(schema, name, ASSUMED)]


def without_notes(schema: pa.Schema) -> pa.Schema:
    """Return a schema without notes about cells, which hold for the rows of one file only."""
    for index, each in enumerate(schema):
        metadata = {
            name: text for name, text in (each.metadata or {}).items() if name not in (_NOTE, ASSUMED, BOOLEAN_SPELLING)
        }
        schema = schema.set(index, each.with_metadata(metadata or None))
    return schema


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
    varied = {}
    for name in dict.fromkeys(names):
        types = [schema.field(name).type for schema in schemas if name in schema.names]
        spelled = {metadata_text(schema, name, BOOLEAN_SPELLING) for schema in schemas} - {""}
        if spelled and (len(spelled) > 1 or any(map(pa.types.is_string, types))):
            varied[name] = "text"
    return varied


def type_conflict(tables: Sequence[pa.Table], names: Sequence[str]) -> str:
    """Return which of the columns has types in several files that cannot be converted to one, or ""."""
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


def check_units(*schemas: pa.Schema) -> None:
    """Raise a `DataError` if the numbers of a column have different units or currencies in several tables.

    Numbers without a unit may have that of the others, but beside 5% it is not known whether 0.05 is a share.
    """
    for name in dict.fromkeys(name for schema in schemas for name in schema.names):
        numbers = [schema for schema in schemas if stated_types(schema).get(name) == "number"]
        formats = [metadata_text(schema, name, NUMBER_FORMAT) for schema in numbers]
        found = [NumberFormat.load(text) if text else NumberFormat() for text in formats]
        percent = any(form.kind == "percent" for form in found)
        units = [each for each in dict.fromkeys(form.affix or "no unit" * percent for form in found) if each]
        if len(units) > 1:
            raise DataError(f"numbers of {name!r} must have one unit, got {', '.join(units)}. Convert them to one.")


def stated_types(schema: pa.Schema) -> Mapping[str, str]:
    """Return "boolean", "text" or "number", what a store states that a column holds, by name."""
    kinds = {pa.types.is_boolean: "boolean", pa.types.is_string: "text"}
    kinds |= {pa.types.is_integer: "number", pa.types.is_floating: "number", pa.types.is_decimal: "number"}
    return {field.name: kind for test, kind in kinds.items() for field in schema if test(field.type)}
