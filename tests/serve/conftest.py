"""A small store, and requests to the application without a socket."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import httpx
import pytest

from qkv.database import Database
from qkv.serve import Limits, ServedStore, create_app

PAY = {"years": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "pay": [10.0, 12.0, 14.0, 16.0, 18.0, 20.0], "city": list("aabbcc")}
ADDRESS = "http://127.0.0.1:8000"
Send = Callable[..., httpx.Response]
_Result = TypeVar("_Result")


def run_async(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Return the result of a coroutine that runs in a thread of its own.

    In the main thread, tests of pages leave an event loop running, that of Playwright.
    """
    return run_in_thread(asyncio.run, coroutine)


def run_in_thread(function: Callable[..., _Result], *arguments: Any) -> _Result:
    """Return the result of a function that runs in a thread of its own, where no event loop runs."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result()


def sender(served: ServedStore, limits: Limits | None = None, **options: object) -> Send:
    """Return a function that sends one request to an application: `send("POST", "/ask", json=…)`."""
    app = create_app(served, limits=limits, **options)

    def send(method: str, path: str, **request: object) -> httpx.Response:
        async def run() -> httpx.Response:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url=ADDRESS) as client:
                return await client.request(method, path, **request)

        return run_async(run())

    return send


@pytest.fixture(scope="module")
def served():
    """A table in memory that is served."""
    with ServedStore(Database.open(PAY, key="years", value="pay")) as served:
        yield served


@pytest.fixture(scope="module")
def send(served):
    """Sends a request to the table in memory."""
    return sender(served)


@pytest.fixture
def store(tmp_path):
    """A store of the same rows."""
    return Database.create(tmp_path / "pay.qkv", PAY, key="years", value="pay")
