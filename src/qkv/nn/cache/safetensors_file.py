"""Functions that write a key-value cache to a safetensors file atomically, and read it back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

from torch import Tensor

from qkv.core.extras import import_optional
from qkv.core.files import atomic_path
from qkv.core.typing import Num
from qkv.errors import DataError

__all__ = ["CacheState", "read_cache", "write_cache"]

Kind: TypeAlias = Literal["chunks", "paged"]

_KINDS = {"chunks": "qkv key-value cache 1", "paged": "qkv paged cache 1"}
_CLASSES = {"chunks": "KeyValueCache", "paged": "PagedCache"}


class CacheState(TypedDict, total=False):
    """Options and state of a key-value cache, stored as JSON in the metadata of its file.

    `finite` states for keys and for values whether all elements are finite. `starts` is the first position of each
    chunk. `total` is the number of tokens; it is absent if lengths are uneven, which are stored as a tensor instead.

    A paged cache has the `size` of blocks, the `tables` of the sequences as indices of the stored blocks, the `lengths`
    of the sequences, and the number of blocks `dropped` at their start.
    """

    chunk: int
    window: int | None
    rollback: int
    int8: bool
    memory: int | None
    dtype: str
    finite: list[bool]
    starts: list[int]
    total: int
    size: int
    tables: list[list[int]]
    lengths: list[int]
    dropped: int


def write_cache(path: Path, tensors: dict[str, Num[Tensor, "*_"]], state: CacheState, kind: Kind) -> None:
    """Write the tensors, options and state of a key-value cache to a safetensors file atomically.

    Args:
        path: the file.
        tensors: the tensors by name.
        state: the options and the state.
        kind: which of the caches it is.

    Raises:
        MissingPackageError: if safetensors is not installed.
    """
    package = _safetensors()
    metadata = {"kind": _KINDS[kind], "facts": json.dumps(state)}
    with atomic_path(path) as partial:
        package.torch.save_file({k: x.contiguous() for k, x in tensors.items()}, partial, metadata=metadata)


def read_cache(path: Path, device: str, kind: Kind) -> tuple[dict[str, Num[Tensor, "*_"]], CacheState]:
    """Return the tensors, and the options and state, of a key-value cache from a file that `write_cache` wrote.

    Args:
        path: the file.
        device: device of the tensors.
        kind: which of the caches it must be.

    Raises:
        DataError: if the file does not exist, is damaged, or is not a cache.
        MissingPackageError: if safetensors is not installed.
    """
    package = _safetensors()
    try:
        with package.safe_open(path, "pt", device=device) as file:
            metadata = file.metadata() or {}
            if metadata.get("kind") != _KINDS[kind]:
                raise DataError(
                    f"{path} must be a key-value cache in the current format, got another safetensors file. "
                    f"Pass a file written by {_CLASSES[kind]}.save."
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- not a dictionary
            state = json.loads(metadata["facts"])
            if "clean" in state:  # the name of `finite` in files of version 0.1
                state["finite"] = state.pop("clean")
            return tensors, state
    except (OSError, package.SafetensorError, KeyError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{path} must be a key-value cache written by {_CLASSES[kind]}.save, but reading failed: {error}. "
            "Check the path, or save the cache again."
        ) from None


def _safetensors() -> Any:
    return import_optional(
        "saving and loading a cache requires safetensors, which is not installed. "
        'Run: pip install "qkv[hf]", or install safetensors alone.',
        "safetensors",
        "safetensors.torch",
    )
