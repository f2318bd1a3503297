"""A local web server for the page, on 127.0.0.1, which answers only requests that carry its token.

The address holds a random token; a request without it, or for another host name, is refused. The server serves
only the files and maps of the page, and the page may load nothing from elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qkv.core.extras import missing_package
from qkv.core.progress import Progress
from qkv.errors import OptionError
from qkv.look.bundle import WEB_FILES, read_web_file
from qkv.look.html_export import page_html
from qkv.look.page import Page

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["ServedPage", "create_app", "serve_in_thread", "serve"]

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
_MAX_PATH = 500
"""Maximum length of a path; those of the page have fewer than 100 characters."""
_TYPES = {"js": "text/javascript", "css": "text/css", "html": "text/html"}


@dataclass
class ServedPage:
    """A page being served, or the progress of creating it.

    Fields:
        page: the page once it is ready.
        error: the reason why it could not be created.
        doing, done, total: the progress shown while it is created.
        token: the random part of the address.
    """

    page: Page | None = None
    error: str = ""
    doing: str = "starting"
    done: int = 0
    total: int = 1
    token: str = field(default_factory=lambda: secrets.token_urlsafe(16), repr=False)

    def progress(self, what: str, done: int, total: int) -> None:
        """Set the progress that the browser shows."""
        self.doing, self.done, self.total = what, done, total

    def state(self) -> dict[str, object]:
        """Return the content of `meta.json`: an error, the progress, or the page."""
        if self.error:
            return {"error": self.error}
        if self.page is None:
            return {"doing": self.doing, "done": self.done, "total": max(1, self.total)}
        meta = self.page.meta()
        return meta if self.page.tiled else {**meta, "html": "export.html"}


def create_app(served: ServedPage, hosts: set[str]) -> Starlette:
    """Create the ASGI application.

    Args:
        served: the page.
        hosts: accepted values of the Host header, with the port.

    Raises:
        MissingPackageError: starlette is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.responses import JSONResponse, Response
        from starlette.routing import Route
    except ImportError:
        raise missing_package("the page needs", "starlette and uvicorn", "look") from None

    def respond(request: Request, get: Callable[[Page, dict[str, int]], bytes]) -> Response:
        if served.page is None:
            return Response("the page is not ready", 503)
        try:
            return Response(get(served.page, request.path_params), media_type="application/octet-stream")
        except IndexError as error:
            return Response(f"there is no such map: {error}", 404)

    def front(_: Request) -> Response:
        return Response(read_web_file("page.html"), media_type="text/html")

    def web(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in WEB_FILES:
            return Response("no such file", 404)
        return Response(read_web_file(name), media_type=_TYPES[name.rsplit(".", 1)[1]])

    def meta(_: Request) -> Response:
        return JSONResponse(served.state(), status_code=500 if served.error else 200)

    def thumbs(request: Request) -> Response:
        return respond(request, lambda page, place: page.thumbs(place["view"]))

    def head(request: Request) -> Response:
        return respond(request, lambda page, place: page.map(place["view"], place["layer"], place["head"]))

    def tile(request: Request) -> Response:
        names = ("view", "layer", "head", "level", "y", "x")
        return respond(request, lambda page, place: page.tile(*(place[name] for name in names)))

    def row(request: Request) -> Response:
        names = ("view", "layer", "head", "query")
        return respond(request, lambda page, place: json.dumps(page.row(*(place[name] for name in names))).encode())

    def file(_: Request) -> Response:
        if served.page is None:
            return Response("the page is not ready", 503)
        if served.page.tiled:
            return Response("a tiled map cannot be exported", 404)
        return Response(
            page_html(served.page),
            media_type="text/html",
            headers={"Content-Disposition": 'attachment; filename="attention.html"'},
        )

    base = f"/{served.token}"
    routes = [
        Route(f"{base}/", front),
        Route(f"{base}/web/{{name}}", web),
        Route(f"{base}/meta.json", meta),
        Route(f"{base}/thumbs/{{view:int}}", thumbs),
        Route(f"{base}/map/{{view:int}}/{{layer:int}}/{{head:int}}", head),
        Route(f"{base}/tile/{{view:int}}/{{layer:int}}/{{head:int}}/{{level:int}}/{{y:int}}/{{x:int}}", tile),
        Route(f"{base}/row/{{view:int}}/{{layer:int}}/{{head:int}}/{{query:int}}", row),
        Route(f"{base}/export.html", file),
    ]
    return Starlette(routes=routes, middleware=[Middleware(_Guard, token=served.token, hosts=hosts)])


class _Guard:
    """Refuses requests with another host or token before routing, and adds the security headers to every response."""

    def __init__(self, app: ASGIApp, token: str, hosts: set[str]) -> None:
        self.app = app
        self.token = token.encode()
        self.hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        token = scope["path"].split("/")[1].encode()

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        if host not in self.hosts:
            await _refuse(send_guarded, f"this page is not served as {host!r}")
        elif not secrets.compare_digest(token, self.token):
            await _refuse(send_guarded, "the address is incomplete: copy it from the terminal, token included")
        elif len(scope["path"]) > _MAX_PATH:
            await _refuse(send_guarded, "there is no such address", 414)
        else:
            await self.app(scope, receive, send_guarded)


async def _refuse(send: Send, reason: str, status: int = 403) -> None:
    headers = [(b"content-type", b"text/plain")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": reason.encode()})


@contextlib.contextmanager
def serve_in_thread(served: ServedPage, port: int = 0) -> Iterator[str]:
    """Serve in a background thread during a `with` block, which gets the address, token included.

    Args:
        served: the page.
        port: port to listen on; 0: any free port.

    Raises:
        OptionError: the port is in use.
        MissingPackageError: starlette or uvicorn is not installed.
    """
    try:
        import uvicorn
    except ImportError:
        raise missing_package("the page needs", "starlette and uvicorn", "look") from None
    listener = socket.socket()
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise OptionError(f"port {port} cannot be used: {error.strerror}. Leave it out to use a free port.") from None
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
    create_page: Callable[[Progress], Page],
    *,
    port: int = 0,
    browser: bool = True,
    say: Callable[[str], None] = print,
) -> None:
    """Serve a page until interrupted; the browser shows the progress while the page is created.

    Args:
        create_page: creates the page; called with a progress function.
        port: port to listen on; 0: any free port.
        browser: open the page in the browser.
        say: called with the address.

    Raises:
        OptionError: the port is in use.
        MissingPackageError: starlette or uvicorn is not installed.
    """
    served = ServedPage()
    with serve_in_thread(served, port) as address:
        say(f"{address}\nPress Ctrl-C to stop.")
        if browser:
            webbrowser.open(address)
        try:
            served.page = create_page(served.progress)
        except Exception as error:
            served.error = str(error)
            raise
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
