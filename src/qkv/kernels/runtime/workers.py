"""Work on several Python threads, each with one PyTorch thread and buffers of its own.

PyTorch's operations let other Python threads run. A barrier after every small operation, which is what its
own threads need, costs more than it brings on a busy machine; here threads meet once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from qkv.core.typing import Tensor

__all__ = ["Workspace", "chunks", "borrow_workspace", "run", "threads"]

Item = TypeVar("Item")


class Workspace:
    """Buffers of one worker, by name: allocated when first wanted, and used again.

    `held` is for what one tile leaves to the next; it is emptied when the work is done.
    """

    def __init__(self) -> None:
        self._flat: dict[str, Any] = {}
        self._views: dict[tuple[str, tuple[int, ...]], Any] = {}
        self.held: dict[Any, Any] = {}

    def take(self, name: str, shape: tuple[int, ...], reference: Tensor) -> Any:
        """An array of this shape, its content undefined, with the dtype and device of `reference`."""
        known = self._views.get((name, shape))
        if known is not None and known.dtype == reference.dtype and known.device == reference.device:
            return known
        size = math.prod(shape)
        flat = self._flat.get(name)
        if flat is None or flat.numel() < size or flat.dtype != reference.dtype or flat.device != reference.device:
            import torch

            # Not an inference tensor, which could be written to in inference mode alone.
            with torch.inference_mode(False):
                flat = torch.empty(size, dtype=reference.dtype, device=reference.device)
            self._flat[name] = flat
            self._views = {key: view for key, view in self._views.items() if key[0] != name}
        view = self._views[name, shape] = flat[:size].view(shape)
        return view

    def end(self) -> None:
        """Forget what belongs to the work that is done."""
        self.held.clear()
        self._views.clear()

    def bytes(self) -> int:
        """What it holds."""
        return sum(held.numel() * held.element_size() for held in self._flat.values())


_SPARE: list[Workspace] = []
_LOCK = Lock()
_KEPT = 16 * 2**20


@contextmanager
def borrow_workspace() -> Iterator[Workspace]:
    """A room that nobody else uses; small ones are kept for the next call.

    Fresh memory costs more to touch than a tile does to compute.
    """
    with _LOCK:
        if not _SPARE:
            _settle_heap()
        room = _SPARE.pop() if _SPARE else Workspace()
    try:
        yield room
    finally:
        room.end()
        with _LOCK:
            if room.bytes() <= _KEPT and len(_SPARE) < 8:
                _SPARE.append(room)


@cache
def _settle_heap() -> None:
    """Free 16 MB once, untouched: from then on the C library keeps freed arrays of that size for another.

    It would otherwise give the memory of every tile back, and take it anew, page by page.
    """
    import torch

    torch.empty(4 * 2**20)


@contextmanager
def no_denormals() -> Iterator[None]:
    """Numbers below 1e-38 (in float32) are 0 on this thread: products of them take a hundred times as long.

    Weights of keys that are far behind the best one are such numbers.
    """
    import torch

    # There is nothing to ask but arithmetic itself.
    before = bool(np.float32(1e-39) * np.float32(1.0) == 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def threads(reference: Tensor) -> int:
    """How many workers PyTorch's own setting allows for arrays like this one."""
    import torch

    return int(torch.get_num_threads()) if reference.device.type == "cpu" else 1


def chunks(items: Sequence[Item], count: int) -> list[Sequence[Item]]:
    """The items in at most `count` runs of nearly equal length.

    Example:
        >>> chunks([1, 2, 3, 4, 5], 2)
        [[1, 2, 3], [4, 5]]
    """
    step = -(-len(items) // max(1, count))
    return [items[start : start + step] for start in range(0, len(items), max(1, step))]


def run(work: Sequence[Callable[[Workspace], None]]) -> None:
    """Run each on a worker, the first on this thread if it is the only one. The first error is raised again.

    Workers are in the state of this thread: inference mode, and no autocast.
    """
    import torch

    if len(work) <= 1:
        with no_denormals(), torch.no_grad(), borrow_workspace() as room:
            for one in work:
                one(room)
        return
    inference = torch.is_inference_mode_enabled()
    own = torch.get_num_threads()

    def on_worker(one: Callable[[Workspace], None]) -> None:
        # Of this thread alone, as far as arithmetic goes; what new threads start with is set back below.
        torch.set_num_threads(1)
        with no_denormals(), torch.inference_mode(inference), torch.no_grad(), borrow_workspace() as room:
            one(room)

    try:
        with ThreadPoolExecutor(len(work), thread_name_prefix="qkv") as pool:
            futures = [pool.submit(on_worker, one) for one in work]
            errors = [future.exception() for future in futures]
    finally:  # whoever interrupts the wait gets the setting back too
        torch.set_num_threads(own)
    for error in errors:
        if error is not None:
            raise error
