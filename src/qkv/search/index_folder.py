"""Read search indexes of format 2: a subfolder of arrays, and a file index.json that names it.

    index.json                format version, current folder, and the size of each file
    g-…/passages.arrow        texts          keys.npy, moments.npz | keys.npz   vectors
    g-…/words.npz             BM25           encoder.npz             arrays of the encoder        metric.npy

qkv wrote this format before 2026-11-23. Its vectors have no checksums, so a changed bit in them is not detected.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.core.untrusted_json import Fields, is_file_name, parse_json, read_bounded
from qkv.encoders.encoder import read_arrays, restore_encoder
from qkv.errors import DamagedError, DamagedStoreError, DataError
from qkv.store.arrow_files import map_file, parse_table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["INDEX", "PREFIX", "check_passages", "check_scores", "read_folder", "read_settings"]

INDEX = "index.json"
PREFIX = "g-"
_FORMAT = 2
_REMEDY = "Build the index again."
_TYPES = {"document": "int64", "name": "string", "title": "string", "start": "int64", "end": "int64", "text": "string"}


def read_settings(path: Path) -> dict[str, Any] | None:
    """Return the content of the file index.json in a folder, or None if it does not describe an index."""
    try:
        settings = parse_json(read_bounded(path / INDEX), INDEX)
    except (OSError, DataError):
        return None
    return settings if isinstance(settings, dict) and settings.get("qkv") == "index" else None


def read_folder(path: Path) -> dict[str, Any]:
    """Read an index of format 2, and return a dict of the arguments with which `Index` creates it again.

    Raises:
        DataError: the index has another format.
        DamagedError: a file is missing, damaged or crafted.
    """
    from qkv.search.encoder_registry import ENCODERS

    settings = Fields(read_settings(path), f"the index {str(path)!r}")
    if settings.get("format") != _FORMAT or settings.get("encoder") not in tuple(ENCODERS):
        raise DataError(
            f"the index {str(path)!r} must have format {_FORMAT} and a known encoder, got format "
            f"{ascii(settings.get('format'))[:80]} and encoder {ascii(settings.get('encoder'))[:80]}. "
            "Build the index again."
        )
    folder = path / settings.file_name("folder")
    sizes = settings.record("files")
    for name, size in sizes.items():
        actual = (folder / name).stat().st_size if is_file_name(name) and (folder / name).is_file() else None
        if actual != size or actual is None:
            problem = "no such file" if actual is None else f"{actual:,} bytes"
            raise DamagedStoreError(
                f"the file {folder.name}/{name} of the index {str(path)!r} must have {ascii(size)[:80]} bytes, got "
                f"{problem}. The index is damaged; build it again."
            )
    try:
        return _read_parts(folder, settings)
    except DataError:
        raise
    except Exception as error:  # NumPy, SciPy, zipfile and tokenize raise many kinds
        raise DamagedError(
            f"the index {str(path)!r} must have intact files, but {type(error).__name__}: {str(error)[:200]}. {_REMEDY}"
        ) from None


def _read_parts(folder: Path, settings: Fields) -> dict[str, Any]:
    from scipy.sparse import csc_array, load_npz

    from qkv.search.bm25 import BM25, Vocabulary
    from qkv.search.encoder_registry import ENCODERS
    from qkv.search.passage_vectors import PassageVectors

    passages = settings.integer("passages", 1)
    kind = ENCODERS[settings.text("encoder")]
    encoder = restore_encoder(kind, settings.record("settings"), read_arrays(folder / "encoder.npz"))
    table = parse_table(map_file(folder / "passages.arrow"), "the passages of the index", remedy=_REMEDY)
    check_passages(table, passages, _REMEDY)
    words = read_arrays(folder / "words.npz")
    scores = csc_array((words["data"], words["indices"], words["indptr"]), shape=tuple(words["shape"].tolist()))
    check_scores(scores)
    known = [str(word) for word in words["known"].tolist()]
    if (folder / "keys.npy").is_file():
        moments = read_arrays(folder / "moments.npz")
        rows = np.load(folder / "keys.npy", mmap_mode="r")
        keys = PassageVectors(rows, (moments["mean"], moments["covariance"]))
        fits = rows.ndim == 2 and rows.dtype.kind == "f" and moments["covariance"].shape == (rows.shape[1],) * 2
        fits = fits and moments["mean"].shape == rows.shape[1:]
    else:
        keys = PassageVectors(load_npz(io.BytesIO((folder / "keys.npz").read_bytes())).tocsr())
        check_scores(keys.rows)
        fits = True
    shape = (passages, encoder.width)
    if not fits or keys.rows.shape != shape or scores.shape != (passages, len(known)):
        raise ValueError(f"vectors must have the shape {shape}, got {keys.rows.shape}")
    metric = np.load(folder / "metric.npy") if (folder / "metric.npy").is_file() else None
    if metric is not None and metric.shape != (encoder.width,) * 2:
        raise ValueError(f"the metric must be a square matrix of {encoder.width} rows, got shape {metric.shape}")
    return {
        "table": table,
        "encoder": encoder,
        "keys": keys,
        "words": BM25(scores, known),
        "splitter": Vocabulary(None if settings.get("stem") is None else settings.text("stem")),
        "mix": settings.number("mix"),
        "metric": metric,
    }


def check_scores(matrix: Any) -> None:
    """Raise an error if an index of a sparse matrix is out of range, which SciPy's products do not check."""
    matrix.check_format(full_check=True)
    if len(matrix.data) and not np.isfinite(matrix.data).all():
        raise ValueError("its elements must be finite")


def check_passages(table: pa.Table, passages: int, remedy: str) -> None:
    """Raise a `DamagedError` if a table is not the table of the passages of an index."""
    types = {field.name: str(field.type) for field in table.schema}
    nulls = sum(column.null_count for column in table.columns) if types == _TYPES else 1
    documents = table.column("document").to_numpy() if not nulls else np.array([-1])
    ordered = table.num_rows == passages and documents[0] >= 0 and bool((np.diff(documents) >= 0).all())
    if types != _TYPES or nulls or not ordered or int(documents[-1]) >= 2**53:
        raise DamagedError(
            f"the passages of the index must have {passages:,} rows with the columns {', '.join(_TYPES)}, got "
            f"{table.num_rows:,} rows with {', '.join(types)[:200]}. {remedy}"
        )
