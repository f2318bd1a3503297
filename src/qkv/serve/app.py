"""The ASGI application of `qkv serve`: routes that read requests, wait for their scan and write responses."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qkv.core.request_guard import ambiguous_reason, cross_site_reason
from qkv.errors import QkvError, RefusedError
from qkv.serve import arrow_bodies
from qkv.serve.answers import EXACT, EvidenceRows, answer_bytes, arrow_bytes, describe_store, exact_bytes, hits_object
from qkv.serve.limits import Limits, RequestError, status_of
from qkv.serve.openapi import openapi_document
from qkv.serve.questions import (
    Option,
    Question,
    Search,
    Work,
    ask_options,
    parse_json_body,
    read_question,
    read_search,
    search_options,
)
from qkv.serve.served_store import Answered, ServedStore
from qkv.serve.tokens import matches

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 8192)


class Metrics:
    """Counters of requests, queries and scans, in a registry of their own."""

    def __init__(self, served: ServedStore) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "qkv_requests", "Requests by route and status.", ["route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "qkv_request_seconds", "Seconds until a response.", ["route"], registry=self.registry, buckets=_SECONDS
        )
        self.queries = Counter("qkv_queries", "Queries that scans answered.", registry=self.registry)
        self.scans = Histogram("qkv_scan_queries", "Queries per scan.", registry=self.registry, buckets=_QUERIES)
        self.active = Gauge("qkv_active_requests", "Requests being answered or waiting.", registry=self.registry)
        waiting = Gauge("qkv_waiting_requests", "Requests that wait for the next scan.", registry=self.registry)
        waiting.set_function(lambda: len(served.queue))
        version = Gauge("qkv_store_version", "Version of the store that answers.", registry=self.registry)
        version.set_function(lambda: served.version or 0)
        stale = Gauge("qkv_store_stale", "1 if the newest version cannot be opened.", registry=self.registry)
        stale.set_function(lambda: float(bool(served.problem)))
        ProcessCollector(registry=self.registry)
        served.observe = self.observe_scan

    def observe_scan(self, requests: int, queries: int) -> None:
        """Count a scan with its queries."""
        self.queries.inc(queries)
        self.scans.observe(queries)

    def observe_request(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self) -> tuple[bytes, str]:
        """Return the page of the metrics and its media type."""
        return generate_latest(self.registry), "text/plain; version=0.0.4; charset=utf-8"


def content_type(header: str, known: Sequence[str]) -> str:
    """Return the media type of a body.

    Raises:
        RequestError: The type is none of `known`, or its text is not UTF-8 (415).

    Example:
        >>> content_type("application/json; charset=utf-8", ("application/json",))
        'application/json'
    """
    kind, *parameters = (part.strip().lower() for part in header.split(";"))
    charsets = [part.partition("=")[2].strip('" ') for part in parameters if part.startswith("charset")]
    if kind not in known or any(charset not in ("utf-8", "utf8") for charset in charsets):
        raise RequestError(415, f"Content-Type must be {' or '.join(known)}, got {header[:80]!r}. Send one of them.")
    return kind


def choose_type(header: str, offered: Sequence[str]) -> str:
    """Return the media type that an Accept header prefers, the first one if it does not matter.

    Raises:
        RequestError: None of `offered` is accepted (406).

    Example:
        >>> choose_type("text/html, */*;q=0.5", ("application/json", "text/csv"))
        'application/json'
        >>> choose_type("application/json;q=0.5, text/csv", ("application/json", "text/csv"))
        'text/csv'
    """
    if not header.strip():
        return offered[0]
    shares = [(_share(header, kind), kind) for kind in offered]
    best, kind = max(shares, key=lambda pair: pair[0])
    if best <= 0:
        raise RequestError(406, f"Accept must be {' or '.join(offered)}, got {header[:80]!r}. Accept one of them.")
    return kind


def _share(header: str, kind: str) -> float:
    """Return the quality that an Accept header gives to a media type by its most specific range."""
    found: tuple[int, float] = (-1, 0.0)
    for item in header.lower().split(","):
        name, *parameters = (part.strip() for part in item.split(";"))
        ranges = ("*/*", f"{kind.split('/')[0]}/*", kind)
        if name not in ranges:
            continue
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    quality = float(parameter[2:])
                except ValueError:
                    quality = 0.0
        found = max(found, (ranges.index(name), quality))
    return found[1]


_HEADERS = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
_LONGEST_PATH = 500


def error_bytes(message: str, kind: str = "ServerError") -> bytes:
    """Return the body of a refusal: a sentence, and the name of an error class of qkv.

    Example:
        >>> error_bytes("the query is missing", "QueryError")
        b'{"error": "the query is missing", "type": "QueryError"}'
    """
    return json.dumps({"error": " ".join(message.split()), "type": kind}, ensure_ascii=False).encode("utf-8", "replace")


class Gate:
    """ASGI middleware that checks who sends a request, and counts requests by route and status.

    Args:
        app: the application that answers.
        metrics: the counters.
        token: the token that requests must have; None: none.
        hosts: accepted values of the Host header without a token; None: any.
        routes: names of the routes in the counters.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        token: str | None,
        hosts: Collection[str] | None,
        routes: Collection[str] = (),
    ) -> None:
        self.app, self.metrics = app, metrics
        self.token, self.hosts, self.routes = token, hosts, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or refuse a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500
        route = scope["path"] if scope["path"] in self.routes else "other"

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *_HEADERS]
            await send(message)

        names = [name.lower() for name, _ in scope["headers"]]
        try:
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
            reason = ambiguous_reason(names)
            ambiguous = (400, f"{reason}. Correct the request.", {"Connection": "close"}) if reason else None
            refused = ambiguous or self._refusal(scope, headers)
            if refused is None:
                await self.app(scope, receive, send_counted)
            else:
                if ambiguous:
                    with suppress(TimeoutError, ClientDisconnect):
                        await _read_body(Request(scope, receive), 0, _INLINE_BYTES, 1.0)
                await _refuse(send_counted, *refused)
        finally:
            self.metrics.observe_request(route, status, time.perf_counter() - started)

    def _refusal(self, scope: Scope, headers: Mapping[str, str]) -> tuple[int, str, dict[str, str]] | None:
        """Return the status, the reason and headers of a refusal; None for a request that is answered."""
        path: str = scope["path"]
        if len(path) > _LONGEST_PATH:
            return 414, f"the path must have at most {_LONGEST_PATH} characters, got {len(path):,}.", {}
        if self.token is not None:
            if path != "/health" and not matches(headers.get("authorization", ""), self.token):
                reason = "the Authorization header must be Bearer and the token of the server, got another or none."
                return 401, reason, {"WWW-Authenticate": "Bearer"}
        elif self.hosts is not None and (reason := cross_site_reason(headers, self.hosts)):
            return 403, f"{reason}. Send requests from a program on this machine.", {}
        return None


