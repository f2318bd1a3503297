"""The class `Answer`, which is the result of `Database.ask`, and the classes of its parts."""

from __future__ import annotations

import datetime as dt
import decimal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from qkv.core.formatting import counted, format_key, format_length, format_query, format_value, number
from qkv.core.printable import html_table
from qkv.core.typing import Float, Int, Num
from qkv.database.execute.stream_plan import StreamedPlan
from qkv.database.io.python_to_arrow import exact_array
from qkv.encoders.arrow_columns import records_of
from qkv.errors import MissingPackageError, OptionError

if TYPE_CHECKING:
    import pandas
    import polars

    from qkv.database.execute.row_reader import StoredRows
    from qkv.normalizers.base import Normalizer
    from qkv.plan.plan import Plan
    from qkv.scores.base import Score


_MOST_CALLS = 8
# Without a standard error, a spread of less than this part of an answer adds no digits to it.
_NEGLIGIBLE = 1e-6

Cell: TypeAlias = Any
"""A value of a table, of any type that Arrow columns hold."""

OneOrList: TypeAlias = Any
"""One value for a single query, or a list of values for several queries."""


@dataclass(frozen=True)
class Evidence:
    """A row of a table that has non-zero weight in an answer, with its weight and its cells.

    Attributes:
        weight: the weight of the row. With `aggregate='local-linear'` it is the effective weight, which can be
            negative.
        index: the index of the row in the table.
        record: the cells of the row, by column name.
        similarity, distance: the similarity or distance of key and query, whichever the comparison computes;
            otherwise None.

    Example:
        >>> from qkv import Database
        >>> table = {"name": ["John Smith", "Li Mu"], "income": [48_200, 55_000]}
        >>> people = Database.open(table, key="name", value="income")
        >>> row = people.ask("Jon Smiht").rows[0]
        >>> row.index, row.record, round(row.weight, 3), round(row.similarity, 2)
        (0, {'name': 'John Smith', 'income': 48200}, 1.0, 0.84)
    """

    weight: float
    index: int
    record: dict[str, Cell]
    similarity: float | None = None
    distance: float | None = None


@dataclass(frozen=True, eq=False)
class Call:
    """A call of attention that ran for an answer. The weights of an answer are those of its last call.

    The calls before it look for keys that equal the query, and for the most similar key.

    Attributes:
        score, normalizer: the score and the normalizer; their texts if a server has sent the answer.
        rows: the rows over which it ran, in words.
        bandwidth: the bandwidth by key column, in the unit of the column (days for dates); empty without one.
    """

    score: Score | str
    normalizer: Normalizer | str
    rows: str = "all rows"
    bandwidth: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        width = ", ".join(f"{width:.9g} {name}" for name, width in self.bandwidth.items())
        return f"{self.score}, {self.normalizer} over {self.rows}" + f", bandwidth {width}" * bool(width)

    @property
    def summary(self) -> str:
        """The normalizer and the name of the score, followed by the compared rows unless all rows were compared."""
        text = f"{self.normalizer} of {str(self.score).split('(')[0]}"
        return text if self.rows == "all rows" else f"{text} over {self.rows}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Call) and self.record() == other.record()

    def __hash__(self) -> int:
        return hash((self.rows, *self.bandwidth.items()))

    def record(self) -> dict[str, object]:
        """Return the attributes as texts and numbers."""
        parts = {"score": str(self.score), "normalizer": str(self.normalizer)}
        return {**parts, "rows": self.rows, "bandwidth": self.bandwidth}


