"""Approximate indexes of other libraries (FAISS, usearch, Lance) behind one interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from qkv.core.typing import Float, Int
from qkv.errors import KindError


class VectorIndex(ABC):
    """An approximate index of vectors, each of which has a whole number as its label.

    Args:
        index: the object of the library.
        options: further arguments of its search.

    Attributes:
        name: the name in notes.
    """

    name: str

    def __init__(self, index: Any, options: Mapping[str, object]) -> None:
        self.index, self.options = index, dict(options)

    @abstractmethod
    def labels(self) -> Int[np.ndarray, " rows"]:
        """Return the labels of all vectors in the index, in any order."""

    @abstractmethod
    def search(self, vectors: Float[np.ndarray, "q width"], count: int) -> Int[np.ndarray, "q count"]:
        """Return the labels of about the `count` nearest vectors of each query, −1 in unused places."""


class _FaissIndex(VectorIndex):
    """An index of FAISS. Labels are those of `add_with_ids`, otherwise the order of `add`."""

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"FAISS {type(self.index).__name__}"

    def labels(self) -> Int[np.ndarray, " rows"]:
        return _faiss_labels(self.index)

    def search(self, vectors: Float[np.ndarray, "q width"], count: int) -> Int[np.ndarray, "q count"]:
        return np.asarray(self.index.search(vectors, count, **self.options)[1], np.int64)


def _faiss_labels(index: Any) -> Int[np.ndarray, " rows"]:
    faiss = import_module("faiss")
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        return _faiss_labels(index.index)
    if isinstance(index, faiss.IndexRefine):
        return _faiss_labels(index.base_index)
    if hasattr(index, "id_map"):
        return np.asarray(faiss.vector_to_array(index.id_map), np.int64)
    if not isinstance(index, faiss.IndexIVF):
        return np.arange(index.ntotal)
    lists = index.invlists
    sizes = [lists.list_size(number) for number in range(index.nlist)]
    parts = [
        np.array(faiss.rev_swig_ptr(lists.get_ids(number), size), np.int64) for number, size in enumerate(sizes) if size
    ]
    return np.concatenate([np.zeros(0, np.int64), *parts])


class _UsearchIndex(VectorIndex):
    """An index of usearch, whose keys are the labels."""

    name = "usearch"

    def labels(self) -> Int[np.ndarray, " rows"]:
        return np.asarray(self.index.keys).astype(np.int64)

    def search(self, vectors: Float[np.ndarray, "q width"], count: int) -> Int[np.ndarray, "q count"]:
        matches = self.index.search(vectors, count, **self.options)
        labels = np.array(matches.keys).astype(np.int64).reshape(len(vectors), -1)
        used = np.asarray(matches.counts).reshape(-1, 1)
        return np.where(np.arange(labels.shape[1]) < used, labels, -1)


class LanceIndex(VectorIndex):
    """A dataset of Lance with an index of a column of vectors. Lance scans rows that its index does not have.

    Args:
        index: the dataset.
        options: further entries of `nearest`, such as `nprobes` or `refine_factor`.
        column: the column of vectors.
        id: the column of labels; None: the order of the rows, without deleted ones.
    """

    name = "Lance"

    def __init__(self, index: Any, options: Mapping[str, object], column: str, id: str | None) -> None:
        super().__init__(index, options)
        self.column, self.id = column, id
        self._sorted: tuple[np.ndarray, np.ndarray] | None = None

    def of_version(self, version: int) -> LanceIndex:
        """Return the same index over another version of the dataset."""
        return LanceIndex(self.index.checkout_version(version), self.options, self.column, self.id)

    def labels(self) -> Int[np.ndarray, " rows"]:
        """Return the cells of the column of labels, or the indices of the rows."""
        if self.id is None:
            return np.arange(self.index.count_rows())
        return np.asarray(self.index.to_table(columns=[self.id])[self.id].to_numpy(), np.int64)

    def search(self, vectors: Float[np.ndarray, "q width"], count: int) -> Int[np.ndarray, "q count"]:
        out = np.full((len(vectors), count), -1)
        named = self.id or "_rowaddr"
        for row, vector in enumerate(vectors):
            nearest = {"column": self.column, "q": vector, "k": count, **self.options}
            found = self.index.to_table(nearest=nearest, columns=[named, "_distance"])[named].to_numpy()
            out[row, : len(found)] = self._positions(found) if self.id is None else found
        return out

    def _positions(self, addresses: np.ndarray) -> Int[np.ndarray, " n"]:
        """Return the positions of rows by their addresses, which consist of a fragment and a place in it."""
        if self._sorted is None:
            every = self.index.to_table(columns=["_rowaddr"])["_rowaddr"].to_numpy()
            order = np.argsort(every, kind="stable")
            self._sorted = every[order], order
        every, order = self._sorted
        return np.asarray(order[np.searchsorted(every, addresses)])


class _OtherIndex(VectorIndex):
    """An object with an attribute `labels` and a method `search(vectors, count)` that returns labels."""

    @property
    def name(self) -> str:  # type: ignore[override]
        return type(self.index).__name__

    def labels(self) -> Int[np.ndarray, " rows"]:
        return np.asarray(self.index.labels, np.int64)

    def search(self, vectors: Float[np.ndarray, "q width"], count: int) -> Int[np.ndarray, "q count"]:
        return np.asarray(self.index.search(vectors, count, **self.options), np.int64)


def wrap_index(index: object, options: Mapping[str, object], column: str | None, id: str | None) -> VectorIndex:
    """Return the index of a library behind the interface `VectorIndex`.

    Args:
        index: an index of FAISS or usearch, a dataset of Lance, or an object with `labels` and `search`.
        options: further arguments of its search.
        column: the column of vectors of a dataset of Lance.
        id: the column of labels of a dataset of Lance.

    Raises:
        KindError: The index is of another kind.
    """
    library = type(index).__module__.split(".")[0]
    if library == "lance":
        return LanceIndex(index, options, column or "vector", id)
    if library == "faiss":
        return _FaissIndex(index, options)
    if library == "usearch":
        return _UsearchIndex(index, options)
    if hasattr(index, "labels") and hasattr(index, "search"):
        return _OtherIndex(index, options)
    raise KindError(
        "index must be an index of FAISS or usearch, a dataset of Lance, or an object with labels and a method "
        f"search(vectors, count), got {type(index).__module__}.{type(index).__name__}. Write a class with both."
    )
