"""The class `Gate`, which refuses requests before they are read, and counts all of them."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from qkv.core.request_guard import ambiguous_reason, cross_site_reason
from qkv.serve.tokens import matches

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from qkv.serve.metrics import Metrics

__all__ = ["Gate", "error_bytes"]

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
        public: routes that need no token.
        routes: names of the routes in the counters.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        token: str | None,
        hosts: Collection[str] | None,
        public: Collection[str] = ("/health",),
        routes: Collection[str] = (),
    ) -> None:
        self.app, self.metrics = app, metrics
        self.token, self.hosts, self.public, self.routes = token, hosts, public, routes

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
                await _refuse(send_counted, *refused)
        finally:
            self.metrics.observe_request(route, status, time.perf_counter() - started)

    def _refusal(self, scope: Scope, headers: Mapping[str, str]) -> tuple[int, str, dict[str, str]] | None:
        """Return the status, the reason and headers of a refusal; None for a request that is answered."""
        path: str = scope["path"]
        if len(path) > _LONGEST_PATH:
            return 414, f"the path must have at most {_LONGEST_PATH} characters, got {len(path):,}.", {}
        if self.token is not None:
            if path not in self.public and not matches(headers.get("authorization", ""), self.token):
                reason = "the Authorization header must be Bearer and the token of the server, got another or none."
                return 401, reason, {"WWW-Authenticate": "Bearer"}
        elif self.hosts is not None and (reason := cross_site_reason(headers, self.hosts)):
            return 403, f"{reason}. Send requests from a program on this machine.", {}
        return None


async def _refuse(send: Any, status: int, reason: str, headers: Mapping[str, str]) -> None:
    body = error_bytes(reason)
    sent = {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}
    raw = [(name.lower().encode(), value.encode()) for name, value in sent.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
