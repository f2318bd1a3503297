r"""Queries in the form in which answers print keys: control characters and white space at the ends as escapes.

The text `a\x09b` may mean the key with a tab, printed with an escape, or a key with a backslash. Both are asked, and
the one that matches better answers; the escape, if both match equally.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from qkv.core.printable import read_escapes
from qkv.database.answer import Answer, Entry
from qkv.database.keys.queries import split_text
from qkv.errors import QueryError

__all__ = ["ask_printed", "with_hints"]


def ask_printed(ask: Callable[[object], Answer], queries: object, columns: int) -> Answer:
    """Answer queries, whose texts are read with their escapes if a key matches better so.

    Args:
        ask: answers queries.
        queries: as in `Database.ask`.
        columns: the number of key columns.
    """
    answer = ask(queries)
    read = [_read(entry.query, columns) for entry in answer.entries]
    places = [place for place, entry in enumerate(answer.entries) if read[place] is not entry.query]
    if not places:
        return answer
    entries = list(answer.entries)
    for place, other in zip(places, ask([read[place] for place in places]).entries, strict=True):
        given = entries[place]
        if other.found and (not given.found or _nearness(other) >= _nearness(given)):
            entries[place] = dataclasses.replace(other, query=given.query)
    return dataclasses.replace(answer, entries=tuple(entries))


def with_hints(answer: Answer) -> Answer:
    """Return an answer in which the reasons of queries with escapes say how the escapes are read."""
    hint = "; printed=True reads the escapes in the query"
    entries = [
        entry
        if entry.found or _read(entry.query, len(answer.keys)) is entry.query
        else dataclasses.replace(entry, reason=entry.reason + hint)
        for entry in answer.entries
    ]
    return dataclasses.replace(answer, entries=tuple(entries))


def _read(query: object, columns: int) -> object:
    """Return a query with the characters that its texts hold as escapes; the query itself if it has no escapes."""
    if isinstance(query, tuple):
        parts = tuple(_read(part, 1) for part in query)
        return query if all(part is given for part, given in zip(parts, query, strict=True)) else parts
    if not isinstance(query, str) or read_escapes(query) == query:
        return query
    if columns == 1:
        return read_escapes(query)
    # The parts are separated first, as an escape may stand for a line break.
    try:
        return tuple(read_escapes(part) for part in split_text(query))
    except QueryError:
        return query


def _nearness(entry: Entry) -> float:
    """Return the similarity of the first row; 0 if keys are equal or different."""
    return 0.0 if entry.nearness is None or not len(entry.nearness) else float(entry.nearness[0])
