"""Results about the rows of a store, saved with checksums in the cache folder of the store.

A note that is damaged, or that was made from other rows, is computed again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from qkv.core.container import Container, read_container, write_container
from qkv.core.typing import Shaped
from qkv.errors import DataError

__all__ = ["read_note", "save_note"]

_CONTENT = "results about a store"


def read_note(path: Path, made_from: Mapping[str, object]) -> Container | None:
    """Return a saved note, or None if there is none, it is damaged, or it was made from something else.

    Args:
        path: the file.
        made_from: JSON values that identify the rows and the computation.
    """
    try:
        container = read_container(path, _CONTENT, "")
        for name in container:
            container.bytes(name)
    except (DataError, OSError):
        return None
    return container if container.settings.get("made from") == dict(made_from) else None


def save_note(
    path: Path,
    made_from: Mapping[str, object],
    settings: Mapping[str, object],
    arrays: Mapping[str, Shaped[np.ndarray, "*_"]],
) -> None:
    """Save a note. Errors are ignored, because the note can be computed again."""
    with contextlib.suppress(OSError, DataError):
        path.parent.mkdir(exist_ok=True)
        write_container(path, _CONTENT, {**settings, "made from": dict(made_from)}, arrays)
