"""Read and write a search index, which is stored as a subfolder of arrays and a file index.json that names it.

    index.json                format version, current folder, and the size of each file
    g-…/passages.arrow        texts          keys.npy, moments.npz | keys.npz   vectors
    g-…/words.npz             BM25           encoder.npz             arrays of the encoder        metric.npy

All files are written to a new folder and synced; then index.json is replaced atomically, and the previous folder
is removed. A crash at any point leaves the previous index intact.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.core.files import check_creatable, replace_subfolder
from qkv.encoders.encoder import read_arrays
from qkv.errors import DamagedStoreError, DataError, StoreBusyError

if TYPE_CHECKING:
    from qkv.search.index import Index

__all__ = ["is_index", "check_index_path", "read_index", "save_index"]

_FORMAT = 2
_LOCK = "writer.lock"
_PREFIX = "g-"


def is_index(path: Path) -> bool:
    """Return whether `path` is a folder with a search index."""
    return _read_settings(path) is not None


def check_index_path(path: Path) -> None:
    """Check that an index can be saved at `path`, so that an error is raised before the index is built.

    Raises:
        DataError: the path exists and is neither an index nor an empty folder, or is not writable.
    """
    if not is_index(path) and path.exists() and (not path.is_dir() or any(map(_is_foreign, path.iterdir()))):
        raise DataError(
            f"path must be a folder with a search index, an empty folder or a new folder, got {str(path)!r}. Choose "
            "another folder."
        )
    check_creatable(path, "the index")


def save_index(index: Index, path: Path) -> None:
    """Write an index to a folder, as described in `Index.save`."""
    check_index_path(path)
    from filelock import FileLock, Timeout

    try:
        path.mkdir(parents=True, exist_ok=True)
        with FileLock(path / _LOCK, timeout=0):
            replace_subfolder(
                path, _PREFIX, partial(_write_parts, index), "index.json", partial(_index_json, index), "the index"
            )
    except Timeout:
        raise StoreBusyError(
            f"the index {str(path)!r} must not be saved by two processes at once, and another process is saving it. "
            "Try again later."
        ) from None
    except OSError as error:
        raise DataError(
            f"path must be a writable folder, got {str(path)!r}: {error.strerror}. Choose another folder."
        ) from None


def _index_json(index: Index, folder: Path) -> bytes:
    settings = {
        "qkv": "index",
        "format": _FORMAT,
        "folder": folder.name,
        "encoder": index.encoder.name,
        "settings": index.encoder.settings(),
        "stem": index.splitter.stem,
        "mix": index.mix,
        "passages": len(index),
        "files": {part.name: part.stat().st_size for part in sorted(folder.iterdir())},
    }
    return json.dumps(settings, indent=1).encode()


def read_index(path: Path) -> dict[str, Any]:
    """Read a saved index, and return a dict of the arguments with which `Index` creates it again.

    Raises:
        DataError: the folder contains no index, or one of another format.
        DamagedStoreError: a file is missing or truncated.
    """
    import pyarrow as pa
    from scipy.sparse import csc_array, load_npz

    from qkv.search.bm25 import BM25, Vocabulary
    from qkv.search.encoder_registry import ENCODERS
    from qkv.search.passage_vectors import PassageVectors

    settings = _read_settings(path)
    if settings is None:
        raise DataError(
            f"path must be a folder with a search index, got {str(path)!r}. Create an index with Index.save in Python, "
            "or with qkv search TEXTS --save FOLDER on the command line."
        )
    if settings["format"] != _FORMAT or settings["encoder"] not in ENCODERS:
        raise DataError(
            f"the index {str(path)!r} must have format {_FORMAT} and a known encoder, got format "
            f"{settings['format']!r} and encoder {settings['encoder']!r}. Build the index again."
        )
    folder = path / settings["folder"]
    for name, size in settings["files"].items():
        actual = (folder / name).stat().st_size if (folder / name).is_file() else None
        if actual != size:
            problem = "no such file" if actual is None else f"{actual:,} bytes"
            raise DamagedStoreError(
                f"the file {folder.name}/{name} of the index {str(path)!r} must have {size:,} bytes, got {problem}. "
                "The index is damaged; build it again."
            )
    encoder = ENCODERS[settings["encoder"]].from_state(settings["settings"], read_arrays(folder / "encoder.npz"))
    with pa.memory_map(str(folder / "passages.arrow")) as mapped:
        table = pa.ipc.open_file(mapped).read_all()
    words = read_arrays(folder / "words.npz")
    scores = csc_array((words["data"], words["indices"], words["indptr"]), shape=tuple(words["shape"]))
    if (folder / "keys.npy").is_file():
        moments = read_arrays(folder / "moments.npz")
        rows = np.load(folder / "keys.npy", mmap_mode="r")
        keys = PassageVectors(rows, (moments["mean"], moments["covariance"]))
    else:
        keys = PassageVectors(load_npz(folder / "keys.npz"))
    metric = np.load(folder / "metric.npy") if (folder / "metric.npy").is_file() else None
    return {
        "table": table,
        "encoder": encoder,
        "keys": keys,
        "words": BM25(scores, words["known"].tolist()),
        "splitter": Vocabulary(settings["stem"]),
        "mix": settings["mix"],
        "metric": metric,
    }


def _write_parts(index: Index, folder: Path) -> None:
    import pyarrow as pa
    from scipy.sparse import save_npz

    table = index.table.combine_chunks()
    with (
        pa.OSFile(str(folder / "passages.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table)
    if index.keys.dense:
        np.save(folder / "keys.npy", np.ascontiguousarray(index.keys.rows))
        mean, covariance = index.keys.moments
        np.savez(folder / "moments.npz", mean=mean, covariance=covariance)
    else:
        save_npz(folder / "keys.npz", index.keys.rows, compressed=False)
    scores = index.words.scores
    np.savez(
        folder / "words.npz",
        data=scores.data,
        indices=scores.indices,
        indptr=scores.indptr,
        shape=np.array(scores.shape),
        known=np.array(index.words.vocabulary, dtype=np.str_),
    )
    np.savez(folder / "encoder.npz", **index.encoder.arrays())  # type: ignore[arg-type]
    if index.metric is not None:
        np.save(folder / "metric.npy", index.metric)


def _is_foreign(path: Path) -> bool:
    """Return False if a file is the lock of an index or a folder that a save created, otherwise True."""
    return path.name != _LOCK and not path.name.startswith(_PREFIX)


def _read_settings(path: Path) -> dict[str, Any] | None:
    try:
        settings = json.loads((path / "index.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return settings if isinstance(settings, dict) and settings.get("qkv") == "index" else None
