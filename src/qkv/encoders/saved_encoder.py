"""Save fitted encoders as containers, whose checksums are verified when an encoder is loaded."""

from __future__ import annotations

import io
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TypeVar

import numpy as np

from qkv.core.container import is_container, read_container, write_container
from qkv.core.typing import Shaped
from qkv.encoders.encoder import Encoder, read_arrays
from qkv.errors import DamagedError, DataError

__all__ = ["load_encoder", "restore_encoder", "save_encoder"]

_CONTENT = "an encoder"
_REMEDY = "Fit the encoder again, or restore the file from a copy."
_Kind = TypeVar("_Kind", bound=Encoder)


def save_encoder(encoder: Encoder, path: str | PathLike[str]) -> None:
    """Write a fitted encoder to a file atomically, with checksums. `load_encoder` reads the file.

    Raises:
        DataError: the file cannot be written.

    Example:
        >>> import tempfile
        >>> from qkv.encoders import LatentEncoder
        >>> encoder = LatentEncoder(2)
        >>> _ = encoder.fit_encode(["a golden ring", "the ring of gold", "a dark den"])
        >>> file = Path(tempfile.mkdtemp()) / "encoder"
        >>> save_encoder(encoder, file)
        >>> load_encoder(LatentEncoder, file).width
        2
    """
    settings = {"name": encoder.name, "settings": encoder.settings()}
    write_container(Path(path), _CONTENT, settings, encoder.arrays(), "the encoder")


def load_encoder(kind: type[_Kind], path: str | PathLike[str]) -> _Kind:
    """Load an encoder of a given class from a file that `save_encoder`, or qkv before version 0.2, wrote.

    Raises:
        DataError: the file cannot be read, or the model of the encoder is missing.
        DamagedError: the file is damaged, or holds no encoder of this class.
    """
    file = Path(path)
    if is_container(file):
        container = read_container(file, _CONTENT, _REMEDY, "the encoder")
        fields = container.fields()
        fields.text("name", (kind.name,))
        arrays = {name: container.array(name).copy() for name in container}
        return restore_encoder(kind, fields.record("settings"), arrays)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise DataError(
            f"path must be a readable file, got {str(path)!r}, but reading it failed: {error.strerror or error}. "
            "Check the path."
        ) from None
    try:
        return restore_encoder(kind, {}, read_arrays(io.BytesIO(data)))
    except DamagedError:
        raise DamagedError(
            f"path must be a file that {kind.__name__}.save wrote, got {str(path)!r}. {_REMEDY}"
        ) from None


def restore_encoder(
    kind: type[_Kind], settings: Mapping[str, object], arrays: Mapping[str, Shaped[np.ndarray, "*_"]]
) -> _Kind:
    """Restore an encoder from settings and arrays of a file.

    Raises:
        DataError: a model that the encoder needs is missing.
        DamagedError: the settings or the arrays are not those of an encoder of this class.
    """
    try:
        encoder = kind.from_state(dict(settings), arrays)
        encoder.check_state()
    except DataError:
        raise
    except Exception as error:  # whatever the constructor raises for crafted settings
        raise DamagedError(
            f"the saved encoder {kind.name!r} must have intact settings and arrays, but {type(error).__name__}: "
            f"{str(error)[:200]}. {_REMEDY}"
        ) from None
    return encoder
