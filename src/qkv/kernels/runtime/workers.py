"""Worker threads, each with one PyTorch thread and a workspace of its own.

PyTorch's operations release the interpreter lock. Its own threads meet at a barrier after every small operation, which
costs more than it saves on a busy machine; these threads meet once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from qkv.core.typing import Tensor
from qkv.kernels.runtime.workspace import Workspace, borrow_workspace

__all__ = ["run_on_workers", "split_evenly", "worker", "worker_count"]

Item = TypeVar("Item")


def worker_count(reference: Tensor) -> int:
    """Return how many workers PyTorch's thread setting allows for arrays like `reference`."""
    import torch

    return int(torch.get_num_threads()) if reference.device.type == "cpu" else 1


def split_evenly(items: Sequence[Item], count: int) -> list[Sequence[Item]]:
    """Split the items into at most `count` runs of nearly equal length.

    Example:
        >>> split_evenly([1, 2, 3, 4, 5], 2)
        [[1, 2, 3], [4, 5]]
    """
    step = -(-len(items) // max(1, count))
    return [items[start : start + step] for start in range(0, len(items), max(1, step))]


@contextmanager
def worker() -> Iterator[Workspace]:
    """Make the calling thread a worker: provide a workspace, record no graph, flush subnormal numbers to 0."""
    import torch

    with _flush_subnormals(), torch.no_grad(), borrow_workspace() as workspace:
        yield workspace


def run_on_workers(function: Callable[[int, Workspace], None], count: int) -> None:
    """Call `function(n, workspace)` for each n below `count` on a thread of its own; raise the first error again.

    The threads take over inference mode from the calling thread, and run without autocast. A single call runs on the
    calling thread.
    """
    import torch

    if count == 1:
        with worker() as workspace:
            function(0, workspace)
        return
    inference = torch.is_inference_mode_enabled()
    threads = torch.get_num_threads()

    def on_thread(n: int) -> None:
        # Sets the number for this thread's arithmetic; the default of new threads is restored below.
        torch.set_num_threads(1)
        with torch.inference_mode(inference), worker() as workspace:
            function(n, workspace)

    try:
        with ThreadPoolExecutor(count, thread_name_prefix="qkv") as pool:
            futures = [pool.submit(on_thread, n) for n in range(count)]
            errors = [future.exception() for future in futures]
    finally:  # also if the wait is interrupted
        torch.set_num_threads(threads)
    for error in errors:
        if error is not None:
            raise error


@contextmanager
def _flush_subnormals() -> Iterator[None]:
    """Treat numbers below 1e-38 (in float32) as 0 on this thread: products of them take a hundred times as long.

    The weights of keys whose logits are far below the largest are such numbers.
    """
    import torch

    # PyTorch cannot report the current setting, so test it.
    before = bool(np.float32(1e-39) * np.float32(1.0) == 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
