"""The page on this machine: a server on 127.0.0.1 that answers only those who know its address.

The address holds a random token; a request without it, or for another host, is refused. Nothing but the
page's own files and the maps is served, and the page may load nothing from elsewhere.
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
from typing import Any

from qkv.errors import MissingPackageError, OptionError
from qkv.look.bundle import WEB_FILES, read_web_file
from qkv.look.html_export import page_html
from qkv.look.page import Page

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
_LONGEST = 500
"""Letters of a path: none of the page's own has a hundred."""
_TYPES = {"js": "text/javascript", "css": "text/css", "html": "text/html"}


@dataclass
class ServedPage:
    """What is served: a page, or how far its making is.

    Fields:
        page: once it is made.
        error: why it could not be made.
        doing, done, total: how far it is.
    """

    page: Page | None = None
    error: str = ""
    doing: str = "starting"
    done: int = 0
    total: int = 1
    token: str = field(default_factory=lambda: secrets.token_urlsafe(16), repr=False)

    def progress(self, what: str, done: int, total: int) -> None:
        """Take a step of long work; the page shows it."""
        self.doing, self.done, self.total = what, done, total

    def state(self) -> dict[str, Any]:
        """What `meta.json` says."""
        if self.error:
            return {"error": self.error}
        if self.page is None:
            return {"doing": self.doing, "done": self.done, "total": max(1, self.total)}
        meta = self.page.meta()
        return meta if self.page.long else {**meta, "html": "export.html"}


def create_app(served: ServedPage, hosts: set[str]) -> Any:
    """The ASGI application; `hosts` are the names, with port, under which it may be asked."""
    try:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.responses import JSONResponse, Response
        from starlette.routing import Route
    except ImportError:
        raise _missing() from None

    def text(content: str, kind: str) -> Any:
        return Response(content, media_type=kind)

    def asked(request: Any, get: Callable[[Page, dict[str, int]], bytes]) -> Any:
        if served.page is None:
            return Response("the page is not ready", 503)
        try:
            return Response(get(served.page, request.path_params), media_type="application/octet-stream")
        except IndexError as error:
            return Response(f"there is no such map: {error}", 404)

    def front(_: Any) -> Any:
        return text(read_web_file("page.html"), "text/html")

    def web(request: Any) -> Any:
        name = request.path_params["name"]
        if name not in WEB_FILES:
            return Response("no such file", 404)
        return text(read_web_file(name), _TYPES[name.rsplit(".", 1)[1]])

    def meta(_: Any) -> Any:
        return JSONResponse(served.state(), status_code=500 if served.error else 200)

    def thumbs(request: Any) -> Any:
        return asked(request, lambda page, place: page.thumbs(place["view"]))

    def head(request: Any) -> Any:
        return asked(request, lambda page, place: page.map(place["view"], place["layer"], place["head"]))

    def tile(request: Any) -> Any:
        names = ("view", "layer", "head", "level", "y", "x")
        return asked(request, lambda page, place: page.tile(*(place[name] for name in names)))

    def row(request: Any) -> Any:
        names = ("view", "layer", "head", "query")
        return asked(request, lambda page, place: json.dumps(page.row(*(place[name] for name in names))).encode())

    def file(_: Any) -> Any:
        if served.page is None:
            return Response("the page is not ready", 503)
        if served.page.long:
            return Response("a long map does not fit a file", 404)
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
    """Refuses other hosts and tokens before anything is looked up; adds the headers to every answer."""

    def __init__(self, app: Any, token: str, hosts: set[str]) -> None:
        self.app = app
        self.token = token.encode()
        self.hosts = hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        given = scope["path"].split("/")[1].encode()

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        if host not in self.hosts:
            await _refuse(guarded, f"this page is not served as {host!r}")
        elif not secrets.compare_digest(given, self.token):
            await _refuse(guarded, "the address is not whole: copy it from the terminal, token included")
        elif len(scope["path"]) > _LONGEST:
            await _refuse(guarded, "there is no such address", 414)
        else:
            await self.app(scope, receive, guarded)


async def _refuse(send: Any, why: str, status: int = 403) -> None:
    body = why.encode()
    headers = [(b"content-type", b"text/plain")]
    start = {"type": "http.response.start", "status": status, "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": body})


@contextlib.contextmanager
def serve_in_thread(served: ServedPage, port: int = 0) -> Iterator[str]:
    """Serve in a thread; the address, token included, is given to the `with` block.

    Args:
        served: what is served.
        port: of 127.0.0.1; 0: a free one.

    Raises:
        OptionError: the port is taken.
        MissingPackageError: starlette or uvicorn is not installed.
    """
    try:
        import uvicorn
    except ImportError:
        raise _missing() from None
    door = socket.socket()
    try:
        door.bind(("127.0.0.1", port))
    except OSError as error:
        door.close()
        raise OptionError(
            f"port {port} cannot be used: {error.strerror}. Leave it out, and a free one is found."
        ) from None
    # From here on a request waits until the server takes it.
    door.listen()
    port = door.getsockname()[1]
    app = create_app(served, {f"127.0.0.1:{port}", f"localhost:{port}"})
    config = uvicorn.Config(app, log_level="error", lifespan="off", server_header=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [door]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}/{served.token}/"
    finally:
        server.should_exit = True
        thread.join(timeout=5)
        door.close()


def serve(
    make: Callable[[Callable[[str, int, int], None]], Page],
    *,
    port: int = 0,
    browser: bool = True,
    say: Callable[[str], None] = print,
) -> None:
    """Open a page, make it while the browser shows how far it is, and serve until interrupted.

    Args:
        make: given a function for progress, makes the page.
        port: of 127.0.0.1; 0: a free one.
        browser: open it in the browser.
        say: told the address.
    """
    served = ServedPage()
    with serve_in_thread(served, port) as address:
        say(f"{address}\nCtrl-C ends it.")
        if browser:
            webbrowser.open(address)
        try:
            served.page = make(served.progress)
        except Exception as error:
            served.error = str(error)
            raise
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


def _missing() -> MissingPackageError:
    return MissingPackageError(
        'the page needs starlette and uvicorn, which are not installed. Run: pip install "qkv[look]"'
    )
