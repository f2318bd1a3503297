"""Clients of object stores that record ranges, stop, or lose answers, for the tests of stores in object storage."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from obstore.store import MemoryStore

from qkv.store import ObjectClient, ObjectPath


class Stopped(BaseException):
    """The client was killed: nothing that it would do afterwards happens."""


class TestClient(ObjectClient):
    """A client that records the ranges it reads, and that can stop before one of its requests.

    Attributes:
        ranges: the key, start and stop of each range that was read.
        left: number of requests until it stops; None: it does not stop.
        lost: whether the answers of successful conditional writes are lost, so that they are repeated.
    """

    __test__ = False

    def __init__(self, store: MemoryStore, left: int | None = None, url: str = "memory://bucket") -> None:
        super().__init__(store, url)
        self.ranges: list[tuple[str, int, int]] = []
        self.left, self.lost = left, False

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        self.ranges += [(key, *each) for each in ranges]
        return super().get_ranges(key, ranges)

    def _put_if(self, key: str, data: Any, mode: Any) -> bool:
        done = super()._put_if(key, data, mode)
        return super()._put_if(key, data, mode) if self.lost else done

    @contextmanager
    def _request(self, key: str, requests: int = 1) -> Iterator[None]:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Stopped(key)
        with super()._request(key, requests):
            yield


def at(store: MemoryStore, left: int | None = None) -> ObjectPath:
    """Return the path of a store with a client of its own."""
    return ObjectPath(TestClient(store, left), "people")
