"""Local web server of the page of answers, which accepts only requests that contain its secret token."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from qkv.database.io.predicates import PredicateProcess
from qkv.look.answers.answer_page import AnswerPage
from qkv.look.server import announce, guarded_app, print_now, serve_app, wait_for_interrupt

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response


_MAX_REQUEST = 100_000
"""Maximum number of bytes of a request."""


def _create_app(page: AnswerPage, hosts: set[str], token: str, predicates: PredicateProcess) -> Starlette:
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse, PlainTextResponse
    from starlette.routing import Route

    def meta(_: Request) -> Response:
        return JSONResponse(page.meta())

    def respond(given: object) -> dict[str, object]:
        with predicates.used():
            return page.respond(given)

    async def ask(request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _MAX_REQUEST:
                return PlainTextResponse(f"the request must have at most {_MAX_REQUEST:,} bytes", 413)
        try:
            given = json.loads(body)
        except ValueError:
            return PlainTextResponse("the request must be JSON", 400)
        return JSONResponse(await run_in_threadpool(respond, given))

    routes = [Route(f"/{token}/meta.json", meta), Route(f"/{token}/ask", ask, methods=["POST"])]
    return guarded_app(routes, hosts, token)


@contextlib.contextmanager
def serve_answers_in_thread(page: AnswerPage, port: int = 0) -> Iterator[str]:
    """Serve the page of answers from a background thread during a `with` block.

    Yields:
        The address of the page, including its token.
    """
    token = secrets.token_urlsafe(16)
    with (
        contextlib.closing(PredicateProcess()) as predicates,
        serve_app(lambda hosts: _create_app(page, hosts, token, predicates), token, port) as address,
    ):
        yield address


def serve_answers(
    page: AnswerPage, *, port: int = 0, browser: bool = True, notify: Callable[[str], None] = print_now
) -> None:
    """Serve the page of answers until the process is interrupted."""
    with serve_answers_in_thread(page, port) as address:
        announce(address, browser, notify)
        wait_for_interrupt()
