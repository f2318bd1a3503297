"""The class `AnswerPage`, which answers the requests of a page on which a query is moved over the rows of a table."""

from __future__ import annotations

import base64
import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.core.formatting import format_key, format_query, format_value
from qkv.core.typing import Float, Int
from qkv.database.answer import format_estimate, format_failure, format_gradient, format_statistics
from qkv.database.io.predicates import PredicateProcess
from qkv.database.keys.queries import split_text
from qkv.encoders.columns import Column
from qkv.errors import OptionError, QkvError, QueryError
from qkv.look.answers.answer_settings import KERNELS, AnswerSettings, AskArguments, TableSource
from qkv.look.answers.query_axis import QueryAxis
from qkv.look.figure import figure_png

if TYPE_CHECKING:
    from qkv.database.answer import Answer
    from qkv.database.protocol import Queryable


_MOST_POINTS = 100_000
_MOST_LABELS = 8
_LEAST_SHARE = 0.002
"""Rows of a smaller share of the largest weight are not drawn."""
_MOST_SLICES = 200
"""Number of rows whose weights are drawn if the rows are read one by one from a store."""


@dataclass(frozen=True, eq=False)
class TablePoints:
    """The rows of a database as points.

    Attributes:
        database: the database.
        axes: the axes of the key; empty if queries are typed.
        value: the axis of values that are numbers or dates, or None.
        labels: the most common of other values, and "other values" if there are more; empty for numbers and dates.
        codes: the index of each label by the cell of the value column.
    """

    database: Queryable
    axes: tuple[QueryAxis, ...]
    value: QueryAxis | None
    labels: tuple[str, ...]
    codes: dict[object, int]

    @classmethod
    def of(cls, database: Queryable, columns: Sequence[Column], axes: tuple[QueryAxis, ...]) -> TablePoints:
        """Return the points of a database."""
        value = columns[-1]
        if value.kind in ("number", "timestamp", "cyclic"):
            return cls(database, axes, QueryAxis(value), (), {})
        if value.kind == "vector":
            return cls(database, axes, None, ("vectors",), {})
        cells, first, counts = np.unique(value.cells, return_index=True, return_counts=True)
        common = np.argsort(-counts, kind="stable")
        shown = common if len(common) <= _MOST_LABELS else common[: _MOST_LABELS - 1]
        labels = [value.text(int(first[i])) for i in shown]
        if value.kind == "boolean":
            labels = ["true" if cells[i] else "false" for i in shown]
        more = len(common) > len(shown)
        codes = {cell: i for i, cell in enumerate(cells[shown].tolist())}
        return cls(database, axes, None, (*labels, *["other values"] * more), codes)

    def read(self, where: str | None) -> dict[str, object]:
        """Return the rows that satisfy a predicate as points, in two bytes per coordinate.

        Of more than 100,000 rows, a random sample is returned.
        """
        columns = self.database.complete_columns(where)
        count = len(columns[0].cells)
        if count > _MOST_POINTS:
            rows = np.sort(np.random.default_rng(0).permutation(count)[:_MOST_POINTS])
            columns = tuple(column.take(rows) for column in columns)
        keys, values = self._codes([column.cells for column in columns])
        out = {"count": count, "shown": len(columns[0].cells)}
        return out | {"keys": list(map(_packed, keys)), "values": _packed(values)}

    def weighted(self, answer: Answer) -> dict[str, object]:
        """Return the rows with at least 0.2 % of the largest weight as points, with their share of it."""
        (entry,) = answer.entries
        names = (*answer.keys, answer.value_name)
        columns = [self.database.column(name) for name in names]
        # Far rows have weights of 1e-200, which are drawn as nothing.
        visible = np.abs(entry.weights) > _LEAST_SHARE * np.abs(entry.weights).max(initial=0.0)
        rows, weights = entry.rows[visible], entry.weights[visible]
        if len(columns[0].cells) == self.database.table.num_rows:
            parts = [column.cells[rows] for column in columns]
        else:
            # The columns are a sample of the rows of a store.
            rows, weights = rows[:_MOST_SLICES], weights[:_MOST_SLICES]
            slices = [self.database.table.slice(int(row), 1) for row in rows]
            parts = [
                np.array([Column.from_table(one, name, True, column).cells[0] for one in slices])
                for name, column in zip(names, columns, strict=True)
            ]
        keys, values = self._codes(parts)
        shares = np.round(weights / (float(np.abs(weights).max(initial=0.0)) or 1.0), 3)
        return {"keys": [key.tolist() for key in keys], "values": values.tolist(), "weights": shares.tolist()}

    def place(self, value: object) -> float | None:
        """Return the coordinate of a value of an answer; None if values have labels."""
        return None if self.value is None or value is None else _finite(self.value.coordinate(value))

    def length(self, value: object) -> float | None:
        """Return the length of a standard error on the axis of the values."""
        return None if self.value is None or value is None else _finite(self.value.length(value))

    def curve(self, answers: Sequence[Answer]) -> dict[str, object]:
        """Return the coordinates of answers and of their intervals, None where there is no match."""
        intervals = [one.prediction_interval or (None, None) for one in answers]
        labels = list(self.labels)
        names = [str(one.value).lower() if isinstance(one.value, bool) else str(one.value) for one in answers]
        return {
            "values": [self.place(one.value) for one in answers],
            "low": [self.place(low) for low, _ in intervals],
            "high": [self.place(high) for _, high in intervals],
            "labels": [
                None if not one.found or not labels else labels.index(name) if name in labels else len(labels) - 1
                for one, name in zip(answers, names, strict=True)
            ],
        }

    def _codes(self, columns: Sequence[np.ndarray]) -> tuple[list[Int[np.ndarray, " n"]], Int[np.ndarray, " n"]]:
        """Return the places of rows on the axes of the keys, and on that of the values or among the labels."""
        keys = [axis.codes(axis.coordinates(cells)) for axis, cells in zip(self.axes, columns, strict=False)]
        if self.value is not None:
            return keys, self.value.codes(self.value.coordinates(columns[-1]))
        other, given = max(0, len(self.labels) - 1), columns[-1].tolist() if self.codes else [None] * len(columns[-1])
        return keys, np.array([self.codes.get(cell, other) for cell in given], np.int64)