async def _read_body(request: Request, most: int, received: int, seconds: float) -> bytes | None:
    """Return the body of a request, or None if it has more than `most` bytes, of which at most `received` are read.

    A client that sends on a closed connection may not see the response, so that bytes are read to be discarded.

    Raises:
        TimeoutError: the body does not arrive in time.
        ClientDisconnect: the client closes the connection.
    """
    parts, size = [], 0
    async with asyncio.timeout(seconds):
        async for part in request.stream():
            size += len(part)
            if size <= most:
                parts.append(part)
            elif size > received:
                break
    return b"".join(parts) if size <= most else None


async def _refuse(send: Send, status: int, reason: str, headers: Mapping[str, str]) -> None:
    body = error_bytes(reason)
    sent = {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}
    raw = [(name.lower().encode(), value.encode()) for name, value in sent.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


_JSON, _ARROW = "application/json", arrow_bodies.MEDIA_TYPE
_INLINE = 256
"""Largest number of queries and rows whose answers are written by the event loop, some 20 µs each."""
_INLINE_BYTES = 2**16
"""Largest size of a body that is read by the event loop."""
_PIECE, _EVIDENCE, _UNSENT = 2**18, 8, 32
"""Bytes of an answer that are sent at once; most bytes of evidence, and of large answers that clients have not read, in
units of the largest body."""
_BYTES_PER_VALUE = 16
"""Bytes of the largest body for each value that a JSON body may have."""
_WATCHED = 0.05
"""Seconds after which the connection of a request that is not answered yet is watched."""
_DISCARDED = 16
"""Largest body that is read to its end and discarded, in largest bodies."""
_Result = TypeVar("_Result")
Handler = Callable[[Request], Awaitable[Response]]


def create_app(
    served: ServedStore, *, limits: Limits | None = None, token: str | None = None, hosts: Collection[str] | None = None
) -> ASGIApp:
    """Create the ASGI application that answers questions to a store.

    Args:
        served: the store, which is not closed with the application.
        limits: the limits of requests; None: the defaults of `Limits`.
        token: the token that all requests but `GET /health` must have; None: none.
        hosts: accepted values of the Host header without a token, such as `{"127.0.0.1:8000"}`; None: any.

    Raises:
        MissingPackageError: starlette or prometheus_client is not installed.

    Example:
        >>> from qkv.database import Database
        >>> table = {"years": [1, 2, 3], "pay": [10, 12, 14]}
        >>> with ServedStore(Database.open(table, key="years", value="pay")) as served:
        ...     app = create_app(served)
    """
    routes = _Routes(served, limits or Limits(), Metrics(served))
    posts = {"/ask": routes.ask, "/search": routes.search, "/explain": routes.explain}
    gets = {"/health": routes.health, "/store": routes.store, "/metrics": routes.metrics_page}
    gets["/openapi.json"] = routes.openapi
    every = [Route(path, routes.guarded(handler), methods=["POST"]) for path, handler in posts.items()]
    every += [Route(path, handler, methods=["GET"]) for path, handler in gets.items()]
    app = Starlette(routes=every, exception_handlers={HTTPException: _http_error, Exception: _bug})
    return Gate(app, routes.metrics, token, hosts, routes={*posts, *gets})


class _Routes:
    """The handlers of an application, with their limits, metrics and counts of requests."""

    def __init__(self, served: ServedStore, limits: Limits, metrics: Metrics) -> None:
        self.served, self.limits, self.metrics = served, limits, metrics
        self.active = self.unsent = 0

    # -- POST -------------------------------------------------------------------------------------------

    async def ask(self, request: Request) -> Response:
        """Answer queries; see `Question`."""
        media_type = choose_type(request.headers.get("accept", ""), (_JSON, _ARROW, EXACT))
        answered = await self._answer(request, await self._question(request))
        write = {_JSON: answer_bytes, EXACT: exact_bytes, _ARROW: arrow_bytes}[media_type]
        return await self._written(request, answered, lambda: write(answered), media_type)

    async def explain(self, request: Request) -> Response:
        """Answer queries as `ask` does, and return the plan and the notes instead of the answers."""
        media_type = choose_type(request.headers.get("accept", ""), (_JSON,))
        answered = await self._answer(request, await self._question(request))
        answer = answered.answer
        assert answer is not None
        found = {"plan": str(answer.plan), "notes": list(answer.notes), "version": answered.version}
        return await self._written(request, answered, lambda: _dump(found), media_type)

    async def search(self, request: Request) -> Response:
        """Search passages; see `Search`."""
        if self.served.index is None:
            raise RequestError(404, "no search index is served. Start the server with --index.")
        media_type = choose_type(request.headers.get("accept", ""), (_JSON,))
        answered = await self._answer(request, await self._request(request, read_search, search_options, ("query",)))
        return await self._written(request, answered, lambda: _dump(hits_object(answered)), media_type)

    # -- GET --------------------------------------------------------------------------------------------

    async def health(self, _: Request) -> Response:
        """Return whether the server answers from the newest version."""
        return _json({"status": "stale" if self.served.problem else "ok", "version": self.served.version})

    def store(self, _: Request) -> Response:
        """Return the columns of the store, its rows and its version."""
        return _json(describe_store(self.served, self.limits))

    async def metrics_page(self, _: Request) -> Response:
        """Return the counters in the format of Prometheus."""
        body, media_type = self.metrics.text()
        return Response(body, media_type=media_type)

    async def openapi(self, _: Request) -> Response:
        """Return the description of all routes."""
        return _json(openapi_document(self.limits))

    # -- private ----------------------------------------------------------------------------------------

    def guarded(self, handler: Handler) -> Handler:
        """Return a handler that refuses requests beyond the limit of concurrency, and turns errors into responses."""

        async def run(request: Request) -> Response:
            if self.active >= self.limits.waiting:
                message = f"at most {self.limits.waiting:,} requests are answered at the same time. Repeat it later."
                return _error(RequestError(429, message, {"Retry-After": "1"}))
            self.active += 1
            self.metrics.active.set(self.active)
            request.scope["qkv.started"] = time.monotonic()
            try:
                return await handler(request)
            except RequestError as error:
                return _error(error)
            except QkvError as error:
                return _error(RequestError(status_of(error), str(error)), type(error).__name__)
            finally:
                self.active -= 1
                self.metrics.active.set(self.active)

        return run

    async def _question(self, request: Request) -> Question:
        database = self.served.database
        if database is None:
            raise RequestError(404, "no store is served, but a search index alone. Ask it by POST /search.")
        return await self._request(request, read_question, ask_options, database.key)

    async def _request(
        self,
        request: Request,
        read: Callable[..., _Result],
        options: Callable[[Limits], Sequence[Option]],
        names: Sequence[str],
    ) -> _Result:
        """Return the question or the search in a request, whose body is JSON, or Arrow beside options in the URL."""
        kind, body = await self._body(request)

        def read_body() -> _Result:
            if kind == _JSON:
                return read(self._from_body(request, body), self.limits)
            queries = arrow_bodies.read_queries(body, names, self.limits.queries)
            return read(_from_url(request, options(self.limits)), self.limits, queries)

        return await self._run(request, read_body, len(body) <= _INLINE_BYTES)

    async def _body(self, request: Request) -> tuple[str, bytes]:
        """Return the media type and the bytes of the body of a request."""
        headers = request.headers
        kind = content_type(headers.get("content-type", ""), (_JSON, _ARROW))
        if headers.get("content-encoding", "identity") != "identity":
            raise RequestError(415, "the body must have no Content-Encoding. Send it without compression.")
        length = headers.get("content-length", "")
        most = self.limits.body
        large = length.isdigit() and int(length) > most
        if large and "expect" in headers:  # the client sends the body after it is told to continue
            raise _too_large(self.limits)
        try:
            body = await _read_body(request, 0 if large else most, _DISCARDED * most, self._remaining(request))
        except TimeoutError:
            raise RequestError(
                408, f"the body must arrive within {self.limits.seconds:g} seconds. Send it faster."
            ) from None
        except ClientDisconnect:
            raise RequestError(499, "the client must send the whole body, but closed the connection.") from None
        if body is None:
            raise _too_large(self.limits)
        return kind, body

    def _remaining(self, request: Request) -> float:
        started: float = request.scope["qkv.started"]
        return max(0.0, started + self.limits.seconds - time.monotonic())

    async def _answer(self, request: Request, question: Question | Search | Work) -> Answered:
        """Wait for the scan that answers a request; it is cancelled if it takes too long, or the client is gone."""
        try:
            future = self.served.submit(question)
        except RuntimeError as error:
            if isinstance(error, RefusedError):
                raise
            raise RequestError(503, "the server is stopping. Ask another server.") from None
        answer = asyncio.wrap_future(future)
        try:
            async with asyncio.timeout(self._remaining(request)):
                if not (await asyncio.wait([answer], timeout=_WATCHED))[0]:
                    gone = asyncio.ensure_future(_disconnection(request))
                    either: list[asyncio.Future[Any]] = [answer, gone]
                    try:
                        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        gone.cancel()
                if not answer.done():
                    raise RequestError(499, "the client must wait for the answer, but closed the connection. Wait.")
                return answer.result()
        except TimeoutError:
            raise RequestError(
                504, f"the answer took more than {self.limits.seconds:g} seconds. Ask fewer queries, or wait longer."
            ) from None
        finally:
            answer.cancel()

    async def _run(self, request: Request, function: Callable[[], _Result], inline: bool) -> _Result:
        """Return the result of a function, which takes turns with the scans unless it takes little time."""
        if inline:
            return function()
        results: list[_Result] = []
        await self._answer(request, Work(lambda: results.append(function())))
        return results[0]

    async def _written(
        self, request: Request, answered: Answered, write: Callable[[], bytes], media_type: str
    ) -> Response:
        """Return a response whose body is written in turn with the scans if it is large."""
        answer, most = answered.answer, self.limits.body
        size = len(answered.hits) if answer is None else len(answer)
        if answer is not None and isinstance(table := answer.table, EvidenceRows):
            rows = sum(len(entry.rows) for entry in answer.entries)
            size += rows
            if rows * table.row_bytes > _EVIDENCE * most:
                raise RequestError(
                    422,
                    f"the rows of evidence must have at most {_EVIDENCE * most:,} bytes, eight times --max-body, got "
                    f"{rows:,} rows of {table.row_bytes:,.0f} bytes. Ask fewer queries, or give a smaller top.",
                )
        body = await self._run(request, write, size <= _INLINE)
        headers = {} if answered.version is None else {"Qkv-Version": str(answered.version)}
        if len(body) <= 4 * _PIECE:
            return Response(body, headers=headers, media_type=media_type)
        if self.unsent + len(body) > _UNSENT * most:
            message = "too many large answers wait for their clients to read them. Repeat it later."
            raise RequestError(429, message, {"Retry-After": "1"})
        headers["Content-Length"] = str(len(body))
        return StreamingResponse(self._pieces(body), headers=headers, media_type=media_type)

    async def _pieces(self, body: bytes) -> AsyncIterator[bytes]:
        self.unsent += len(body)
        try:
            for start in range(0, len(body), _PIECE):
                yield body[start : start + _PIECE]
        finally:
            self.unsent -= len(body)

    def _from_body(self, request: Request, body: bytes) -> dict[str, object]:
        """Return the fields in a JSON body."""
        if request.url.query:
            raise RequestError(422, "options must be in the JSON body, got some in the URL. Write them into the body.")
        values, most = sum(map(body.count, (b",", b"[", b"{"))), self.limits.body // _BYTES_PER_VALUE
        if values > most:
            raise RequestError(
                413,
                f"the body must have at most {most:,} values in JSON, for a --max-body of {self.limits.body:,} bytes, "
                f"got {values:,}. Send several requests, or an Arrow stream.",
            )
        return parse_json_body(body)


async def _disconnection(request: Request) -> None:
    """Return when the client of a request whose body has been read closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _from_url(request: Request, options: Sequence[Option]) -> dict[str, object]:
    """Return the options in the query of a URL, where they are if the body is an Arrow stream."""
    found: dict[str, object] = {}
    kinds = {option.name: option.kind for option in options}
    for name, text in request.query_params.multi_items():
        if name in found:
            raise RequestError(422, f"{name[:40]} must be given once in the URL, got it repeatedly. Give it once.")
        try:
            kind = kinds.get(name, str)
            found[name] = {"true": True, "false": False}[text] if kind is bool else kind(text)
        except (KeyError, ValueError):
            noun = "an integer" if kind is int else "a number" if kind is float else "true or false"
            raise RequestError(422, f"{name} must be {noun} in the URL, got {text[:40]!r}. Correct it.") from None
    return found


def _too_large(limits: Limits) -> RequestError:
    return RequestError(
        413,
        f"the body must have at most {limits.body:,} bytes, got more. Send several requests.",
        {"Connection": "close"},
    )


def _dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def _json(value: object) -> Response:
    return Response(_dump(value), media_type=_JSON)


def _error(error: RequestError, kind: str = "ServerError") -> Response:
    return Response(error_bytes(str(error), kind), error.status, error.headers, media_type=_JSON)


async def _http_error(_: Request, error: Any) -> Response:
    """Return the response for a route or a method that does not exist."""
    messages = {404: "the path must be one of GET /openapi.json, got another.", 405: "the method is not allowed here."}
    message = messages.get(error.status_code, f"{error.detail}.")
    return _error(RequestError(error.status_code, message, dict(error.headers or {})))


async def _bug(_: Request, error: Exception) -> Response:
    """Return the response for an error that is no error of qkv; the server prints its traceback."""
    return _error(RequestError(500, f"this is a bug in qkv: {type(error).__name__}. The server printed a traceback."))
