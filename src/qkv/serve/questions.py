"""What requests ask: the classes `Question` and `Search`, and how their fields are read from JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any, NamedTuple
from unicodedata import combining

from qkv.core.checks import check_choice
from qkv.core.progress import checkpoint
from qkv.core.untrusted_json import NUMBERS
from qkv.database.execute.ask_options import AGGREGATES
from qkv.errors import OptionError, QueryError
from qkv.serve.limits import Limits
from qkv.serve.typed_json import decode

_LARGEST = 1.7e308
"""Largest number that a float64 holds with a margin for rounding."""
_TEXT = 10_000
"""Largest number of characters of an option, such as a predicate."""
_MARKS = 30
"""Largest number of accents on a letter, as in the Stream-Safe Text Format of Unicode."""
_QUERIES_OF_MOST_ROWS = 100
"""Number of queries that may have the largest number of rows of evidence."""
_DEEPEST = 32
"""Largest number of lists and objects within one another in a body."""


class Option(NamedTuple):
    """An option of a request, by which its JSON is read and described.

    Attributes:
        name: the name.
        kind: the type.
        least, largest: the bounds of a number.
        choices: the values of a text; empty for any.
        default: the default, if it is none that the store chooses.
        hint: the last sentence of the error for a number out of bounds.
        description: what the text means.
    """

    name: str
    kind: type[str] | type[bool] | type[int] | type[float]
    least: float = -_LARGEST
    largest: float = _LARGEST
    choices: tuple[str, ...] = ()
    default: object = None
    hint: str = ""
    description: str = ""

    def read(self, value: Any) -> Any:
        """Return a value of a request as `kind`; None for None."""
        if value is None:
            return None
        nouns: dict[type, str] = {str: "a text", bool: "true or false", float: "a finite number"}
        noun = nouns.get(self.kind, f"an integer from {self.least:,} to {self.largest:,}")
        number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST
        fits = number if self.kind in (int, float) else isinstance(value, self.kind)
        if not fits or (self.kind is int and not (value == int(value) and self.least <= value <= self.largest)):
            raise OptionError(f"{self.name} must be {noun}, got {str(value)[:40]!r}. Correct or omit it.")
        if self.kind is str and len(value) > _TEXT:
            raise OptionError(f"{self.name} must have at most {_TEXT:,} characters, got {len(value):,}. Shorten it.")
        if self.choices:
            check_choice(self.name, value, self.choices)
        if self.hint and not self.least <= value <= self.largest:
            raise OptionError(f"{self.name} must be from {self.least:g} to {self.largest:g}, got {value}. {self.hint}")
        return self.kind(value)

    def schema(self) -> dict[str, object]:
        """Return the JSON schema of the option."""
        kinds: dict[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}
        found: dict[str, object] = {"type": kinds[self.kind]}
        if self.kind in (int, float):
            found |= {"minimum": self.least, "maximum": self.largest}
        elif self.kind is str:
            found |= {"enum": list(self.choices)} if self.choices else {"maxLength": _TEXT}
        more = {"default": self.default, "description": self.description or None}
        return found | {name: value for name, value in more.items() if value is not None}


@lru_cache(maxsize=16)
def ask_options(limits: Limits) -> tuple[Option, ...]:
    """Return the options of `Database.ask` that a request may have, in alphabetical order."""
    return (
        Option("aggregate", str, choices=AGGREGATES),
        Option("max_distance", float),
        Option("min_similarity", float),
        Option("normalizer", str),
        Option("on_bad_query", str, choices=("refuse", "report"), default="refuse"),
        Option("printed", bool, default=False),
        Option("score", str),
        Option("seed", int, 0, 2**63 - 1),
        Option("top", int, 1, limits.rows, default=10),
        Option("where", str, description="A SQL predicate over the columns of the table."),
    )


@lru_cache(maxsize=16)
def search_options(limits: Limits) -> tuple[Option, ...]:
    """Return the options of `Index.search` that a request may have, in alphabetical order."""
    return (
        Option("contributions", bool, default=True),
        Option("mix", float, 0, 1, hint="0 uses BM25 alone, 1 vectors alone."),
        # With these bounds, float32 neither overflows nor loses scores.
        Option("temperature", float, 1e-3, 1e6, default=1.0, hint="A small one concentrates the weights."),
        Option("top", int, 1, limits.rows, default=10),
    )


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
    contributions: bool = True

    @cached_property
    def group(self) -> tuple[object, ...]:
        """Searches with the same group take about the same time, and are run one after the other."""
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
        """The group of this request alone, because it is not answered together with others."""
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


def parse_json_body(body: bytes) -> dict[str, object]:
    """Return the object in a body of JSON.

    Raises:
        QueryError: The body is no JSON object in UTF-8, is nested too deeply, has a name twice, or has a number or text
            that JSON does not allow.

    Example:
        >>> parse_json_body(b'{"query": "Li"}')
        {'query': 'Li'}
    """
    reason = ""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_record)
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
    found: dict[str, object] = value
    return found


def _record(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name[:40]!r} repeatedly")
        found[name] = value
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

    Example:
        >>> question = read_question({"query": 3.5, "score": "boxcar:1"}, Limits())
        >>> question.queries, question.single, dict(question.options)
        ((3.5,), True, {'score': 'boxcar:1'})
    """
    single, queries, options = _read(fields, ask_options(limits), limits, queries)
    if len(queries) * (options["top"] or 10) > limits.rows * _QUERIES_OF_MOST_ROWS:
        raise OptionError(
            f"queries times top must be at most {limits.rows * _QUERIES_OF_MOST_ROWS:,}, {_QUERIES_OF_MOST_ROWS} times "
            f"--max-rows, got {len(queries):,} queries with {options['top'] or 10:,} rows. Ask fewer of them."
        )
    on_bad_query, options["printed"] = options.pop("on_bad_query") or "refuse", options["printed"] or None
    given = tuple((name, value) for name, value in options.items() if value is not None)
    return Question(tuple(map(_decode, queries)), single, on_bad_query, given)


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
    """Return the search in the fields of a request."""
    single, queries, options = _read(fields, search_options(limits), limits, queries)
    texts = []
    for query in queries:
        if not isinstance(query, str) or not query.strip() or len(query) > _TEXT:
            raise OptionError(
                f"query must be a text with at least one word and at most {_TEXT:,} characters, got "
                f"{str(query)[:40]!r}. Write the words to search."
            )
        _check_texts(query)
        texts.append(query)
    given = {name: value for name, value in options.items() if value is not None}
    return Search(tuple(texts), single, **given)


def _read(
    fields: Mapping[str, Any], options: Sequence[Option], limits: Limits, queries: list[object] | None
) -> tuple[bool, list[object], dict[str, Any]]:
    """Return whether a single query is given, the queries, and the value of each option; None if it is not given.

    Raises:
        OptionError: A field is unknown, missing, has another type or is beyond a limit.
    """
    single, names = False, {option.name for option in options}
    if queries is None:
        names |= {"query", "queries"}
        single = "query" in fields
        if single == ("queries" in fields):
            raise OptionError(
                f"query or queries must be given, got {'both' if single else 'neither'}. Write one of them."
            )
        queries = [fields["query"]] if single else fields["queries"]
        if not isinstance(queries, list):
            raise OptionError("queries must be a list, got another type. Write query for a single query.")
    if len(queries) > limits.queries:
        raise OptionError(
            f"queries must have at most {limits.queries:,} elements, got {len(queries):,}. Send several requests."
        )
    values = {option.name: option.read(fields.get(option.name)) for option in options}
    unknown = [name for name in fields if name not in names]
    if unknown:
        raise OptionError(f"fields must be {', '.join(sorted(names))}, got {unknown[0][:40]!r}. Remove it.")
    return single, queries, values