def _finite(number: float) -> float | None:
    return number if np.isfinite(number) else None


def _packed(codes: Int[np.ndarray, " n"]) -> str:
    return base64.b64encode(codes.astype("<u2").tobytes()).decode()


_MOST_COLUMNS = 6
_MOST_SHARES = 8


def describe_answer(answer: Answer, points: TablePoints) -> dict[str, object]:
    """Return the answer to one query as texts, with its place and its errors on the axis of the values."""
    place, error = points.place(answer.value), points.length(answer.standard_error)
    ends = [points.place(end) for end in answer.prediction_interval or ()]
    return {
        "found": answer.found,
        "estimate": format_estimate(answer) if answer.found else "",
        "reason": answer.reason,
        "statistics": format_statistics(answer) if answer.found else [],
        "gradient": format_gradient(answer) if answer.found else [],
        "failure": format_failure(answer),
        "fit_note": "; ".join([*([answer.fit_note] if answer.fit_note else []), *answer.remarks]),
        "value": place,
        "deviation": None if place is None or error is None else [place - error, place + error],
        "interval": ends or None,
        "shares": [
            {"label": format_value(label), "share": round(share, 5), "text": f"{share:.0%}"}
            for label, share in list(answer.probabilities.items())[:_MOST_SHARES]
        ],
        "evidence": _evidence(answer),
        "notes": list(answer.notes),
    }