class RanCalls:
    """The calls of some answers, whose text has a line for each different call with the number of queries."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries

    def __str__(self) -> str:
        counts = Counter[str]()
        for call, count in Counter(call for entry in self._entries for call in entry.calls).items():
            counts[str(call)] += count
        lines = [f"{text}: {counted(count, 'query', 'queries')}" for text, count in counts.most_common(_MOST_CALLS)]
        return "\n".join(lines + ["…"] * (len(counts) > _MOST_CALLS))


@dataclass(frozen=True, eq=False)
class Entry:
    """The answer to one query, with row indices in place of rows. `Answer` documents the attributes."""

    query: object
    found: bool
    value: Cell = None
    spread: float | dt.timedelta | None = None
    perplexity: float | None = 0.0
    reason: str = ""
    probabilities: dict[Cell, float] = field(default_factory=dict)
    rows: Int[np.ndarray, " n"] = field(default_factory=lambda: np.zeros(0, np.int64))
    weights: Float[np.ndarray, " n"] = field(default_factory=lambda: np.zeros(0))
    nearness: Num[np.ndarray, " n"] | None = None
    invalid: bool = False
    candidates: tuple[str, ...] = ()
    standard_error: float | dt.timedelta | None = None
    prediction_interval: tuple[Cell, Cell] | None = None
    effective_rows: float | None = 0.0
    gradient: dict[str, float | None] = field(default_factory=dict)
    gradient_error: dict[str, float | None] = field(default_factory=dict)
    fit_note: str = ""
    missing_rows: tuple[int, ...] = ()
    remarks: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    nearest: int = -1
    omitted: float = 0.0

    def at(self, rows: Int[np.ndarray, " n"]) -> Entry:
        """Return the entry with the row indices `rows[i]` in place of i."""
        nearest = int(rows[self.nearest]) if self.nearest >= 0 else -1
        return replace(self, rows=rows[self.rows], nearest=nearest)


def entry_cells(entries: Sequence[Entry], votes: bool) -> dict[str, list[Cell]]:
    """Return the columns of answers without the queries as lists, with the probability if `votes` is True."""
    intervals = [entry.prediction_interval or (None, None) for entry in entries]
    return {
        "value": [e.value.tolist() if isinstance(e.value, np.ndarray) else e.value for e in entries],
        **({"probability": [entry.probabilities.get(entry.value) for entry in entries]} if votes else {}),
        "standard_error": [entry.standard_error for entry in entries],
        "lower": [lower for lower, _ in intervals],
        "upper": [upper for _, upper in intervals],
        **{name: [getattr(each, name) for each in entries] for name in ("spread", "effective_rows", "found")},
        "reason": [entry.reason or None for entry in entries],
    }


def call_text(entry: Entry) -> str:
    """Return the calls that ran for an answer as the end of a sentence."""
    if not entry.calls:
        return ""
    search = entry.calls[:-1] if entry.found else entry.calls
    named = ", then by ".join(dict.fromkeys(replace(call, rows="all rows").summary for call in search))
    parts = [f"searched by {named}"] * bool(search) + [f"weights by {entry.calls[-1].summary}"] * entry.found
    return "; ".join(parts)


def call_notes(counts: Counter[str]) -> tuple[str, ...]:
    """Return sentences that state which calls ran, and for how many answers if these differ."""
    every = counts.most_common()
    return tuple(f"{text} ({counted(n, 'answer', 'answers')})" if len(every) > 1 else text for text, n in every)


def _entry_field(name: str, doc: str) -> property:
    """Return a property of `Answer` that reads a field of its single entry, or a list with the field of each entry."""
    return property(lambda answer: answer._one_or_list([getattr(entry, name) for entry in answer.entries]), doc=doc)


@dataclass(frozen=True, eq=False, repr=False)
class Answer:
    """The answers of a database to one or more queries, with the rows that support them and the execution plan.

    For a single query each property is one value; for several queries it is a list with one value per query.
    Indexing and iteration return the answer to each query. A query without a matching key has `found` False, the
    value None, no rows, and a `reason`. A query that several keys match equally
    well has no value either, but `candidates` and the rows of these keys. `column_notes` say how cells of the columns
    were read, or that they were left out; they are among `common_notes`, which hold for each of the answers. `votes`
    says whether values are votes rather than averages.

    Example:
        >>> from qkv.database import Database
        >>> table = {"name": ["John Doe", "Li Mu"], "income": [1000, 2000]}
        >>> people = Database.open(table, key="name", value="income")
        >>> answer = people.ask("Jon Doe")
        >>> round(answer.value), answer.rows[0].record["name"]
        (1000, 'John Doe')
    """

    entries: tuple[Entry, ...]
    single: bool
    table: pa.Table | StoredRows
    keys: tuple[str, ...]
    value_name: str
    measure: str
    plan: Plan | StreamedPlan
    common_notes: tuple[str, ...]
    column_notes: tuple[str, ...] = ()
    votes: bool = False

    # -- fields -----------------------------------------------------------------------------------------

    query = _entry_field("query", "The query as given.")
    value = _entry_field(
        "value", "The weighted average, or the text or category with the largest total weight; None without a match."
    )
    spread = _entry_field(
        "spread", "The weighted standard deviation of the values (for texts and categories, of one-hot vectors)."
    )
    standard_error = _entry_field(
        "standard_error",
        "The standard error of the value, spread / √(effective_rows − 1); for votes, that of the probability; "
        "None with fewer than two effective rows. See `qkv.database.execute.uncertainty`.",
    )
    prediction_interval = _entry_field(
        "prediction_interval",
        "A pair of values between which the value of a new row with this key lies with a probability of 90 %; None "
        "for votes and vectors, and with fewer than two effective rows.",
    )
    effective_rows = _entry_field(
        "effective_rows",
        "The effective number of rows, 1 / Σ w² of the weights w; None if they do not sum to 1 or one is negative.",
    )
    gradient = _entry_field(
        "gradient",
        "With `aggregate='local-linear'`, the slope of the line along each key column of numbers or dates by name: in "
        "the unit of the value per unit of the key (days for dates), None where it is not known. Otherwise empty.",
    )
    gradient_error = _entry_field("gradient_error", "The standard errors of `gradient`.")
    fit_note = _entry_field(
        "fit_note",
        "With `aggregate='local-linear'`, why the answer is the weighted mean, or which slopes are not known; else "
        "empty.",
    )
    perplexity = _entry_field("perplexity", "exp(entropy) of the weights; None if they do not sum to 1.")
    found = _entry_field("found", "Whether some key matches the query.")
    reason = _entry_field("reason", 'The reason for "no match"; empty if there is a match.')
    invalid = _entry_field("invalid", "Whether the query does not fit the key; `reason` then says why.")
    omitted = _entry_field(
        "omitted", "With `tolerance`, a proven upper bound of the weight of the rows that were left out; otherwise 0."
    )
    candidates = _entry_field(
        "candidates", "The keys that match the query equally well, so that there is no single answer; else empty."
    )
    missing_rows = _entry_field(
        "missing_rows",
        "The indices of the rows whose key is meant and whose value is missing. If no other row has this key and the "
        "key is a text, category or identifier, there is no answer, and `reason` says so.",
    )
    remarks = _entry_field(
        "remarks", "Sentences about this answer alone: the bandwidth of its group, and rows that are left out."
    )
    calls = _entry_field(
        "calls", "The calls of attention that ran for this answer, as `Call`; the last one gives the weights."
    )
    probabilities = _entry_field(
        "probabilities",
        "Shares of the vote for texts, categories, booleans and identifiers, the largest first; else empty.",
    )

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that say how the answers were computed: `common_notes`, and the calls that ran for each answer."""
        return *self.common_notes, *call_notes(self.call_counts)

    @property
    def call_counts(self) -> Counter[str]:
        """The number of answers by the calls that ran for them, in words."""
        return Counter(text for entry in self.entries if (text := call_text(entry)))

    @property
    def recall(self) -> float | None:
        """With `candidates`, the measured share of the rows of largest weight that were among them; otherwise None."""
        return getattr(self.plan, "recall", None)

    @cached_property
    def rows(self) -> OneOrList:
        """For each query, the rows with the largest weights as `Evidence`, in descending order of weight."""
        return self._one_or_list([self._evidence(entry) for entry in self.entries])

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Answer]:
        return (self[index] for index in range(len(self.entries)))

    def __getitem__(self, index: int) -> Answer:
        entry = self.entries[index]
        return replace(self, entries=(entry,), single=True)

    # -- other forms ------------------------------------------------------------------------------------

    def to_arrow(self) -> pa.Table:
        """Return the answers as a pyarrow table with one row per query.

        Its columns are query, value, probability (for votes), standard_error, lower and upper (the prediction
        interval), spread, effective_rows, found and reason.
        """
        # With one key, a tuple is a vector.
        several = len(self.keys) > 1
        queries = [e.query if several and isinstance(e.query, tuple) else (e.query,) for e in self.entries]
        columns: dict[str, list[Cell]] = {}
        for position, name in enumerate(self.keys):
            title = f"query_{name}" if several else "query"
            columns[title] = [
                (query[position] if len(query) == len(self.keys) else query[0]) if query else None for query in queries
            ]
        if several and any(isinstance(entry.query, str) for entry in self.entries):
            # Queries given as one text remain one text.
            columns = {"query": [format_query(entry.query, len(self.keys)) for entry in self.entries]}
        columns |= entry_cells(self.entries, any(entry.probabilities for entry in self.entries))
        return pa.table({name: exact_array(cells) for name, cells in columns.items()})

    def to_frame(self, library: str | None = None) -> pandas.DataFrame | polars.DataFrame:
        """Return the answers as a pandas or polars data frame with one row per query.

        Args:
            library: "pandas" or "polars"; None selects pandas, or polars if pandas is not installed.

        Raises:
            MissingPackageError: The library is not installed.
        """
        if library not in (None, "pandas", "polars"):
            raise OptionError(f"library must be 'pandas', 'polars' or None, got {library!r}. Omit it.")
        for name in [library] if library else ["pandas", "polars"]:
            with suppress(ImportError):
                if name == "pandas":
                    import pandas

                    return pandas.DataFrame(self.to_arrow().to_pydict())
                import polars

                return polars.from_arrow(self.to_arrow())
        raise MissingPackageError(
            f"to_frame needs {library or 'pandas or polars'}, which is not installed. "
            f"Run: pip install {library or 'pandas'}, or use to_arrow()."
        )

    def _repr_html_(self) -> str:
        """Return the answer with its largest weights as a table, which notebooks show."""
        if not self.single:
            headline, *lines = repr(self).splitlines()
            return html_table(headline, [[line.strip()] for line in lines])
        (entry,) = self.entries
        records = [(one.weight, one.record) for one in self._evidence(entry)[:10]]
        rows = [[weight, *map(self._cell_text, record, record.values())] for weight, record in records]
        title = ". ".join([self.headline(entry), *entry.remarks])
        return html_table(title, rows, ["weight", *records[0][1]] if records else ())

    def __repr__(self) -> str:
        if not self.single:
            lines = [f"{len(self.entries)} answers ({sum(entry.found for entry in self.entries)} found)"]
            lines += ["  " + self.headline(entry) for entry in self.entries[:10]]
            return "\n".join(lines + ["  …"] * (len(self.entries) > 10))
        (entry,) = self.entries
        lines = [self.headline(entry), *(f"  {remark}" for remark in entry.remarks)]
        for evidence in self._evidence(entry):
            near = evidence.similarity if evidence.similarity is not None else evidence.distance
            measured = f"  {self.measure} {near:.3g}" if near is not None else ""
            cells = "  ".join(f"{name}={self._cell_text(name, cell)}" for name, cell in evidence.record.items())
            lines.append(f"  {evidence.weight:6.3f}{measured}  {cells}")
        return "\n".join(lines)

    def _cell_text(self, name: str, cell: object) -> str:
        return format_key(cell) if self.in_full(name) else format_value(cell)

    def in_full(self, name: str) -> bool:
        """Return whether the cells of a column are printed with all digits: those of keys and of votes."""
        return name in self.keys or (self.votes and name == self.value_name)

    def headline(self, entry: Entry) -> str:
        """Return an entry as one line of text, with its value or with the reason for "no match"."""
        query = format_query(entry.query, len(self.keys))
        if not entry.found:
            return f"{query} → {format_failure(entry)}: {entry.reason}"
        parts = [f"{query} → {format_estimate(entry)}", *format_statistics(entry)]
        return "   ".join(parts)

    def with_note(self, note: str, rewrite: str, **fields: str) -> Answer:
        """Return a copy of the answer with one more note, which its plan states, too.

        Args:
            note: the note.
            rewrite: what the plan of an answer that is computed in memory states.
            fields: the attributes of a `StreamedPlan` that change.
        """
        plan, changed = self.plan, dict[str, Any](fields)
        if not isinstance(plan, StreamedPlan):
            changed = {"rewrites": (*plan.rewrites, rewrite)}
        return replace(self, plan=replace(plan, **changed), common_notes=(*self.common_notes, note))

    def with_missing(self, text: str) -> Answer:
        """Return a copy of the answer whose notes and plan state which fragments are missing."""
        before = getattr(self.plan, "missing", "")
        return self.with_note(text, f"missing: {text}", missing=f"{before}; {text}" if before else text)

    # -- private ----------------------------------------------------------------------------------------

    def _one_or_list(self, values: Sequence[object]) -> OneOrList:
        return values[0] if self.single else values

    def _evidence(self, entry: Entry) -> tuple[Evidence, ...]:
        records = records_of(self.table, [int(row) for row in entry.rows])
        near = [None] * len(records) if entry.nearness is None else entry.nearness.tolist()
        return tuple(
            Evidence(float(weight), int(row), record, **({self.measure: nearness} if self.measure else {}))
            for weight, row, record, nearness in zip(entry.weights, entry.rows, records, near, strict=True)
        )


