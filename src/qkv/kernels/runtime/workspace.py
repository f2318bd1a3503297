"""Buffers that are reused from tile to tile, because page faults in newly allocated memory cost more than a tile."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock

from qkv.core.typing import Shaped, Tensor


class Workspace:
    """Named buffers of one worker, allocated on first use and reused for every tile.

    Attributes:
        cache: values that are computed once and reused by later tiles; cleared when the workspace is released.
    """

    def __init__(self) -> None:
        self._flat: dict[str, Tensor] = {}
        self._views: dict[tuple[str, tuple[int, ...]], Tensor] = {}
        self.cache: dict[Hashable, object] = {}

    def take(self, name: str, shape: tuple[int, ...], reference: Shaped[Tensor, "*_"]) -> Shaped[Tensor, "*shape"]:
        """Return an uninitialized array of the given shape, with the dtype and device of `reference`.

        It is a view of the buffer `name`.
        """
        known = self._views.get((name, shape))
        if known is not None and known.dtype == reference.dtype and known.device == reference.device:
            return known
        size = math.prod(shape)
        flat = self._flat.get(name)
        if flat is None or flat.numel() < size or flat.dtype != reference.dtype or flat.device != reference.device:
            import torch

            # Not an inference tensor, which only inference mode may write to.
            with torch.inference_mode(False):
                flat = torch.empty(size, dtype=reference.dtype, device=reference.device)
            self._flat[name] = flat
            self._views = {key: view for key, view in self._views.items() if key[0] != name}
        view = self._views[name, shape] = flat[:size].view(shape)
        return view

    def clear(self) -> None:
        """Drop the cached values and views of a finished call, but keep the buffers allocated."""
        self.cache.clear()
        self._views.clear()

    def nbytes(self) -> int:
        """Return the number of bytes of all buffers."""
        return sum(flat.numel() * flat.element_size() for flat in self._flat.values())


_SPARE: list[Workspace] = []
_LOCK = Lock()
_MAX_SPARE_BYTES = 16 * 2**20
_MAX_SPARES = 8


@contextmanager
def borrow_workspace() -> Iterator[Workspace]:
    """Provide a workspace that no other thread uses. A workspace of at most 16 MiB is reused by later calls."""
    with _LOCK:
        if not _SPARE:
            raise_malloc_threshold()
        workspace = _SPARE.pop() if _SPARE else Workspace()
    try:
        yield workspace
    finally:
        workspace.clear()
        with _LOCK:
            if workspace.nbytes() <= _MAX_SPARE_BYTES and len(_SPARE) < _MAX_SPARES:
                _SPARE.append(workspace)


@cache
def raise_malloc_threshold() -> None:
    """Allocate and free 32 MiB once, so that glibc reuses the memory of freed arrays of up to this size.

    Below the threshold, freed memory stays in the process. Otherwise glibc would unmap the memory of every tile, and
    the next tile would cause page faults.
    """
    import torch

    torch.empty(8 * 2**20 - 1024)  # glibc ignores larger arrays