def _evidence(answer: Answer) -> dict[str, object]:
    """Return the rows of evidence as texts, as `qkv ask` prints them."""
    first = (*answer.keys, answer.value_name)
    names = list(dict.fromkeys([*first, *answer.table.column_names]))
    shown = names[: max(len(first), _MOST_COLUMNS)]
    rows = answer.rows
    largest = max((abs(row.weight) for row in rows), default=1.0)
    signed = any(row.weight < 0 for row in rows)
    total = sum(row.weight for row in rows)
    remark = f"these rows have {total:.0%} of the weight" if not signed and 0 < total < 0.995 else ""
    if signed:
        remark = "rows with a negative weight lower the answer where their values are high"
    roles = {answer.value_name: "value"} | dict.fromkeys(answer.keys, "key")
    numeric = {name for name in shown if rows and isinstance(rows[0].record[name], int | float)}
    lines = []
    for row in rows:
        near = row.similarity if row.similarity is not None else row.distance
        measured = f"{near:.2f}" if answer.measure == "similarity" else format_value(near)
        cells = [row.record[name] for name in shown]
        lines.append(
            {
                "weight": f"{row.weight:.3f}".replace("-", "−"),
                "share": round(row.weight / largest, 4),
                "near": measured if answer.measure else "",
                "cells": [
                    format_key(cell) if answer.in_full(name) else format_value(cell)
                    for name, cell in zip(shown, cells, strict=True)
                ],
            }
        )
    return {
        "measure": answer.measure,
        "columns": [{"name": name, "role": roles.get(name, ""), "numeric": name in numeric} for name in shown],
        "rows": lines,
        "remark": remark,
        "hidden": len(names) - len(shown),
    }


_NORMALIZERS = ("softmax", "sum", "mean", "hard", "sparsemax", "entmax15", "sigmoid", "identity")
_TEXT_SCORES = ("names", "spelling", "jaro-winkler", "levenshtein", "token-set-ratio", "exact")
_NUMBER_SCORES = (*KERNELS, "exact", "constant")
_MOST_DRAWN = 1000
"""Number of rows whose weights are drawn."""
_MOST_COMPLETIONS = 2000
_MOST_PLACES = 600
"""Number of places of a curve that one request may ask for."""


