"""A cache in a file: safetensors, written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from qkv.core.files import atomic_path
from qkv.errors import DataError, MissingPackageError

__all__ = ["read", "write"]

_KIND = "qkv key-value cache 1"


def write(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write the file, whole or not at all.

    Raises:
        MissingPackageError: safetensors is not installed.
    """
    package = _safetensors()
    about = {"kind": _KIND, "facts": json.dumps(facts)}
    with atomic_path(path) as partial:
        package.torch.save_file({k: x.contiguous() for k, x in tensors.items()}, partial, metadata=about)


def read(path: Path, device: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write` wrote.

    Raises:
        DataError: there is no such file, it is broken, or it is something else.
        MissingPackageError: safetensors is not installed.
    """
    package = _safetensors()
    try:
        with package.safe_open(path, "pt", device=device) as file:
            about = file.metadata() or {}
            if about.get("kind") != _KIND:
                raise DataError(f"{path} is a safetensors file, but no key-value cache of this version.")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- no dictionary
            return tensors, json.loads(about["facts"])
    except (OSError, package.SafetensorError, KeyError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} cannot be read as a cache: {error}. Give a file that save wrote.") from None


def _safetensors() -> Any:
    try:
        import safetensors
        import safetensors.torch
    except ImportError:
        raise MissingPackageError(
            'a cache is written with safetensors, which is not installed. Run: pip install "qkv[translate]", '
            "or install safetensors alone."
        ) from None
    return safetensors
