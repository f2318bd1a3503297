"""Functions that write a key-value cache to a safetensors file atomically with a checksum, and read it back."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Literal, TypeAlias, TypedDict, cast

import torch
from torch import Tensor

from qkv.core.checksums import checksum
from qkv.core.extras import import_optional
from qkv.core.files import atomic_path, fsync
from qkv.core.typing import Num
from qkv.core.untrusted_json import Fields, parse_json
from qkv.errors import DamagedError, DataError

Kind: TypeAlias = Literal["chunks", "paged", "state"]

_KINDS = {"chunks": "qkv key-value cache 2", "paged": "qkv paged cache 2", "state": "qkv state cache 2"}
_UNCHECKED = {"chunks": "qkv key-value cache 1", "paged": "qkv paged cache 1"}
"""Files that qkv wrote before 2026-11-23, which have no checksum."""
_CLASSES = {"chunks": "KeyValueCache", "paged": "PagedCache", "state": "StateCache"}


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

    Raises:
        MissingPackageError: if safetensors is not installed.
    """
    package = _safetensors()
    tensors = {name: x.detach().contiguous() for name, x in tensors.items()}
    facts = json.dumps(state)
    metadata = {"kind": _KINDS[kind], "facts": facts, "check": _check(tensors, facts)}
    with atomic_path(path, sync=True) as partial:
        package.torch.save_file(tensors, partial, metadata=metadata)
    fsync(path.absolute().parent)


def read_cache(path: Path, device: str, kind: Kind) -> tuple[dict[str, Num[Tensor, "*_"]], CacheState]:
    """Return the tensors, and the options and state, of a key-value cache from a file that `write_cache` wrote.

    Raises:
        DataError: if the file does not exist or is not a cache.
        DamagedError: if the file is damaged.
        MissingPackageError: if safetensors is not installed.
    """
    package = _safetensors()
    try:
        with package.safe_open(path, "pt", device=device) as file:
            metadata = file.metadata() or {}
            if metadata.get("kind") not in (_KINDS[kind], _UNCHECKED.get(kind)):
                raise DataError(
                    f"{path} must be a key-value cache in the current format, got another safetensors file. "
                    f"Pass a file written by {_CLASSES[kind]}.save."
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- not a dictionary
            if metadata["kind"] == _KINDS[kind] and metadata["check"] != _check(tensors, metadata["facts"]):
                raise DamagedError(
                    f"{path} must have the tensors that {_CLASSES[kind]}.save wrote, got another checksum. Save the "
                    "cache again, or restore the file from a copy."
                )
            state = Fields(parse_json(metadata["facts"], str(path)), str(path)).fields
            if "clean" in state:  # the name of `finite` in files of version 0.1
                state["finite"] = state.pop("clean")
            return tensors, cast("CacheState", state)
    except DataError:
        raise
    except Exception as error:  # whatever safetensors raises for changed bytes
        kind_of_error = DataError if isinstance(error, OSError) else DamagedError
        raise kind_of_error(
            f"{path} must be a key-value cache written by {_CLASSES[kind]}.save, but reading failed: {error}. "
            "Check the path, or save the cache again."
        ) from None


def _check(tensors: dict[str, Num[Tensor, "*_"]], facts: str) -> str:
    """Return the checksum of all tensors and of the state."""
    entries = {
        name: [str(x.dtype), list(x.shape), checksum(x.cpu().reshape(-1).view(torch.uint8).numpy().data)]
        for name, x in tensors.items()
    }
    return f"{checksum(json.dumps([entries, facts], sort_keys=True).encode()):08x}"


def _safetensors() -> ModuleType:
    return import_optional(
        "saving and loading a cache requires safetensors, which is not installed. "
        'Run: pip install "qkv[hf]", or install safetensors alone.',
        "safetensors",
        "safetensors.torch",
    )