class AnswerPage:
    """A database with the settings of a page, which answers the requests of the browser.

    A key of one or two columns of numbers or dates has an axis or a map on which the query is moved; queries for other
    keys are typed.

    Args:
        database: the database.
        source: where the database comes from, for the command and the Python call that give the same answer.
        query: the first query, as text; None: near the middle of the keys.
        settings: the first settings.
        printed: returns what `qkv ask` prints for an answer; None: the page does not show this.

    Raises:
        QueryError: the query does not fit the key, or the predicate fails.
        OptionError: the name of a score or of a normalizer is unknown.

    Example:
        >>> from qkv import Database
        >>> from qkv.look.answers import AnswerPage
        >>> pay = Database.open({"years": [1, 2, 3, 4], "pay": [10, 12, 14, 16]}, key="years", value="pay")
        >>> page = AnswerPage(pay, query="2.5")
        >>> response = page.respond({"what": "answer", "settings": {}, "query": "2.5"})
        >>> round(response["value"]), response["call"]
        (13, "database.ask('2.5')")
    """

    def __init__(
        self,
        database: Queryable,
        source: TableSource | None = None,
        *,
        query: str | None = None,
        settings: AnswerSettings | None = None,
        printed: Callable[[Answer, int], str] | None = None,
    ) -> None:
        self.database, self.source = database, source or TableSource()
        self.settings, self._printed = settings or AnswerSettings(), printed
        self._lock = threading.Lock()
        self._columns = database.complete_columns()
        kinds = [column.kind for column in self._columns[:-1]]
        numeric = len(kinds) <= 2 and all(kind in ("number", "timestamp", "cyclic") for kind in kinds)
        middle = len(self._columns[0].cells) // 2
        first = query or _joined([column.text(middle) for column in self._columns[:-1]])
        self._first = self._ask([first], self.options(self.settings))[0]
        by_equality = any(note.startswith(("compared by equality", "compared by Exact")) for note in self._first.notes)
        self.axes = tuple(map(QueryAxis, self._columns[:-1])) if numeric and not by_equality else ()
        self.query = first if query or not self.axes else self.query_at([axis.middle for axis in self.axes])
        self.points = TablePoints.of(database, self._columns, self.axes)

    @property
    def mode(self) -> str:
        """How a query is given: on an "axis", on a "map", or "typed"."""
        return ("typed", "axis", "map")[len(self.axes)]

    def meta(self) -> dict[str, object]:
        """Return what the browser needs before the first answer, as a dictionary that is valid JSON."""
        kind = self._columns[0].kind
        texts = any(column.kind in ("text", "category") for column in self._columns[:-1])
        single = len(self._columns) == 2
        name, value = self.database.value, self.points.value
        first = self._columns[0].cells if self._columns[0].original is None else self._columns[0].original
        scores = _NUMBER_SCORES if self.axes else _TEXT_SCORES if single and kind == "text" else ("exact",)
        return {
            "title": self.title,
            "mode": self.mode,
            "rows": len(self.database),
            "left_out": self.database.table.num_rows - len(self.database),
            "keys": [axis.meta() for axis in self.axes],
            "key_names": list(self.database.key),
            "value": value.meta() if value else {"name": name, "label": name, "labels": list(self.points.labels)},
            "query": self.query,
            "settings": self.settings.__dict__,
            "scores": list(scores),
            "kernels": list(KERNELS) if self.axes else [],
            "normalizers": list(_NORMALIZERS),
            "lines": bool(self.axes) and not self.points.labels,
            "bandwidth": self._chosen_bandwidth(),
            "completions": list(dict.fromkeys(map(str, first)))[:_MOST_COMPLETIONS] if texts and single else [],
            "printed": self._printed is not None,
        }

    def respond(self, request: object) -> dict[str, object]:
        """Return the response to a request of the browser, or `{"error": …}` with the reason why there is none.

        Args:
            request: `{"what": "answer", "settings": …, "query": …}`, with a text, or `"at"`, the coordinates of the
                query, in place of `"query"`; `{"what": "points", "settings": …}`; or `{"what": "curve",
                "settings": …, "places": …}`, a list of coordinates of queries.
        """
        try:
            if not isinstance(request, dict):
                raise OptionError(f"request must be an object, got {str(request)[:80]!r}. Reload the page.")
            with self._lock:
                return self._respond(request)
        except QkvError as error:
            return {"error": str(error)}

    @contextlib.contextmanager
    def responding(self) -> Iterator[Callable[[object], dict[str, object]]]:
        """Yield `respond` for a server, whose predicates are evaluated by a process of their own."""
        with contextlib.closing(PredicateProcess()) as predicates:

            def respond(request: object) -> dict[str, object]:
                with predicates.used():
                    return self.respond(request)

            yield respond

    def _respond(self, request: dict[str, object]) -> dict[str, object]:
        settings = AnswerSettings.parse(request.get("settings", {}))
        options, what = self.options(settings), request.get("what")
        if what == "points":
            return self.points.read(options.get("where"))
        if what == "curve":
            return self._curve(_coordinates(request.get("places"), len(self.axes)), options)
        if what != "answer":
            raise OptionError(f"what must be 'answer', 'points' or 'curve', got {str(what)[:80]!r}. Reload the page.")
        at, query = request.get("at"), request.get("query")
        if at is not None:
            query = self.query_at(_coordinates([at], len(self.axes))[0].tolist())
        if not isinstance(query, str) or not query.strip():
            raise QueryError("the query must not be empty. Type a query.")
        return self.describe([query], options, printed=bool(request.get("printed")))[0]

    def describe(
        self, queries: Sequence[str], options: AskArguments, most_drawn: int = _MOST_DRAWN, printed: bool = False
    ) -> list[dict[str, object]]:
        """Return the answers to queries as texts and coordinates, with the commands and the calls that give them.

        The weights of `most_drawn` rows are drawn; `printed` adds the text that `qkv ask` prints.
        """
        answers = drawn = self._ask(queries, options)
        if self.axes and any(answer.found for answer in answers):
            # More rows are drawn than are listed. Rows of equal weight may be chosen differently, so both are asked.
            more: AskArguments = {**options, "top": min(self.database.table.num_rows, most_drawn)}
            drawn = self._ask(queries, more)
        described = []
        for query, answer, rows in zip(queries, answers, drawn, strict=True):
            out = describe_answer(answer, self.points)
            out |= {"query": query, "shown": format_query(query, len(answer.keys)), "at": self.place_of(query)}
            out |= {"command": self.source.shell(query, options), "call": self.source.python(query, options)}
            if answer.found:
                out["drawn"] = self.points.weighted(rows)
            if printed and self._printed is not None:
                out["printed"] = self._printed(answer, options["top"])
            described.append(out)
        return described

    def _ask(self, queries: Sequence[str], options: AskArguments) -> Answer:
        # A list of texts is parsed as by the command line.
        return self.database.ask(list(queries), **options, printed=True)

    def picture(self) -> bytes:
        """Return a picture of the first answer as a PNG file, see `plot_query`."""
        from qkv.look.query_plot import plot_query

        options = self.options(self.settings)
        asked: dict[str, Any] = {name: value for name, value in options.items() if name != "top"}
        return figure_png(plot_query(self.database, self._ask([self.query], options)[0], **asked))

    def options(self, settings: AnswerSettings) -> AskArguments:
        """Return the arguments of `Database.ask` for some settings.

        Raises:
            OptionError: a number of the settings cannot be read.
        """
        kinds = {column.kind for column in self._columns[:-1]}
        # Similarities are at most 1, so that the softmax needs a low temperature, see `keys.choose`.
        return settings.options("0.02" if "text" in kinds else "0.05" if "vector" in kinds else "")

    def query_at(self, coordinates: Sequence[float]) -> str:
        """Return the query at coordinates on the axes, as text."""
        return _joined([axis.text(each) for axis, each in zip(self.axes, coordinates, strict=True)])

    def place_of(self, query: str) -> list[float] | None:
        """Return the coordinates of a query on the axes, or None if it has none."""
        if not self.axes:
            return None
        parts = split_text(query) if len(self.axes) > 1 else [query]
        if len(parts) != len(self.axes):
            return None
        found = [axis.parse(part) for axis, part in zip(self.axes, parts, strict=True)]
        return None if None in found else [each for each in found if each is not None]

    def _curve(self, places: Float[np.ndarray, "n width"], options: AskArguments) -> dict[str, object]:
        """Return the coordinates of the answers at some places of the axis or the map, and of their intervals."""
        columns = [axis.keys(places[:, i]) for i, axis in enumerate(self.axes)]
        queries = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        single: AskArguments = {**options, "top": 1}
        return self.points.curve(list(self.database.ask(queries, **single)))

    def _chosen_bandwidth(self) -> list[float]:
        """Return the bandwidths of the first answer in the units of the keys; empty if they are not chosen."""
        for note in self._first.notes:
            found = re.search(r"bandwidth \S+ \((.*)\)", note)
            if found and self.axes:
                return [float(re.split(r"\s", part)[0].replace(",", "")) for part in found[1].split(", ")]
        return []

    @property
    def title(self) -> str:
        """The title of the page."""
        return f"{self.database.name}: {', '.join(self.database.key)} → {self.database.value}"


def _joined(texts: Sequence[str]) -> str:
    """Return one query for all keys, in which parts with a comma are quoted."""
    return texts[0] if len(texts) == 1 else ",".join(f'"{text}"' if "," in text else text for text in texts)


def _coordinates(places: object, width: int) -> Float[np.ndarray, "n width"]:
    """Return the coordinates in a request as a matrix."""
    with contextlib.suppress(TypeError, ValueError):
        out = np.array(places, np.float64)
        if out.ndim == 2 and out.shape[1] == width > 0 and len(out) <= _MOST_PLACES and np.isfinite(out).all():
            return out
    raise OptionError(f"places must be lists of {width} finite numbers, got {str(places)[:80]!r}. Reload the page.")
