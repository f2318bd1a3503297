"""Calls of a function in threads, or one after the other where a platform cannot start threads."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from qkv.core.progress import current_check, with_check

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController, threadpool_limits

_MOST_CORES = 4
"""Largest number of cores that `on_cores` uses, because each needs memory for its arrays."""
_LOCK = Lock()
_LIMITS: list[threadpool_limits] = []
"""The limit of the threads of BLAS, once for each block that runs."""
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def can_start_threads() -> bool:
    """Return whether this platform can start threads, which Pyodide cannot."""
    return sys.platform != "emscripten"


def core_count() -> int:
    """Return the number of cores to use: those of this process, but at most OMP_NUM_THREADS if it is set."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(own, int(limit))) if limit.isdecimal() else own


@contextmanager
def one_blas_thread() -> Iterator[bool]:
    """Limit BLAS to one thread until the last of the blocks that run at the same time ends.

    Its other threads wait for their next product by spinning, which takes the cores from everything else.

    Yields:
        Whether it is limited; False without the package `threadpoolctl`.
    """
    if find_spec("threadpoolctl") is None:
        yield False
        return
    with _LOCK:
        # PyTorch has its own BLAS, which may be loaded after the first call.
        _LIMITS.append(_LIMITS[0] if _LIMITS else _libraries("torch" in sys.modules).limit(limits=1, user_api="blas"))
    try:
        yield True
    finally:
        with _LOCK:
            limit = _LIMITS.pop()
            if not _LIMITS:
                limit.restore_original_limits()


@cache
def _libraries(with_torch: bool) -> ThreadpoolController:
    """Return the loaded libraries that have threads, which takes a millisecond to find."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def on_cores(function: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
    """Yield the result of a function for each item, in order, computed on several cores.

    The function computes with NumPy, of which an operation runs on one core and releases the interpreter's lock. The
    first item comes before all others, which then find what its call has cached.

    Example:
        >>> list(on_cores(abs, [-1, 2, -3]))
        [1, 2, 3]
    """
    count = min(_MOST_CORES, core_count(), len(items) - 1)
    if count < 2:
        yield from map(function, items)
        return
    with one_blas_thread() as limited:
        yield function(items[0])
        yield from prefetched(function, items[1:], count) if limited else map(function, items[1:])


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
    check = current_check()

    def run(item: _Item) -> _Result:
        with with_check(check):
            return function(item)

    with ThreadPoolExecutor(ahead) as threads:
        try:
            for item in items:
                pending.append(threads.submit(run, item))
                if len(pending) > ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for each in pending:
                each.cancel()
