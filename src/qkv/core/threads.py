"""Calls of a function in threads, or one after the other where a platform cannot start threads."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from qkv.core.progress import current_check, with_check

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def can_start_threads() -> bool:
    """Return whether this platform can start threads, which Pyodide cannot."""
    return sys.platform != "emscripten"


def map_threads(function: Callable[[_Item], _Result], items: Iterable[_Item], count: int) -> list[_Result]:
    """Return the result of a function for each item, in order, computed by `count` threads.

    Example:
        >>> map_threads(abs, [-1, 2, -3], 2)
        [1, 2, 3]
    """
    if not can_start_threads():
        return [function(item) for item in items]
    check = current_check()

    def run(item: _Item) -> _Result:
        with with_check(check):
            return function(item)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, items))


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
