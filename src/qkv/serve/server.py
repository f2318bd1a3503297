"""The server of `qkv serve`: it listens, and finishes running requests when it is told to stop."""

from __future__ import annotations

import contextlib
import gc
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import uvicorn

from qkv.errors import OptionError
from qkv.serve.app import create_app
from qkv.serve.limits import Limits
from qkv.serve.tokens import check_address, is_loopback

if TYPE_CHECKING:
    from qkv.serve.served_store import ServedStore


# A pipe gets the address at once.
print_now = partial(print, flush=True)
_IDLE_SECONDS = 20
"""Time after which a connection without a request is closed."""
_BACKLOG = 2048


def run_server(
    served: ServedStore,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    limits: Limits | None = None,
    notify: Callable[[str], None] = print_now,
) -> None:
    """Serve a store until the process gets SIGTERM or SIGINT. Requests that run then are finished.

    Args:
        served: the store, which is not closed.
        host: address to listen on. One that other machines reach needs a token.
        port: port to listen on; 0: any free port.
        token: the token that requests must have; None: none.
        limits: the limits of requests; None: the defaults of `Limits`.
        notify: is called with the address of the server when it listens.

    Raises:
        OptionError: The port is in use, or the host can be reached by other machines and there is no token.
        MissingPackageError: starlette, uvicorn or prometheus_client is not installed.

    Example:
        >>> from qkv import Database
        >>> from qkv.serve import ServedStore, run_server
        >>> people = Database.open({"name": ["Li Mu"], "income": [55_000]}, key="name", value="income")
        >>> with ServedStore(people) as served:
        ...     run_server(served, port=8000)  # doctest: +SKIP
        http://127.0.0.1:8000
    """
    limits = limits or Limits()
    server, listener, address = _create(served, host, port, token, limits)
    # A collection of all objects of a large table would stop every request for a second.
    gc.freeze()
    try:
        notify(address)
        server.run(sockets=[listener])
    finally:
        listener.close()


@contextlib.contextmanager
def serve_in_thread(
    served: ServedStore, *, port: int = 0, token: str | None = None, limits: Limits | None = None
) -> Iterator[str]:
    """Serve a store on 127.0.0.1 from a background thread during a `with` block, and yield the address.

    Args:
        served: the store, which is not closed.
        port: port to listen on; 0: any free port.
        token: the token that requests must have; None: none.
        limits: the limits of requests; None: the defaults of `Limits`.

    Example:
        >>> from qkv.database import Database
        >>> from qkv.serve import Client, ServedStore
        >>> table = {"years": [1, 2, 3], "pay": [10, 12, 14]}
        >>> with ServedStore(Database.open(table, key="years", value="pay")) as served:
        ...     with serve_in_thread(served) as address, Client(address) as client:
        ...         client.ask(2.0, score="boxcar:0.5").value
        12.0
    """
    server, listener, address = _create(served, "127.0.0.1", port, token, limits or Limits())
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield address
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        listener.close()


class _Server(uvicorn.Server):
    """A server that ends normally after SIGTERM; that of uvicorn raises the signal again, like a crash."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        names = (signal.SIGINT, signal.SIGTERM)
        before = {name: signal.signal(name, self.handle_exit) for name in names}
        try:
            yield
        finally:
            for name, handler in before.items():
                signal.signal(name, handler)


def _create(
    served: ServedStore, host: str, port: int, token: str | None, limits: Limits
) -> tuple[uvicorn.Server, socket.socket, str]:
    """Return a server that does not run yet, its socket, which listens, and its address."""
    check_address(host, token)
    listener = _listen(host, port)
    port = listener.getsockname()[1]
    named = f"[{host}]" if ":" in host else host
    hosts = {f"{name}:{port}" for name in (named, "127.0.0.1", "localhost", "[::1]")} if is_loopback(host) else None
    config = uvicorn.Config(
        create_app(served, limits=limits, token=token, hosts=hosts),
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_keep_alive=_IDLE_SECONDS,
        # Requests end by themselves after this time.
        timeout_graceful_shutdown=int(limits.seconds) + 1,
    )
    return _Server(config), listener, f"http://{named}:{port}"


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port < 65536:
        raise OptionError(f"port must be between 0 and 65535, got {port}. Pass 0 to use any free port.")
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        # From here on the socket queues requests until the server accepts them.
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise OptionError(
            f"host and port must be available, got {host} and {port}, but listening failed: {error.strerror}. "
            "Pass port 0 to use any free port."
        ) from None
    return listener
