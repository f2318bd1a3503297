"""What `ask` returns: the value, how far it spreads, how many rows it rests on, these rows, and the plan."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from qkv.database.io.formatting import format_spread, format_value
from qkv.errors import MissingPackageError, OptionError

__all__ = ["Answer", "Entry", "Evidence"]


@dataclass(frozen=True)
class Evidence:
    """A row that an answer rests on.

    Fields:
        weight: its weight in the answer.
        index: its place in the table.
        record: the whole row, by column name.
        similarity, distance: how near its key is to the query, by the measure of the comparison; else None.
    """

    weight: float
    index: int
    record: dict[str, Any]
    similarity: float | None = None
    distance: float | None = None


@dataclass(frozen=True, eq=False)
class Entry:
    """The answer to one query, rows as numbers."""

    asked: Any
    found: bool
    value: Any = None
    spread: Any = None
    support: float | None = 0.0
    reason: str = ""
    probabilities: dict[Any, float] = field(default_factory=dict)
    rows: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    weights: np.ndarray = field(default_factory=lambda: np.zeros(0))
    nearness: np.ndarray | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Answer:
    """The answer to one query, whose fields are then single, or to many, whose fields are lists.

    Indexing and iterating give the answers to single queries. A query that no key resembles has `found`
    false, the value None, no rows, and a `reason`.

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
    table: Any
    keys: tuple[str, ...]
    value_name: str
    measure: str
    plan: Any
    notes: tuple[str, ...]

    # -- fields -----------------------------------------------------------------------------------------

    @property
    def query(self) -> Any:
        """What was asked."""
        return self._give([entry.asked for entry in self.entries])

    @property
    def value(self) -> Any:
        """The weighted answer: a number, a date, the text of most weight, a vector; None without a match."""
        return self._give([entry.value for entry in self.entries])

    @property
    def spread(self) -> Any:
        """The weighted standard deviation of the values (for texts and categories, of one-hot vectors)."""
        return self._give([entry.spread for entry in self.entries])

    @property
    def support(self) -> Any:
        """exp(entropy) of the weights, the rows the answer rests on; None where they do not sum to 1."""
        return self._give([entry.support for entry in self.entries])

    @property
    def found(self) -> Any:
        """Whether any key resembles the query."""
        return self._give([entry.found for entry in self.entries])

    @property
    def reason(self) -> Any:
        """Why there was no match; empty where there was."""
        return self._give([entry.reason for entry in self.entries])

    @property
    def probabilities(self) -> Any:
        """Shares of the vote for texts, categories and booleans, the largest first; else empty."""
        return self._give([entry.probabilities for entry in self.entries])

    @property
    def rows(self) -> Any:
        """The rows of most weight as `Evidence`, the heaviest first."""
        return self._give(list(self._evidences))

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator["Answer"]:
        return (self[index] for index in range(len(self.entries)))

    def __getitem__(self, index: int) -> "Answer":
        entry = self.entries[index]
        return Answer((entry,), True, self.table, self.keys, self.value_name, self.measure, self.plan, self.notes)

    # -- other forms ------------------------------------------------------------------------------------

    def to_arrow(self) -> Any:
        """A pyarrow table, one row per query: query, value, (probability,) spread, support, found, reason."""
        import pyarrow as pa

        queries = [entry.asked if isinstance(entry.asked, tuple) else (entry.asked,) for entry in self.entries]
        columns: dict[str, Any] = {}
        for position, name in enumerate(self.keys):
            title = "query" if len(self.keys) == 1 else f"query_{name}"
            columns[title] = [
                (asked[position] if len(asked) == len(self.keys) else asked[0]) if asked else None for asked in queries
            ]
        if len(self.keys) > 1 and any(isinstance(entry.asked, str) for entry in self.entries):
            # Typed as one text: kept as it was typed.
            columns = {"query": [_text(entry.asked) for entry in self.entries]}
        columns["value"] = [_listed(entry.value) for entry in self.entries]
        if any(entry.probabilities for entry in self.entries):
            columns["probability"] = [entry.probabilities.get(entry.value) for entry in self.entries]
        columns["spread"] = [entry.spread for entry in self.entries]
        columns["support"] = [entry.support for entry in self.entries]
        columns["found"] = [entry.found for entry in self.entries]
        columns["reason"] = [entry.reason or None for entry in self.entries]
        return pa.table(columns)

    def to_frame(self, library: str | None = None) -> Any:
        """The same as a pandas frame, or polars where pandas is not installed.

        Args:
            library: "pandas" or "polars"; None takes the one that is there.

        Raises:
            MissingPackageError: it is not installed.
        """
        if library not in (None, "pandas", "polars"):
            raise OptionError(f"library is {library!r}, and it is 'pandas' or 'polars'. Or leave it out.")
        for name in [library] if library else ["pandas", "polars"]:
            try:
                if name == "pandas":
                    import pandas

                    return pandas.DataFrame(self.to_arrow().to_pydict())
                import polars

                return polars.from_arrow(self.to_arrow())
            except ImportError:
                continue
        wanted = library or "pandas or polars"
        raise MissingPackageError(
            f"to_frame needs {wanted}, which is not installed. "
            f"Run: pip install {library or 'pandas'}, or use to_arrow()."
        )

    def __repr__(self) -> str:
        if not self.single:
            lines = [f"{len(self.entries)} answers ({sum(entry.found for entry in self.entries)} found)"]
            lines += ["  " + self.headline(entry) for entry in self.entries[:10]]
            return "\n".join(lines + ["  …"] * (len(self.entries) > 10))
        (entry,) = self.entries
        lines = [self.headline(entry)]
        for evidence in self._evidence(entry):
            near = evidence.similarity if evidence.similarity is not None else evidence.distance
            measured = f"  {self.measure} {near:.3g}" if near is not None else ""
            cells = "  ".join(f"{name}={format_value(cell)}" for name, cell in evidence.record.items())
            lines.append(f"  {evidence.weight:6.3f}{measured}  {cells}")
        return "\n".join(lines)

    def headline(self, entry: Entry) -> str:
        """One line: the query, its answer, its spread and its support."""
        asked = _text(entry.asked)
        if not entry.found:
            return f"{asked} → no match: {entry.reason}"
        share = entry.probabilities.get(entry.value)
        spread = f" ({share:.0%})" if share is not None else format_spread(entry.spread)
        support = "" if entry.support is None else f"   effective rows: {entry.support:.1f}"
        return f"{asked} → {format_value(entry.value, entry.spread)}{spread}{support}"

    # -- within -----------------------------------------------------------------------------------------

    def _give(self, values: list[Any]) -> Any:
        return values[0] if self.single else values

    @cached_property
    def _evidences(self) -> tuple[tuple[Evidence, ...], ...]:
        return tuple(self._evidence(entry) for entry in self.entries)

    def _evidence(self, entry: Entry) -> tuple[Evidence, ...]:
        # Slices, not `take`: that loads pyarrow.compute, at a tenth of the time of a small answer.
        records = [self.table.slice(int(row), 1).to_pylist()[0] for row in entry.rows]
        near = [None] * len(records) if entry.nearness is None else entry.nearness.tolist()
        return tuple(
            Evidence(float(weight), int(row), record, **({self.measure: close} if self.measure else {}))
            for weight, row, record, close in zip(entry.weights, entry.rows, records, near, strict=True)
        )


def _text(asked: Any) -> str:
    return ", ".join(format_value(part) for part in asked) if isinstance(asked, tuple) else format_value(asked)


def _listed(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
