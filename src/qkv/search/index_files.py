"""Read and write a search index, which is stored as one container in a folder.

    index.qkv      texts, vectors, BM25 scores and the encoder, with checksums; see `qkv.core.container`
    writer.lock    held by the process that saves

The container is replaced atomically: a crash at any point leaves the previous index intact. Folders with a file
index.json (format 2), which qkv wrote before 2026-11-23, are read by `read_folder`, and replaced when they are saved.
Their vectors have no checksums:

    index.json                format version, current folder, and the size of each file
    g-…/passages.arrow        texts          keys.npy, moments.npz | keys.npz   vectors
    g-…/words.npz             BM25           encoder.npz             arrays of the encoder        metric.npy
"""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.core.container import Container, read_container, write_container
from qkv.core.files import check_creatable, make_folders
from qkv.core.typing import Shaped
from qkv.core.untrusted_json import Fields, is_file_name, parse_json, read_bounded
from qkv.encoders.encoder import pack_words, read_arrays, restore_encoder, unpack_words
from qkv.errors import DamagedError, DamagedStoreError, DataError, StoreBusyError
from qkv.store.arrow_files import map_file, parse_table
from qkv.store.row_files import serialize

if TYPE_CHECKING:
    import pyarrow as pa
    from scipy.sparse import csc_array, csr_array, csr_matrix

    from qkv.search.index import Index


__all__ = ["check_index_path", "index_container", "is_index", "parse_index", "read_index", "save_index", "verify_index"]


INDEX = "index.json"
PREFIX = "g-"
_FORMAT = 2
_OLD_REMEDY = "Build the index again."
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
            f"the index {str(path)!r} must have intact files, but {type(error).__name__}: {str(error)[:200]}. "
            f"{_OLD_REMEDY}"
        ) from None


def _read_parts(folder: Path, settings: Fields) -> dict[str, Any]:
    from scipy.sparse import csc_array, load_npz

    from qkv.search.bm25 import BM25
    from qkv.search.encoder_registry import ENCODERS
    from qkv.search.passage_vectors import PassageVectors

    passages = settings.integer("passages", 1)
    kind = ENCODERS[settings.text("encoder")]
    encoder = restore_encoder(kind, settings.record("settings"), read_arrays(folder / "encoder.npz"))
    table = parse_table(map_file(folder / "passages.arrow"), "the passages of the index", remedy=_OLD_REMEDY)
    check_passages(table, passages, _OLD_REMEDY)
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
    parts = {"table": table, "encoder": encoder, "keys": keys, "words": BM25(scores, known), "metric": metric}
    return parts | _split_and_mix(settings)


def _split_and_mix(settings: Fields) -> dict[str, Any]:
    """Return how texts are split into words, and the share of the vectors."""
    from qkv.search.bm25 import Vocabulary

    stem = None if settings.get("stem") is None else settings.text("stem")
    return {"splitter": Vocabulary(stem), "mix": settings.number("mix")}


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


_FILE = "index.qkv"
_LOCK = "writer.lock"
_CONTENT = "a search index"
_REMEDY = "Build the index again, or restore the file from a copy."
_SPARSE = ("data", "indices", "indptr")


def is_index(path: Path) -> bool:
    """Return whether `path` is a folder with a search index."""
    return (path / _FILE).is_file() or read_settings(path) is not None


def check_index_path(path: Path) -> None:
    """Check that an index can be saved at `path`, so that an error is raised before the index is built."""
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
        make_folders(path)
        with FileLock(path / _LOCK, timeout=0):
            _write(index, path / _FILE)
            for old in [path / INDEX, *path.glob(f".{_FILE}.*")]:
                old.unlink(missing_ok=True)
            for folder in path.glob(f"{PREFIX}*"):
                shutil.rmtree(folder, ignore_errors=True)
    except Timeout:
        raise StoreBusyError(
            f"the index {str(path)!r} must not be saved by two processes at once, and another process is saving it. "
            "Try again later."
        ) from None
    except OSError as error:
        raise DataError(
            f"path must be a writable folder, got {str(path)!r}: {error.strerror}. Choose another folder."
        ) from None


def read_index(path: Path) -> dict[str, Any]:
    """Read a saved index, and return a dict of the arguments with which `Index` creates it again.

    Raises:
        DataError: the folder contains no index, or one of another format.
        DamagedError: a file is missing, damaged or crafted.
    """
    container = index_container(path)
    return read_folder(path) if container is None else parse_index(container)