def format_estimate(answer: Answer | Entry) -> str:
    """Return the value of an answer with its standard error, or the winner of a vote with its share.

    Digits are those that the standard error leaves, or without one, those that the spread leaves.
    """
    error = answer.standard_error
    # Only votes are whole numbers and decimals; averages are floats.
    full = answer.probabilities or isinstance(answer.value, int | decimal.Decimal)
    length = answer.spread if error is None else error
    if error is None and isinstance(answer.value, float) and isinstance(length, float):
        # A spread this small is that of rows of nearly no weight.
        length = None if 0 < length < _NEGLIGIBLE * abs(answer.value) else length
    text = format_key(answer.value) if full else format_value(answer.value, length)
    if answer.probabilities and answer.value in answer.probabilities:
        share = f"{answer.probabilities[answer.value]:.0%}"
        return f"{text} ({share})" if not isinstance(error, float) else f"{text} ({share}, standard error {error:.1%})"
    return text if error is None else f"{text} ± {format_length(error)} (standard error)"


def format_failure(answer: Answer | Entry) -> str:
    """Return why an answer has no value in two words: before the reason, which says more."""
    return "cannot be read" if answer.invalid else "no value" if answer.missing_rows else "no match"


def format_statistics(answer: Answer | Entry) -> list[str]:
    """Return the prediction interval, the spread and the effective rows of an answer, each with its name."""
    parts = []
    if answer.prediction_interval is not None:
        ends = [format_value(end, answer.spread) for end in answer.prediction_interval]
        parts.append(f"90% prediction interval: {' to '.join(ends)}")
    if answer.spread is not None and not answer.probabilities:
        parts.append(f"spread: {format_length(answer.spread)}")
    if answer.effective_rows is not None:
        parts.append(f"effective rows: {answer.effective_rows:,.1f}")
    return parts


def format_gradient(answer: Answer | Entry) -> list[str]:
    """Return the slope of the answer along each key column of numbers, with its standard error, each with its name."""
    unit = " days" if isinstance(answer.value, dt.date | dt.datetime | dt.timedelta | dt.time) else ""
    parts = []
    for name, slope in answer.gradient.items():
        error = answer.gradient_error[name]
        known = "unknown" if slope is None else number(slope, error) + unit
        parts.append(f"slope along {name}: {known}" + ("" if error is None else f" ± {number(error, error)}"))
    return parts
