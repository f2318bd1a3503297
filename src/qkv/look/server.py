"""Local web server for attention pages, which accepts only requests that contain its secret token.

The server listens on 127.0.0.1. Its address contains a random token. Requests without this token, with another host
name or from the page of another site are refused. The server delivers only the files and maps of the page, and its
content security policy prevents the page from loading anything from other hosts.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import secrets
import socket
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING

from qkv.core.extras import require_packages
from qkv.core.progress import Progress
from qkv.core.request_guard import ambiguous_reason, cross_site_reason
from qkv.errors import OptionError
from qkv.look.bundle import WEB_FILES, bundle, read_web_file
from qkv.look.html_export import html_pieces
from qkv.look.page import Page

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.middleware.base import RequestResponseEndpoint
    from starlette.requests import Request
    from starlette.responses import Response

    from qkv.look.answers.answer_page import AnswerPage


_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_ERROR_SECONDS = 5.0
"""Maximum time for which the server waits for the browser to request the reason why a page could not be created."""
_DELIVERY_SECONDS = 0.1
# A pipe gets the address at once.
_print_now = partial(print, flush=True)
_MAX_PATH = 500
"""Maximum number of characters in a request path; the page itself uses fewer than 100."""
_MAX_REQUEST = 100_000
"""Maximum number of bytes of a request for an answer."""
_compressed = cache(partial(gzip.compress, mtime=0))
_TYPES = {"js": "text/javascript", "css": "text/css", "html": "text/html"}


@dataclass
class ServedPage:
    """The state of a served page: its progress while it is created, and then the page or an error.

    Attributes:
        page: the page of heads or of answers; None while the page is created.
        error: the reason why the page could not be created, if any.
        task, done, total: name of the current step, number of completed parts and total number of parts, which the
            browser shows while the page is created.
        respond: returns the response to a request for an answer; None for pages of heads.
        token: the random part of the address.
        opened: set when the browser has requested the page.
        reported: set when the browser has received the error.
    """

    page: Page | AnswerPage | None = None
    error: str = ""
    task: str = "starting"
    done: int = 0
    total: int = 1
    respond: Callable[[object], dict[str, object]] | None = None
    token: str = field(default_factory=lambda: secrets.token_urlsafe(16), repr=False)
    opened: threading.Event = field(default_factory=threading.Event, repr=False)
    reported: threading.Event = field(default_factory=threading.Event, repr=False)

    def progress(self, task: str, done: int, total: int) -> None:
        """Store the name of the current step and its progress, which the browser shows."""
        self.task, self.done, self.total = task, done, total

    def state(self) -> dict[str, object]:
        """Return the content of `meta.json`, which is an error, the progress, or the metadata of the page."""
        if self.error:
            return {"error": self.error}
        if self.page is None:
            return {"task": self.task, "done": self.done, "total": max(1, self.total)}
        return {**self.page.meta(), "html": "export.html"}


def create_app(served: ServedPage, hosts: set[str]) -> Starlette:
    """Create the ASGI application that serves a page, and answers only requests that the page itself makes."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

    async def guard(request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Refuse what the page itself would not request, and add security headers to responses."""
        refused = _refusal(request, hosts, served.token)
        response = Response(refused[1], refused[0], media_type="text/plain") if refused else await call_next(request)
        response.headers.update(_HEADERS)
        return response

    def web(request: Request) -> Response:
        name = request.path_params.get("name", "page.html")
        if name not in WEB_FILES:
            return Response("file not found", 404)
        # The page loads these three, in place of fifty files.
        text = bundle(name) if name in ("served.js", "heads.js", "answers.js") else read_web_file(name)
        kind = _TYPES[name.rsplit(".", 1)[1]]
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(text, media_type=kind)
        return Response(_compressed(text.encode()), media_type=kind, headers={"Content-Encoding": "gzip"})

    def meta(_: Request) -> Response:
        served.opened.set()
        state = served.state()
        if "error" in state:
            served.reported.set()
        return JSONResponse(state, status_code=500 if "error" in state else 200)

    def data(request: Request) -> Response:
        if not isinstance(served.page, Page):
            return Response("the page is not ready", 503)
        _, _, what, *place = request.scope["path"].split("/")
        try:
            return Response(served.page.read(what, place), media_type="application/octet-stream")
        except LookupError as error:
            return Response(str(error), 404)

    def export(request: Request) -> Response:
        if not isinstance(served.page, Page):
            return Response("the page is not ready", 503)
        download = {"Content-Disposition": 'attachment; filename="attention.html"'}
        return StreamingResponse(html_pieces(served.page, request.url.query), media_type="text/html", headers=download)

    async def ask(request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _MAX_REQUEST:
                return Response(f"the request must have at most {_MAX_REQUEST:,} bytes", 413, media_type="text/plain")
        try:
            given = json.loads(body)
        except ValueError:
            return Response("the request must be JSON", 400, media_type="text/plain")
        assert served.respond is not None
        return JSONResponse(await run_in_threadpool(served.respond, given))

    base = f"/{served.token}"
    routes = [Route(f"{base}/", web), Route(f"{base}/web/{{name}}", web), Route(f"{base}/meta.json", meta)]
    if served.respond is None:
        routes += [Route(f"{base}/export.html", export), Route(f"{base}/{{request:path}}", data)]
    else:
        routes.append(Route(f"{base}/ask", ask, methods=["POST"]))
    return Starlette(routes=routes, middleware=[Middleware(BaseHTTPMiddleware, dispatch=guard)])


def _refusal(request: Request, hosts: set[str], token: str) -> tuple[int, str] | None:
    """Return the status and the reason with which a request is refused; None for a request that is answered.

    A request from a page of another site has an Origin or a Sec-Fetch-Site header with that site. It is refused even
    if it contains the token, except when a person follows a link to the page.
    """
    path = request.scope["path"]
    if reason := ambiguous_reason([name.lower() for name, _ in request.scope["headers"]]):
        return 400, reason
    if reason := cross_site_reason(request.headers, hosts):
        return 403, reason
    if not secrets.compare_digest("".join(path.split("/")[1:2]).encode("utf-8", "replace"), token.encode()):
        return 403, "the address must contain the token of the page: copy the whole address from the terminal"
    if len(path) > _MAX_PATH:
        return 414, f"the path must have at most {_MAX_PATH} characters, got {len(path)}"
    return None


@contextlib.contextmanager
def serve_in_thread(served: ServedPage, port: int = 0) -> Iterator[str]:
    """Serve a page from a background thread during a `with` block.

    Yields:
        The address of the page, including its token.
    """
    require_packages("the page needs", "look", "starlette", "uvicorn")
    import uvicorn

    listener = socket.socket()
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise OptionError(
            f"port must be available, got port {port}, but listening failed: {error.strerror}. "
            "Pass 0 to use any free port."
        ) from None
    # From here on the socket queues requests until the server accepts them.
    listener.listen()
    port = listener.getsockname()[1]
    app = create_app(served, {f"127.0.0.1:{port}", f"localhost:{port}"})
    config = uvicorn.Config(app, log_level="error", lifespan="off", server_header=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}/{served.token}/"
    finally:
        server.should_exit = True
        thread.join(timeout=5)
        listener.close()


def serve(
    create_page: Callable[[Progress], Page | AnswerPage],
    *,
    port: int = 0,
    browser: bool = True,
    notify: Callable[[str], None] = _print_now,
    respond: Callable[[object], dict[str, object]] | None = None,
) -> None:
    """Create a page and serve it until the process is interrupted.

    `notify` prints the address. If `browser` is True, the default browser opens it and shows the progress while the
    page is created.
    """
    served = ServedPage(respond=respond)
    with serve_in_thread(served, port) as address:
        notify(f"{address}\nPress Ctrl-C to stop.")
        if browser:
            webbrowser.open(address)
        try:
            served.page = create_page(served.progress)
        except Exception as error:
            served.error = str(error) or type(error).__name__
            # The browser, which may still be starting, shows the reason before the server stops.
            if browser or served.opened.is_set():
                served.reported.wait(_ERROR_SECONDS)
                time.sleep(_DELIVERY_SECONDS)
            raise
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
