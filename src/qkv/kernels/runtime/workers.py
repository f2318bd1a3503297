"""Worker threads, each of which uses one thread of PyTorch.

They are for work that PyTorch's own threads do not divide, such as selections by NumPy and sums over candidates, whose
operations release the interpreter lock. PyTorch's threads divide large operations better: a worker waits for the lock
after each operation, up to 50 µs where a sleeping core must be woken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

from qkv.kernels.runtime.subnormals import FlushedSubnormals
from qkv.kernels.runtime.workspace import Workspace, borrow_workspace

Item = TypeVar("Item")


def split_evenly(items: Sequence[Item], count: int) -> list[Sequence[Item]]:
    """Split a sequence into at most `count` consecutive parts of equal length, of which the last may be shorter.

    Example:
        >>> split_evenly([1, 2, 3, 4, 5], 2)
        [[1, 2, 3], [4, 5]]
    """
    step = -(-len(items) // max(1, count))
    return [items[start : start + step] for start in range(0, len(items), max(1, step))]


@contextmanager
def worker() -> Iterator[Workspace]:
    """Provide a workspace to the calling thread, with autograd disabled and subnormal numbers flushed to 0."""
    with FlushedSubnormals(), torch.no_grad(), borrow_workspace() as workspace:
        yield workspace


def run_on_workers(function: Callable[[int], None], count: int) -> None:
    """Call `function(n)` for each n below `count`, each in a separate thread.

    Threads inherit inference mode from the calling thread and run without autocast and without recording a graph. With
    a `count` of 1 the function runs in the calling thread. If calls raise errors, the first error is raised again in
    the calling thread.
    """
    if count == 1:
        with torch.no_grad():
            function(0)
        return
    inference = torch.is_inference_mode_enabled()
    threads = torch.get_num_threads()

    def on_thread(n: int) -> None:
        # This also changes the default of new threads, which is restored below.
        torch.set_num_threads(1)
        with torch.inference_mode(inference), torch.no_grad():
            function(n)

    try:
        with ThreadPoolExecutor(count, thread_name_prefix="qkv") as pool:
            futures = [pool.submit(on_thread, n) for n in range(count)]
            errors = [future.exception() for future in futures]
    finally:  # also if the wait is interrupted
        torch.set_num_threads(threads)
    for error in errors:
        if error is not None:
            raise error
