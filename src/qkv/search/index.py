"""Index: passages with their keys and words, which a query attends to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from qkv.core.progress import Progress
from qkv.errors import DataError, OptionError
from qkv.search.bm25 import BM25, Vocabulary
from qkv.search.encoder_registry import Encoder, encoder_of
from qkv.search.hits import Evidence, Hit, joined
from qkv.search.passage_vectors import PassageVectors, spread_of
from qkv.search.passages import passages_of
from qkv.search.text_sources import Document

__all__ = ["Index"]

_TOGETHER = 64
_CELLS = 2**24
"""Queries that are compared at once, and pairs with passages that they may make."""
_FLAT = 1e-6
"""A spread that is rounding: all passages are alike to the query."""


class Index:
    """Passages that queries attend to.

        score(q, p) = m z(q · W k_p) + (1 − m) z(bm25(q, p))
        weights     = softmax over passages(score / T)

    z takes away the mean over all passages and divides by their standard deviation, so that m = ½ lets both
    comparisons count alike, whatever their units. W = W_Qᵀ W_K is learned, or 1.

    Make one with `Index.from_texts` or `Index.open`.

    Attributes:
        table: a pyarrow table, one row for each passage: document, name, title, start, end, text.
        encoder: how texts become vectors.
        keys: vectors of the passages.
        words: their words.
        mix: m.
        metric: W `(width, width)`; None: 1.

    Example:
        >>> index = Index.from_texts([Document("a", "A shepherd found a golden ring."),
        ...                   Document("b", "The den is dark, and the prisoners see shadows."),
        ...                   Document("c", "The shepherd turned the ring and was invisible.")])
        >>> hits = index.search("Who saw shadows in the den?")
        >>> hits[0].document, list(hits[0].evidence.of_words())[:2]
        ('b', ['den', 'shadows'])
    """

    def __init__(
        self,
        table: Any,
        encoder: Encoder,
        keys: Any,
        words: BM25,
        splitter: Vocabulary,
        *,
        mix: float = 0.5,
        metric: np.ndarray | None = None,
    ) -> None:
        self.table = table
        self.encoder = encoder
        self.keys = keys if isinstance(keys, PassageVectors) else PassageVectors(keys)
        self.words = words
        self.splitter = splitter
        self.mix = _share(mix)
        self.metric = metric
        self.owners: np.ndarray = table.column("document").to_numpy()

    @classmethod
    def from_texts(
        cls,
        source: Any,
        *,
        encoder: str | Encoder = "latent",
        rank: int | None = None,
        stem: str | None = None,
        column: str | None = None,
        words: int = 200,
        overlap: int = 40,
        mix: float = 0.5,
        progress: Progress | None = None,
    ) -> Index:
        """Index texts.

        Args:
            source: documents, or where they are: see `read_texts`; also files of SMART and folders of BEIR.
            encoder: see `encoder_of`, or one of your own.
            rank: of the latent space; None: half as many as passages, from 30 to 300.
            stem: `"english"`: words are compared by their stems.
            column: of a table, the column of texts.
            words: at most, in a passage; 0: documents stay whole.
            overlap: words that a passage shares with the one before, in whole sentences.
            mix: m, from 0 (words alone) to 1 (vectors alone).
            progress: called with what is done.

        Raises:
            DataError: there is no text, or no word in it.
            OptionError: an option cannot be used.
            MissingPackageError: scikit-learn or bm25s is not installed.
        """
        import pyarrow as pa

        from qkv.search.collections import read_documents

        _share(mix)
        documents = source if _are_documents(source) else read_documents(source, column)
        if not documents:
            raise DataError("there is no document to index. Give some.")
        made = encoder_of(encoder, rank=rank, stem=stem) if isinstance(encoder, str) else encoder
        splitter = Vocabulary(stem)
        passages = passages_of(documents, words, overlap)
        texts = [documents[part.document].whole[part.start : part.end] for part in passages]
        split = []
        for at, text in enumerate(texts, 1):
            split.append(splitter(text))
            if progress is not None and (at % 1000 == 0 or at == len(texts)):
                progress("words", at, len(texts))
        bm25 = BM25.fit(_some_words(split))
        table = pa.table(
            {
                "document": pa.array([part.document for part in passages], pa.int64()),
                "name": [documents[part.document].name for part in passages],
                "title": [documents[part.document].title for part in passages],
                "start": pa.array([part.start for part in passages], pa.int64()),
                "end": pa.array([part.end for part in passages], pa.int64()),
                "text": texts,
            }
        )
        given: Any = split if made.vocabulary is not None and made.vocabulary.stem == stem else texts
        return cls(table, made, made.fit_encode(given, progress), bm25, splitter, mix=mix)

    @classmethod
    def open(cls, path: str | PathLike[str]) -> Index:
        """Open what `save` wrote; keys are memory-mapped.

        Raises:
            DataError: it is no index.
            DamagedStoreError: a file is missing or cut off.
        """
        from qkv.search.index_files import open_index

        return open_index(Path(path))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the index to a folder, whole or not at all; an index that is there is replaced.

        Raises:
            DataError: something else is there, or it cannot be written.
        """
        from qkv.search.index_files import save_index

        save_index(self, Path(path))

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return f"Index({len(self):,} passages of {self.documents:,} documents, {self.encoder.name})"

    @property
    def documents(self) -> int:
        """How many there are."""
        return int(self.owners[-1]) + 1

    def search(
        self,
        query: str,
        top: int = 10,
        *,
        mix: float | None = None,
        temperature: float = 1.0,
        evidence: bool = True,
    ) -> list[Hit]:
        """The passages that get most attention, heaviest first; none where no word of the query is known.

        Args:
            query: in words.
            top: passages at most.
            mix: m; None: that of the index.
            temperature: T, in deviations; less is sharper.
            evidence: compute what every word adds.

        Raises:
            OptionError: the query is empty, or a number is out of range.
        """
        if not query.strip():
            raise OptionError("the query is empty. Ask about something.")
        mix = self.mix if mix is None else _share(mix)
        asked = _Asked(self, [query], mix)
        rows, weights = (part[0].tolist() for part in self._attended(asked, top, temperature))
        parts = self.encoder.word_contributions(query) if evidence and asked.near[0] else None
        found = []
        for row, weight in zip(rows, weights, strict=True):
            if row >= 0 and asked.found[0]:
                record = self.table.slice(row, 1).to_pylist()[0]
                del record["document"]
                why = self._evidence(query, parts, row, record["text"], asked) if evidence else None
                name = record.pop("name")
                found.append(Hit(name, **record, weight=weight, score=asked.score(row), evidence=why))
        return found

    def rank(
        self,
        queries: Sequence[str],
        top: int = 1000,
        *,
        mix: float | None = None,
        progress: Progress | None = None,
    ) -> Iterator[dict[str, float]]:
        """For each query, the documents that get most attention: that of their best passage, by name.

        Args:
            queries: in words.
            top: passages at most.
            mix: m; None: that of the index.
            progress: called with the queries that are done.
        """
        firsts = np.searchsorted(self.owners, np.arange(self.documents))
        names = self.table.column("name").take(firsts).to_pylist()
        mix = self.mix if mix is None else _share(mix)
        together = max(1, min(_TOGETHER, _CELLS // len(self)))
        for begin in range(0, len(queries), together):
            asked = _Asked(self, queries[begin : begin + together], mix)
            for at, (rows, weights) in enumerate(zip(*self._attended(asked, top, 1.0), strict=True)):
                best: dict[int, float] = {}
                for row, weight in zip(rows.tolist(), weights.tolist(), strict=True):
                    if row >= 0 and asked.found[at]:
                        best.setdefault(int(self.owners[row]), weight)
                yield {names[owner]: weight for owner, weight in best.items()}
            if progress is not None:
                progress("ranking", min(begin + together, len(queries)), len(queries))

    def with_metric(self, metric: np.ndarray | None) -> Index:
        """The same passages, compared through W `(width, width)`; None: as they are."""
        return Index(self.table, self.encoder, self.keys, self.words, self.splitter, mix=self.mix, metric=metric)

    def with_encoder(self, encoder: Encoder, progress: Progress | None = None) -> Index:
        """The same passages and words with other vectors, which are made anew."""
        keys = encoder.fit_encode(self.table.column("text").to_pylist(), progress)
        return Index(self.table, encoder, keys, self.words, self.splitter, mix=self.mix)

    def vectors(self, queries: Sequence[str]) -> Any:
        """What is compared with the keys: the encoded queries, through W."""
        encoded = self.encoder.encode(queries)
        return encoded if self.metric is None else encoded @ self.metric

    # -- within -----------------------------------------------------------------------------------------

    def _attended(self, asked: _Asked, top: int, temperature: float) -> tuple[np.ndarray, np.ndarray]:
        """Rows and weights of the strongest passages of each query."""
        import qkv
        from qkv.readouts import TopWeights
        from qkv.scores import Biased, Dot

        if top < 1:
            raise OptionError(f"top is {top}, and a whole number from 1 is wanted.")
        if not 0 < temperature < float("inf"):
            raise OptionError(f"the temperature is {temperature}, and more than 0 is wanted.")
        seen = qkv.observe(
            asked.query / np.float32(temperature),
            asked.key,
            np.zeros((len(self), 1), np.float32),
            score=Biased(Dot(), bias=asked.bias / np.float32(temperature)),
            readouts=[TopWeights(min(top, len(self)))],
        )
        return seen.readouts[0].keys, seen.readouts[0].weights

    def _evidence(self, query: str, own: Any, row: int, text: str, asked: _Asked) -> Evidence:
        """What the words of a query, whose parts are its `own`, share with those of a passage."""
        parts = []
        if own is not None:
            (left, first), (right, second) = own, self.encoder.word_contributions(text)
            through = first if self.metric is None else first @ self.metric
            shares = through @ second.T
            parts.append((left, right, asked.near[0] * (shares if self.keys.dense else shares.toarray())))
        shared = self.words.parts(self.splitter(query), row)
        if asked.worded[0] and shared:
            names = list(shared)
            parts.append((names, names, asked.worded[0] * np.diag(list(shared.values()))))
        return joined(parts, -float(asked.centre[0]))


class _Asked:
    """Queries as the engine takes them: `score = query · key + bias − centre`.

    near, worded: what an inner product and a BM25 score are multiplied by, for each query; 0 where all
    passages are alike. found: whether a word of the query is known.
    """

    def __init__(self, index: Index, queries: Sequence[str], mix: float) -> None:
        vectors = index.vectors(queries) if mix > 0 else None
        words = index.words.score([index.splitter(query) for query in queries])
        known = words.any(axis=1)
        mean, spread = spread_of(words)
        self.worded = _over(1 - mix, spread)
        self.centre = self.worded * mean
        self.bias = (words * self.worded[:, None]).astype(np.float32)
        self.near = np.zeros(len(queries))
        if vectors is None or not index.keys.dense:
            self.query = np.zeros((len(queries), 1), np.float32)
            self.key = np.zeros((len(index), 1), np.float32)
        if vectors is not None:
            compared = None if index.keys.dense else index.keys.compared(vectors)
            mean, spread = index.keys.spread(vectors) if compared is None else spread_of(compared)
            self.near = _over(mix, spread)
            self.centre = self.centre + self.near * mean
            if compared is None:
                self.query = (vectors * self.near[:, None]).astype(np.float32)
                self.key = index.keys.rows
            else:
                self.bias += (compared * self.near[:, None]).astype(np.float32)
            known |= (vectors if compared is None else compared).any(axis=1)
        self.found: np.ndarray = np.asarray(known)

    def score(self, row: int) -> float:
        """Of the first query with a passage."""
        return float(self.query[0] @ self.key[row] + self.bias[0, row]) - float(self.centre[0])


def _over(share: float, spread: np.ndarray) -> np.ndarray:
    return np.where(spread > _FLAT, share / np.where(spread > _FLAT, spread, 1.0), 0.0)


def _share(mix: float) -> float:
    if not 0 <= mix <= 1:
        raise OptionError(f"the mix is {mix}, and it is from 0 (words alone) to 1 (vectors alone).")
    return mix


def _are_documents(source: Any) -> bool:
    return (
        isinstance(source, Sequence)
        and not isinstance(source, str)
        and all(isinstance(each, Document) for each in source)
    )


def _some_words(texts: list[Sequence[str]]) -> list[Sequence[str]]:
    if not any(texts):
        raise DataError("the texts have no words, or only such as “the” and “of”. Give other texts.")
    return texts
