"""Read and write a search index, which is stored as one container in a folder.

    index.qkv      texts, vectors, BM25 scores and the encoder, with checksums; see `qkv.core.container`
    writer.lock    held by the process that saves

The container is replaced atomically: a crash at any point leaves the previous index intact.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import csc_array, csr_array, csr_matrix

from qkv.core.container import Container, read_container, write_container
from qkv.core.files import check_creatable, make_folders
from qkv.core.typing import Float, Shaped
from qkv.encoders.encoder import pack_words, restore_encoder, unpack_words
from qkv.errors import DamagedError, DataError, StoreBusyError
from qkv.store.arrow_files import parse_table
from qkv.store.row_files import serialize

if TYPE_CHECKING:
    from qkv.encoders.encoder import TextEncoder
    from qkv.encoders.vocabulary import Vocabulary
    from qkv.search.bm25 import BM25
    from qkv.search.index import Index
    from qkv.search.passage_range import Passages, PassageVectors


_TYPES = {"document": "int64", "name": "string", "title": "string", "start": "int64", "end": "int64", "text": "string"}

Matrix = TypeVar("Matrix", csc_array, csr_array)


def _check_scores(matrix: csc_array | csr_array) -> None:
    """Raise an error if an index of a sparse matrix is out of range, which SciPy's products do not check."""
    matrix.check_format(full_check=True)
    if len(matrix.data) and not np.isfinite(matrix.data).all():
        raise ValueError("its elements must be finite")


def _check_passages(table: pa.Table, passages: int) -> None:
    """Raise a `DamagedError` if a table is not the table of the passages of an index."""
    types = {field.name: str(field.type) for field in table.schema}
    nulls = sum(column.null_count for column in table.columns) if types == _TYPES else 1
    documents = table.column("document").to_numpy() if not nulls else np.array([-1])
    ordered = table.num_rows == passages and documents[0] >= 0 and bool((np.diff(documents) >= 0).all())
    if types != _TYPES or nulls or not ordered or int(documents[-1]) >= 2**53:
        raise DamagedError(
            f"the passages of the index must have {passages:,} rows with the columns {', '.join(_TYPES)}, got "
            f"{table.num_rows:,} rows with {', '.join(types)[:200]}. {_REMEDY}"
        )


_FILE = "index.qkv"
_LOCK = "writer.lock"
_CONTENT = "a search index"
_REMEDY = "Build the index again, or restore the file from a copy."
_SPARSE = ("data", "indices", "indptr")
_CHECKED = 64
"""Number of passages with letters beyond ASCII whose words are compared with those of the index."""


def is_index(path: Path) -> bool:
    """Return whether `path` is a folder with a search index."""
    return (path / _FILE).is_file()


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
            for old in path.glob(f".{_FILE}.*"):
                old.unlink(missing_ok=True)
    except Timeout:
        raise StoreBusyError(
            f"the index {str(path)!r} must not be saved by two processes at once, and another process is saving it. "
            "Try again later."
        ) from None
    except OSError as error:
        raise DataError(
            f"path must be a writable folder, got {str(path)!r}: {error.strerror}. Choose another folder."
        ) from None


def read_index(path: Path) -> Container:
    """Return the container of a saved index; see `parse_index`.

    Raises:
        DataError: the folder contains no index.
        DamagedError: the index is damaged or crafted.
    """
    if not is_index(path):
        raise DataError(
            f"path must be a folder with a search index, got {str(path)!r}. Create an index with Index.save in Python, "
            "or with qkv search TEXTS --save FOLDER on the command line."
        )
    return read_container(path / _FILE, _CONTENT, _REMEDY, "the index")


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


class IndexParts(TypedDict):
    """The arguments with which `Index` is created again from its container."""

    table: pa.Table
    encoder: TextEncoder
    keys: PassageVectors
    words: BM25
    splitter: Vocabulary
    mix: float
    metric: Float[np.ndarray, "width width"] | None
    passages: NotRequired[Passages]


def parse_index(container: Container) -> IndexParts:
    """Return the arguments with which `Index` is created again from its container; see `read_index`."""
    from qkv.encoders.serialization import TEXT_ENCODERS
    from qkv.encoders.vocabulary import Vocabulary
    from qkv.search.bm25 import BM25
    from qkv.search.passage_range import PassageVectors

    fields = container.fields()
    passages, width = fields.integer("passages", 1), fields.integer("width", 1)
    kind = TEXT_ENCODERS[fields.text("encoder", tuple(TEXT_ENCODERS))]
    arrays = {
        name.removeprefix("encoder "): container.array(name).copy() for name in container if name.startswith("encoder ")
    }
    encoder = restore_encoder(kind, fields.record("settings"), arrays)
    table = parse_table(pa.py_buffer(container.bytes("passages")), "the passages of the index", remedy=_REMEDY)
    _check_passages(table, passages)
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
    splitter, mix = Vocabulary(None if fields.get("stem") is None else fields.text("stem")), fields.number("mix")
    _check_words(table, splitter, words)
    bm25 = BM25(scores, words)
    return IndexParts(table=table, encoder=encoder, keys=keys, words=bm25, splitter=splitter, mix=mix, metric=metric)


def _check_words(table: pa.Table, splitter: Vocabulary, words: list[str]) -> None:
    """Raise a `DataError` if the index has other words than its texts, which older versions divided differently."""
    texts = table.column("text")
    foreign = texts.filter(pc.invert(pc.string_is_ascii(texts))).slice(0, _CHECKED)
    found = {word for text in foreign.to_pylist() for word in splitter(text)}
    if lost := sorted(found.difference(words) if found else ()):
        raise DataError(
            f"the words of the index must be those of its texts, got none for {lost[0]!r}: another version of qkv has "
            "divided the texts into words. Build the index again."
        )


def _sparse_parts(name: str, matrix: csc_array | csr_array | csr_matrix) -> dict[str, Shaped[np.ndarray, "*_"] | bytes]:
    return {f"{name} {part}": np.asarray(getattr(matrix, part)) for part in _SPARSE}


def _sparse(container: Container, name: str, kind: type[Matrix], shape: tuple[int, int]) -> Matrix:
    """Return a sparse matrix of a container, after checking every index, because SciPy's products do not."""
    try:
        data, indices, indptr = (container.array(f"{name} {part}", 1) for part in _SPARSE)
        matrix = kind((data, indices, indptr), shape=shape)
        _check_scores(matrix)
    except DataError:
        raise
    except Exception as error:  # ValueError, TypeError, IndexError or OverflowError of SciPy
        raise container.damaged(f"have a sparse matrix {name!r} of shape {shape}", str(error)[:200]) from None
    return matrix


def _is_foreign(path: Path) -> bool:
    """Return whether a file is neither the lock of an index nor a temporary file of an interrupted save."""
    return path.name != _LOCK and not path.name.startswith(f".{_FILE}.")
