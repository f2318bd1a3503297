"""What requests ask: the classes `Question` and `Search`, and how their fields are read from JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any
from unicodedata import combining

from qkv.core.checks import check_choice
from qkv.core.json_values import NUMBERS
from qkv.core.progress import checkpoint
from qkv.database.execute.ask_options import check_fit, check_threshold
from qkv.errors import OptionError, QueryError
from qkv.serve.limits import Limits
from qkv.serve.typed_json import decode

__all__ = ["TEMPERATURES", "Question", "Search", "Work", "parse_json_body", "read_question", "read_search"]

TEMPERATURES = 1e-3, 1e6
"""Smallest and largest temperature of a search, with which float32 neither overflows nor loses scores."""
_TEXT = 10_000
"""Largest number of characters of an option, such as a predicate."""
_MARKS = 30
"""Largest number of accents on a letter, as in the Stream-Safe Text Format of Unicode."""
_QUERIES_OF_MOST_ROWS = 100
"""Number of queries that may have the largest number of rows of evidence."""
_DEEPEST = 32
"""Largest number of lists and objects within one another in a body."""
_BAD_QUERIES = ("refuse", "report")


@dataclass(frozen=True)
class Question:
    """Queries to a database with the options of `Database.ask`.

    Attributes:
        queries: the queries.
        single: whether one query was given rather than a list.
        on_bad_query: as in `Database.ask`.
        options: the other options of `Database.ask` that were given, in alphabetical order.
    """

    queries: tuple[object, ...]
    single: bool = False
    on_bad_query: str = "refuse"
    options: tuple[tuple[str, object], ...] = ()

    @cached_property
    def group(self) -> tuple[object, ...]:
        """Questions with the same group can be answered by one call of `Database.ask`, in about the same time."""
        return ("ask", self.size, *self.options)

    @cached_property
    def size(self) -> tuple[int, int]:
        """The orders of magnitude of the number of queries and of the size of the largest one."""
        return _order_of_size(self.queries)

    def __len__(self) -> int:
        return len(self.queries)


@dataclass(frozen=True)
class Search:
    """Texts to search in an index, with the options of `Index.search`."""

    queries: tuple[str, ...]
    single: bool = False
    top: int = 10
    mix: float | None = None
    temperature: float = 1.0
    contributions: bool = field(default=True)

    @cached_property
    def group(self) -> tuple[object, ...]:
        """Searches of about the same time are run one after the other."""
        return ("search", self.size)

    @cached_property
    def size(self) -> tuple[int, int]:
        """As for a question."""
        return _order_of_size(self.queries)

    def __len__(self) -> int:
        return len(self.queries)


@dataclass(frozen=True, eq=False)
class Work:
    """A function that takes turns with the scans, such as one that reads a large body or writes a large answer."""

    run: Callable[[], object]
    size: tuple[int, int] = (1, 0)

    @property
    def group(self) -> tuple[object, ...]:
        """Each is run by itself."""
        return ("work", self)

    def __len__(self) -> int:
        return 1


def _order_of_size(queries: Sequence[object]) -> tuple[int, int]:
    """Return the orders of magnitude of the number of queries and of the size of the largest one."""
    return (len(queries) >> 4).bit_length(), (max(map(_size, queries), default=0) >> 6).bit_length()


def _size(query: object) -> int:
    """Return the number of characters and numbers of a query."""
    if isinstance(query, Mapping):
        return sum(map(_size, query.values()))
    if isinstance(query, list | tuple) and not NUMBERS.issuperset(map(type, query)):
        return sum(map(_size, query))
    return len(query) if isinstance(query, Sized) else 1


def parse_json_body(body: bytes) -> dict[str, Any]:
    """Return the object in a body of JSON.

    Raises:
        QueryError: The body is no JSON object in UTF-8, is nested too deeply, or has a number or a text that JSON does
            not allow.

    Example:
        >>> parse_json_body(b'{"query": "Li"}')
        {'query': 'Li'}
    """
    reason = ""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        reason = "bytes that are not UTF-8"
    except RecursionError:
        reason = "lists nested too deeply"
    except ValueError as error:
        reason = str(error).partition(":")[0][:100]
    if not reason and not isinstance(value, dict):
        reason = f"a value of type {type(value).__name__}"
    reason = reason or _forbidden(value, 0)
    if reason:
        raise QueryError(f'the body must be a JSON object, got {reason}. Send, for example, {{"query": "Li"}}.')
    found: dict[str, Any] = value
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name}, which is no number of JSON")


def _forbidden(value: object, depth: int) -> str:
    """Return why a parsed value is refused; "" if it is not."""
    checkpoint()
    if depth > _DEEPEST:
        return f"more than {_DEEPEST} lists and objects within one another"
    if isinstance(value, str) and not _is_unicode(value):
        return "half of a surrogate pair in a text"
    if isinstance(value, dict):
        return _forbidden([*value, *value.values()], depth + 1)
    if isinstance(value, list):
        if NUMBERS.issuperset(map(type, value)):
            return ""
        return next((reason for item in value if (reason := _forbidden(item, depth + 1))), "")
    return ""


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_question(fields: Mapping[str, Any], limits: Limits, queries: list[object] | None = None) -> Question:
    """Return the question in the fields of a request.

    Args:
        fields: the names and values.
        limits: the limits of the server.
        queries: the queries, if they are not among the fields.

    Raises:
        OptionError: A field is unknown, missing, has another type or is beyond a limit.
        QueryError: A query cannot be read.

    Example:
        >>> question = read_question({"query": 3.5, "score": "boxcar:1"}, Limits())
        >>> question.queries, question.single, dict(question.options)
        ((3.5,), True, {'score': 'boxcar:1'})
    """
    reader = _Reader(fields)
    single = False
    if queries is None:
        single, queries = reader.queries()
    _check_count(queries, limits)
    on_bad_query = reader.text("on_bad_query")
    if on_bad_query is not None:
        check_choice("on_bad_query", on_bad_query, _BAD_QUERIES)
    options: dict[str, object] = {
        "fit": reader.text("fit"),
        "normalizer": reader.text("normalizer"),
        "printed": reader.boolean("printed") or None,
        "score": reader.text("score"),
        "seed": reader.integer("seed", 0, 2**63 - 1),
        "threshold": reader.number("threshold"),
        "top": reader.integer("top", 1, limits.rows),
        "where": reader.text("where"),
    }
    reader.finish()
    if len(queries) * (options["top"] or 10) > limits.rows * _QUERIES_OF_MOST_ROWS:  # type: ignore[operator]
        raise OptionError(
            f"queries times top must be at most {limits.rows * _QUERIES_OF_MOST_ROWS:,}, {_QUERIES_OF_MOST_ROWS} times "
            f"--max-rows, got {len(queries):,} queries with {options['top'] or 10:,} rows. Ask fewer of them."
        )
    check_fit(options["fit"])  # type: ignore[arg-type]
    check_threshold(options["threshold"])
    given = tuple((name, value) for name, value in options.items() if value is not None)
    return Question(tuple(map(_decode, queries)), single, on_bad_query or "refuse", given)


def _decode(query: object) -> object:
    """Return a query as it was encoded, after checking its texts."""
    _check_texts(query)
    return decode(query)


def _check_texts(query: object) -> None:
    """Raise an `OptionError` if a text in a query is too long, or takes quadratic time to be normalized."""
    checkpoint()
    if isinstance(query, dict):
        query = list(query.values())
    if isinstance(query, list) and not NUMBERS.issuperset(map(type, query)):
        for part in query:
            _check_texts(part)
    if not isinstance(query, str):
        return
    if len(query) > _TEXT:
        raise OptionError(f"query must have at most {_TEXT:,} characters, got {len(query):,}. Shorten it.")
    if not query.isascii():
        marks = max((len(list(run)) for mark, run in groupby(map(combining, query), bool) if mark), default=0)
        if marks > _MARKS:
            raise OptionError(f"query must have at most {_MARKS} accents on a letter, got {marks:,}. Remove some.")


def read_search(fields: Mapping[str, Any], limits: Limits, queries: list[object] | None = None) -> Search:
    """Return the search in the fields of a request.

    Args:
        fields: the names and values.
        limits: the limits of the server.
        queries: the queries, if they are not among the fields.

    Raises:
        OptionError: A field is unknown, missing, has another type or is beyond a limit.
    """
    reader = _Reader(fields)
    single = False
    if queries is None:
        single, queries = reader.queries()
    _check_count(queries, limits)
    texts = []
    for query in queries:
        if not isinstance(query, str) or not query.strip() or len(query) > _TEXT:
            raise OptionError(
                f"query must be a text with at least one word and at most {_TEXT:,} characters, got "
                f"{str(query)[:40]!r}. Write the words to search."
            )
        _check_texts(query)
        texts.append(query)
    top, mix = reader.integer("top", 1, limits.rows), reader.number("mix")
    temperature, contributions = reader.number("temperature"), reader.boolean("contributions")
    reader.finish()
    if mix is not None and not 0 <= mix <= 1:
        raise OptionError(f"mix must be from 0 to 1, got {mix}. 0 uses BM25 alone, 1 vectors alone.")
    if temperature is not None and not TEMPERATURES[0] <= temperature <= TEMPERATURES[1]:
        raise OptionError(
            f"temperature must be from {TEMPERATURES[0]:g} to {TEMPERATURES[1]:g}, got {temperature}. A small one "
            "concentrates the weights."
        )
    return Search(
        tuple(texts),
        single,
        10 if top is None else top,
        mix,
        1.0 if temperature is None else temperature,
        contributions is not False,
    )


def _check_count(queries: list[object], limits: Limits) -> None:
    if len(queries) > limits.queries:
        raise OptionError(
            f"queries must have at most {limits.queries:,} elements, got {len(queries):,}. Send several requests."
        )


class _Reader:
    """Reads fields by name and type, and finds those that nobody reads."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = fields
        self.read: set[str] = set()

    def queries(self) -> tuple[bool, list[object]]:
        """Return whether a single query is given, and the queries."""
        if ("query" in self.fields) == ("queries" in self.fields):
            found = "both" if "query" in self.fields else "neither"
            raise OptionError(f"query or queries must be given, got {found}. Write one of them.")
        self.read |= {"query", "queries"}
        if "query" in self.fields:
            return True, [self.fields["query"]]
        queries = self.fields["queries"]
        if not isinstance(queries, list):
            raise OptionError("queries must be a list, got another type. Write query for a single query.")
        return False, queries

    def text(self, name: str) -> str | None:
        """Return a text; None if it is not given."""
        value = self._field(name, lambda value: isinstance(value, str), "a text")
        if isinstance(value, str) and len(value) > _TEXT:
            raise OptionError(f"{name} must have at most {_TEXT:,} characters, got {len(value):,}. Shorten it.")
        return value  # type: ignore[no-any-return]

    def boolean(self, name: str) -> bool | None:
        """Return a boolean; None if it is not given."""
        return self._field(name, lambda value: isinstance(value, bool), "true or false")  # type: ignore[no-any-return]

    def number(self, name: str) -> float | None:
        """Return a finite number; None if it is not given."""
        value = self._field(name, _is_number, "a finite number")
        return None if value is None else float(value)

    def integer(self, name: str, least: int, largest: int) -> int | None:
        """Return an integer; None if it is not given."""

        def fits(value: object) -> bool:
            return _is_number(value) and value == int(value) and least <= value <= largest  # type: ignore

        value = self._field(name, fits, f"an integer from {least:,} to {largest:,}")
        return None if value is None else int(value)

    def finish(self) -> None:
        """Raise an `OptionError` if a field has not been read."""
        unknown = [name for name in self.fields if name not in self.read]
        if unknown:
            raise OptionError(f"fields must be {', '.join(sorted(self.read))}, got {unknown[0][:40]!r}. Remove it.")

    def _field(self, name: str, fits: Callable[[object], bool], kind: str) -> Any:
        self.read.add(name)
        value = self.fields.get(name)
        if value is not None and not fits(value):
            raise OptionError(f"{name} must be {kind}, got {str(value)[:40]!r}. Correct or omit it.")
        return value


def _is_number(value: object) -> bool:
    """Return whether a value is an integer or a float that a float64 holds as a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1.7e308