def index_container(path: Path) -> Container | None:
    """Return the container of a saved index; None for a folder that qkv wrote before 2026-11-23."""
    if not is_index(path):
        raise DataError(
            f"path must be a folder with a search index, got {str(path)!r}. Create an index with Index.save in Python, "
            "or with qkv search TEXTS --save FOLDER on the command line."
        )
    if not (path / _FILE).is_file():
        return None
    return read_container(path / _FILE, _CONTENT, _REMEDY, "the index")


def verify_index(path: Path) -> list[str]:
    """Return the names of the damaged parts of a saved index."""
    container = index_container(path)
    if container is None:
        read_folder(path)
        return []
    return container.verify()


def _write(index: Index, file: Path) -> None:
    settings = {
        "encoder": index.encoder.name,
        "settings": index.encoder.settings(),
        "stem": index.splitter.stem,
        "mix": index.mix,
        "passages": len(index),
        "words": len(index.words.vocabulary),
        "width": int(index.keys.rows.shape[1]),
    }
    parts: dict[str, Shaped[np.ndarray, "*_"] | bytes] = {"passages": serialize(index.table).to_pybytes()}
    rows = index.keys.rows
    if isinstance(rows, np.ndarray):
        parts["keys"] = np.asarray(rows)
        parts["mean"], parts["covariance"] = index.keys.moments
    else:
        parts |= _sparse_parts("keys", rows.tocsr())
    parts |= _sparse_parts("scores", index.words.scores)
    parts["words"] = pack_words(index.words.vocabulary)
    parts |= {f"encoder {name}": array for name, array in index.encoder.arrays().items()}
    if index.metric is not None:
        parts["metric"] = index.metric
    write_container(file, _CONTENT, settings, parts, "the index")


def parse_index(container: Container) -> dict[str, Any]:
    """Return the arguments with which `Index` is created again from its container; see `read_index`."""
    import pyarrow as pa
    from scipy.sparse import csc_array, csr_array

    from qkv.search.bm25 import BM25
    from qkv.search.encoder_registry import ENCODERS
    from qkv.search.passage_vectors import PassageVectors

    fields = container.fields()
    passages, width = fields.integer("passages", 1), fields.integer("width", 1)
    kind = ENCODERS[fields.text("encoder", tuple(ENCODERS))]
    arrays = {
        name.removeprefix("encoder "): container.array(name).copy() for name in container if name.startswith("encoder ")
    }
    encoder = restore_encoder(kind, fields.record("settings"), arrays)
    table = parse_table(pa.py_buffer(container.bytes("passages")), "the passages of the index", remedy=_REMEDY)
    check_passages(table, passages, _REMEDY)
    if "keys" in container:
        rows = container.array("keys", 2)
        moments = container.array("mean", 1), container.array("covariance", 2)
        keys = PassageVectors(rows, moments)
        fits = rows.dtype.kind == "f" and moments[0].shape == (width,) and moments[1].shape == (width, width)
    else:
        keys = PassageVectors(_sparse(container, "keys", csr_array, (passages, width)))
        fits = True
    if not fits or keys.rows.shape != (passages, width) or encoder.width != width:
        raise container.damaged(f"have {passages:,} vectors of width {width:,}", f"shape {keys.rows.shape}")
    words = unpack_words(container.array("words", 1))
    scores = _sparse(container, "scores", csc_array, (passages, fields.integer("words")))
    metric = container.array("metric", 2).copy() if "metric" in container else None
    if len(words) != scores.shape[1] or (metric is not None and metric.shape != (width, width)):
        raise container.damaged(f"have {scores.shape[1]:,} words and a square metric", f"{len(words):,} words")
    parts = {"table": table, "encoder": encoder, "keys": keys, "words": BM25(scores, words), "metric": metric}
    return parts | _split_and_mix(fields)


def _sparse_parts(name: str, matrix: csc_array | csr_array | csr_matrix) -> dict[str, Shaped[np.ndarray, "*_"] | bytes]:
    return {f"{name} {part}": np.asarray(getattr(matrix, part)) for part in _SPARSE}


def _sparse(container: Container, name: str, kind: Any, shape: tuple[int, int]) -> Any:
    """Return a sparse matrix of a container, after checking every index, because SciPy's products do not."""
    try:
        data, indices, indptr = (container.array(f"{name} {part}", 1) for part in _SPARSE)
        matrix = kind((data, indices, indptr), shape=shape)
        check_scores(matrix)
    except DataError:
        raise
    except Exception as error:  # ValueError, TypeError, IndexError or OverflowError of SciPy
        raise container.damaged(f"have a sparse matrix {name!r} of shape {shape}", str(error)[:200]) from None
    return matrix


def _is_foreign(path: Path) -> bool:
    """Return False if a file is the lock of an index or what an interrupted save left behind, otherwise True."""
    return path.name != _LOCK and not path.name.startswith((PREFIX, f".{_FILE}."))
