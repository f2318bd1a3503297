"""Calls of a function in threads, a few ahead of the one whose result is used."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from qkv.core.threads import can_start_threads

__all__ = ["prefetched"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def prefetched(function: Callable[[_Item], _Result], items: Iterable[_Item], ahead: int) -> Iterator[_Result]:
    """Yield the result of a function for each item, in order, while `ahead` further calls run in threads.

    Example:
        >>> list(prefetched(abs, [-1, 2, -3], 2))
        [1, 2, 3]
    """
    if not can_start_threads():
        yield from map(function, items)
        return
    pending: deque[Future[_Result]] = deque()
    with ThreadPoolExecutor(ahead) as threads:
        try:
            for item in items:
                pending.append(threads.submit(function, item))
                if len(pending) > ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for each in pending:
                each.cancel()
