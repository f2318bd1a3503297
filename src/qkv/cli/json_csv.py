"""Writers that print the answers of `qkv ask` as JSON lines or CSV, each answer as soon as it is computed.

Dates and times are written in ISO 8601, and their standard error and spread in days. NaN and infinity, which JSON
does not support, are written as null. Decimals are numbers if a float64 represents all their digits, otherwise
texts.
"""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qkv.cli.answer_writer import AnswerWriter
from qkv.core.printable import escaped_json, printable, quoted_formula
from qkv.core.untrusted_json import to_json

if TYPE_CHECKING:
    from qkv.database.answer import Answer

__all__ = ["CsvWriter", "JsonWriter", "to_csv"]

_STATISTICS = ("standard_error", "lower", "upper", "spread", "effective_rows")


class JsonWriter(AnswerWriter):
    """Writer that prints one JSON object per query.

    The object contains the query, the value, its standard error, the 90 % prediction interval, the spread of the
    values, the effective number of rows, whether a match was found, the keys that match equally well if there are
    several, notes on how the cells of columns were read, and the evidence rows with their weights.
    """

    def write_one(self, one: Answer) -> None:
        """Print the answer to one query as a JSON object on one line."""
        line: dict[str, object] = {"query": one.query, "value": one.value, "standard_error": one.standard_error}
        line |= {"prediction_interval": one.prediction_interval, "spread": one.spread}
        line |= {"effective_rows": one.effective_rows, "found": one.found}
        if one.fit_note:
            line["fit_note"] = one.fit_note
        if self.gradient:
            line |= {"gradient": one.gradient, "gradient_standard_error": one.gradient_error}
        if one.probabilities:
            line["probabilities"] = one.probabilities
        if not one.found:
            line["reason"] = one.reason
        if one.candidates:
            line["candidates"] = one.candidates
        if one.missing_rows:
            line["missing_rows"] = one.missing_rows
        if one.remarks:
            line["remarks"] = one.remarks
        line["calls"] = [call.record() for call in one.calls]
        if one.column_notes:
            line["notes"] = one.column_notes
        if self.rows:
            line["rows"] = [
                {"weight": row.weight}
                | ({one.measure: getattr(row, one.measure)} if one.measure else {})
                | {"record": row.record}
                for row in one.rows
            ]
        print(escaped_json(json.dumps(to_json(line), ensure_ascii=False, allow_nan=False)))


@dataclass
class CsvWriter(AnswerWriter):
    """Writer that prints a CSV header, then one row per query."""

    def __post_init__(self) -> None:
        self._writer = csv.writer(sys.stdout, lineterminator="\n")
        self._began = False

    def write_one(self, one: Answer) -> None:
        """Print the answer to one query as one row of CSV, after the header if it is the first."""
        self._begin(one.votes)
        probability = [one.probabilities.get(one.value)] if one.votes else []
        lower, upper = one.prediction_interval or (None, None)
        statistics = [one.standard_error, lower, upper, one.spread, one.effective_rows]
        cells = [one.query, one.value, *probability, *statistics, one.found, one.reason]
        plain = [to_csv(cell) for cell in cells]
        self._writer.writerow([quoted_formula(cell) for cell in plain] if self.quote_formulas else plain)

    def finish(self) -> None:
        """Print the header if there was no answer, and to stderr how columns are read, and the plan if requested."""
        self._begin(self.database.votes)
        for note in self.column_notes:
            print(f"qkv: {printable(note)}", file=sys.stderr)
        super().finish()

    def _begin(self, votes: bool) -> None:
        if not self._began:
            self._writer.writerow(["query", "value", *["probability"] * votes, *_STATISTICS, "found", "reason"])
        self._began = True


def to_csv(cell: object) -> object:
    """Convert a value to a cell of `csv.writer`; lists and dicts are written as JSON."""
    value = to_json(cell)
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
