"""The class `Client`, which asks a server with the interface of `Database` and returns its answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import httpx

from qkv import errors
from qkv.core.checks import describe
from qkv.database.answer import Answer
from qkv.database.execute.ask_options import AskOptions
from qkv.database.keys.queries import display_form, split_queries
from qkv.errors import KindError, QkvError, ServerError
from qkv.serve.answers import EXACT, read_exact
from qkv.serve.typed_json import encode

_JSON = "application/json"


@dataclass(frozen=True)
class _KeyColumn:
    """The name and the kind of a key column, by which queries are told from the parts of a query."""

    name: str
    kind: str


class Client:
    """A connection to `qkv serve` that answers as the served database does.

    `ask` takes the arguments of `Database.ask`, except objects that are no texts or numbers (a mask, a score, a
    normalizer), and returns an equal `Answer`; its `plan` is the text of the plan, and its table holds the rows of
    evidence. Several threads can use a client at the same time.

    Args:
        url: the address of the server, such as "http://127.0.0.1:8000".
        token: the token of the server; None: none.
        timeout: seconds until a request fails without a response.

    Attributes:
        key: the names of the key columns.
        value: the name of the value column.
        name: the name of the store.
        votes: whether an answer is a vote rather than an average, as in `Database`.
        version: the version of the store that the last answer used; None if the server has a table in memory.

    Raises:
        ServerError: The server cannot be reached, or refuses the token.
        MissingPackageError: httpx is not installed.

    Example:
        >>> from qkv.database import Database
        >>> from qkv.serve import ServedStore, serve_in_thread
        >>> table = {"name": ["John Doe", "Li Mu"], "income": [1000, 2000]}
        >>> with ServedStore(Database.open(table, key="name", value="income")) as served:
        ...     with serve_in_thread(served) as address, Client(address) as people:
        ...         answer = people.ask("Jon Doe")
        >>> round(answer.value), answer.rows[0].record["name"]
        (1000, 'John Doe')
    """

    key: tuple[str, ...]
    value: str
    name: str
    votes: bool
    version: int | None

    def __init__(self, url: str, *, token: str | None = None, timeout: float = 60.0) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        # Proxies of the environment are for other hosts, and would see the token.
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout, trust_env=False)
        self._url = url
        self._columns: tuple[_KeyColumn, ...] = ()
        self._rows = 0
        try:
            self.refresh()
        except QkvError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __len__(self) -> int:
        """Return the number of rows that have a value in every key column and in the value column."""
        self.refresh()
        return self._rows

    def __repr__(self) -> str:
        return f"Client({self._url}: {self.name}: {', '.join(self.key)} → {self.value})"

    def ask(
        self,
        queries: object,
        *,
        score: str | None = None,
        normalizer: str | None = None,
        where: str | None = None,
        top: int = 10,
        min_similarity: float | None = None,
        max_distance: float | None = None,
        seed: int | None = None,
        on_bad_query: str = "refuse",
        aggregate: str | None = None,
        printed: bool = False,
    ) -> Answer:
        """Answer one or more queries as `Database.ask` does.

        Args:
            queries: as in `Database.ask`.
            score: the name of a score, as in `Database.ask`.
            normalizer: the name of a normalizer, as in `Database.ask`.
            where: as in `Database.ask`.
            top: as in `Database.ask`.
            min_similarity: as in `Database.ask`.
            max_distance: as in `Database.ask`.
            seed: as in `Database.ask`.
            on_bad_query: as in `Database.ask`.
            aggregate: as in `Database.ask`.
            printed: as in `Database.ask`.

        Raises:
            QkvError: The error of `Database.ask`.
            ServerError: The server cannot be reached or refuses the request; `status` is that of HTTP.
        """
        limits = min_similarity, max_distance
        options = AskOptions(score, normalizer, None, where, top, *limits, seed, None, on_bad_query, aggregate, printed)
        given, response = self._send_question("/ask", queries, options, EXACT)
        answer, self.version = read_exact(response.content, given)
        return answer

    def explain(
        self,
        queries: object,
        *,
        score: str | None = None,
        normalizer: str | None = None,
        where: str | None = None,
        top: int = 10,
        min_similarity: float | None = None,
        max_distance: float | None = None,
        seed: int | None = None,
        on_bad_query: str = "refuse",
        aggregate: str | None = None,
        printed: bool = False,
    ) -> str:
        """Answer queries, and return the plan by which the server did it, as text. The arguments are those of `ask`."""
        limits = min_similarity, max_distance
        options = AskOptions(score, normalizer, None, where, top, *limits, seed, None, on_bad_query, aggregate, printed)
        _, response = self._send_question("/explain", queries, options)
        return str(response.json()["plan"])

    def search(
        self,
        query: str | Sequence[str],
        top: int = 10,
        *,
        mix: float | None = None,
        temperature: float = 1.0,
        contributions: bool = True,
    ) -> list[Any]:
        """Return the passages that the index of the server finds, each as a dictionary; one list per query of a list.

        Args:
            query: a text, or a list of texts.
            top: as in `Index.search`.
            mix: as in `Index.search`.
            temperature: as in `Index.search`.
            contributions: as in `Index.search`.

        Raises:
            OptionError: A query is empty, or a number is out of range.
            ServerError: The server has no index, cannot be reached or refuses the request.
        """
        single = isinstance(query, str)
        fields: dict[str, object] = {"query": query} if single else {"queries": list(query)}
        fields |= {"top": top, "temperature": temperature, "contributions": contributions}
        if mix is not None:
            fields["mix"] = mix
        results = self._send("POST", "/search", fields).json()["results"]
        return list(results[0]) if single else results

    def refresh(self) -> bool:
        """Ask the server for its version, and return whether it changed since the last answer."""
        found = self._send("GET", "/store").json()
        database = found["database"] or {"name": "", "key": [], "value": {"name": ""}, "votes": False, "rows": 0}
        before = getattr(self, "version", None)
        self._columns = tuple(_KeyColumn(column["name"], column["kind"]) for column in database["key"])
        self.key = tuple(column.name for column in self._columns)
        self.value, self.name = database["value"]["name"], database["name"]
        self.votes, self._rows = database["votes"], database["rows"]
        self.version = database.get("version")
        return self.version != before

    # -- private ----------------------------------------------------------------------------------------

    def _send_question(
        self, path: str, queries: object, options: AskOptions, accept: str = _JSON
    ) -> tuple[tuple[object, ...], httpx.Response]:
        """Return the queries as answers show them, and the response to them; see `_send`."""
        if options.on_bad_query == "report" and isinstance(queries, list):
            given, single = list(queries), False
        else:
            given, single = split_queries(queries, self._columns)  # type: ignore[arg-type]
        shown = tuple(display_form(query, self.key) for query in given)
        sent = [encode(query) for query in given]
        asked = {"query": sent[0]} if single else {"queries": sent}
        return shown, self._send("POST", path, asked | _sent_options(options), accept)

    def _send(self, method: str, path: str, fields: object = None, accept: str = _JSON) -> httpx.Response:
        """Return the response to a request; raise the error that it names."""
        headers, body = {"Accept": accept}, None
        if fields is not None:
            headers["Content-Type"] = _JSON
            body = json.dumps(fields, ensure_ascii=False, allow_nan=False).encode("utf-8", "surrogatepass")
        try:
            response = self._http.request(method, path, content=body, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            raise ServerError(
                f"url must be the address of a running server, got {self._url!r}: {reason}. Start it with qkv serve."
            ) from None
        if response.status_code == 200:
            return response
        raise _error_of(response)


_LIMITS = ("min_similarity", "max_distance")
_OPTIONS = ("score", "normalizer", "where", "seed", *_LIMITS, "aggregate", "top", "on_bad_query")


def _sent_options(options: AskOptions) -> dict[str, object]:
    """Return the options that differ from their defaults, after checking that they can be sent."""
    for name, part in (("score", options.score), ("normalizer", options.normalizer)):
        if part is not None and not isinstance(part, str):
            raise KindError(
                f"{name} must be a name such as 'gaussian:0.1' or None, got {describe(part)}. Pass objects to the "
                "database itself."
            )
    given = {name: getattr(options, name) for name in _OPTIONS} | {"printed": options.printed or None}
    return {name: encode(value) for name, value in given.items() if value is not None}


def _error_of(response: httpx.Response) -> QkvError:
    """Return the error that a response names, or a `ServerError` with its status."""
    try:
        found = response.json()
        message, name = str(found["error"]), str(found["type"])
    except (KeyError, TypeError, ValueError):
        message, name = f"the server must answer as qkv serve does, got the status {response.status_code}.", ""
    kind = getattr(errors, name, None) if name in errors.__all__ else None
    if response.status_code in (422, 503) and kind is not None and kind is not ServerError:
        error = kind(message)
        if isinstance(error, QkvError):
            return error
    return ServerError(message, response.status_code)
