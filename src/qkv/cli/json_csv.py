"""Answers for programs: JSON lines and CSV, written as they are computed.

Moments are ISO 8601, their spread is in days; what JSON cannot hold (NaN, infinity) is null.
"""

import csv
import datetime as dt
import decimal
import json
import math
import sys
from typing import Any

import numpy as np

from qkv.database.answer import Answer
from qkv.database.database import Database

__all__ = ["Csv", "Json"]


class Json:
    """One object per line: query, value, spread, support, found, and the rows with their weights."""

    def __init__(self, database: Database, rows_shown: int, explain: bool) -> None:
        self._rows_shown = rows_shown
        self._explain = explain
        self._plan: Any = None

    def write(self, answer: Answer) -> None:
        """Print the answers of a chunk."""
        self._plan = self._plan or answer.plan
        for one in answer:
            line: dict[str, Any] = {"query": one.query, "value": one.value, "spread": one.spread}
            line |= {"support": one.support, "found": one.found}
            if one.probabilities:
                line["probabilities"] = {_key(label): share for label, share in one.probabilities.items()}
            if not one.found:
                line["reason"] = one.reason
            if self._rows_shown:
                line["rows"] = [
                    {"weight": row.weight}
                    | ({one.measure: getattr(row, one.measure)} if one.measure else {})
                    | {"record": row.record}
                    for row in one.rows
                ]
            print(json.dumps(_plain(line), ensure_ascii=False, allow_nan=False))

    def finish(self) -> None:
        """Print the plan apart, where lines of JSON are expected on stdout."""
        if self._explain:
            print(self._plan, file=sys.stderr)


class Csv:
    """A header, then one row per query."""

    def __init__(self, database: Database, rows_shown: int, explain: bool) -> None:
        self._explain = explain
        self._plan: Any = None
        self._votes = database.votes
        self._writer = csv.writer(sys.stdout, lineterminator="\n")
        share = ["probability"] if self._votes else []
        self._writer.writerow(["query", "value", *share, "spread", "support", "found", "reason"])

    def write(self, answer: Answer) -> None:
        """Print the answers of a chunk."""
        self._plan = self._plan or answer.plan
        for one in answer:
            share = [one.probabilities.get(one.value)] if self._votes else []
            cells = [one.query, one.value, *share, one.spread, one.support, one.found, one.reason]
            self._writer.writerow([_cell(cell) for cell in cells])

    def finish(self) -> None:
        """Print the plan apart."""
        if self._explain:
            print(self._plan, file=sys.stderr)


def _plain(value: Any) -> Any:
    """What `json` can write."""
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(item) for item in value]
    if isinstance(value, dt.timedelta):
        return value / dt.timedelta(days=1)
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | np.number):
        value = float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _key(label: Any) -> str:
    return "true" if label is True else "false" if label is False else str(label)


def _cell(value: Any) -> Any:
    value = _plain(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, list) else value
