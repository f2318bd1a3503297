"""Define the search index, which compares queries with passages by vectors and BM25."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import TypeGuard

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_array, csr_matrix

from qkv.core.checks import check_integers
from qkv.core.progress import Progress, checkpoint, report
from qkv.core.typing import Float, Int
from qkv.encoders.encoder import TextEncoder, WordContributions
from qkv.encoders.serialization import build_encoder
from qkv.encoders.text_encoders import LatentEncoder
from qkv.encoders.vocabulary import Vocabulary
from qkv.errors import DataError, OptionError
from qkv.search.bm25 import BM25
from qkv.search.hits import Contributions, Hit, TopPassages, merge_contributions
from qkv.search.passage_range import PassageRange, Passages, PassageVectors, QueryWords, Selection
from qkv.search.passages import passages_of
from qkv.search.text_sources import Document

_MAX_QUERIES = 64
_MAX_PAIRS = 2**24
"""Maximum number of queries compared at once, and maximum number of query-passage pairs in memory."""
_MIN_DEVIATION = 1e-6
"""A standard deviation below this is rounding error: all passages score the same."""


class Index:
    """Search index of the passages of texts, which queries are compared with by vectors and by BM25.

        score(q, p) = m z(q · W k_p) + (1 − m) z(bm25(q, p))
        weights     = softmax over passages(score / T)

    z subtracts the mean over all passages and divides by their standard deviation, so that with m = ½ both scores
    count equally. W = W_Qᵀ W_K is learned, or the identity matrix.

    Create an index with `Index.from_texts` or `Index.open`.

    Attributes:
        table: pyarrow table with one row per passage: document, name, title, start, end, text.
        encoder: text encoder.
        keys: vectors of the passages.
        words: BM25 scores of the passages.
        mix: m, the share of the vectors in the score.
        metric: W `(width, width)`; None for the identity matrix.
        passages: what compares queries with the passages, in this process or in those of a cluster.

    Example:
        >>> index = Index.from_texts([Document("a", "A shepherd found a golden ring."),
        ...                   Document("b", "The den is dark, and the prisoners see shadows."),
        ...                   Document("c", "The shepherd turned the ring and was invisible.")])
        >>> hits = index.search("Who saw shadows in the den?")
        >>> hits[0].document, list(hits[0].contributions.by_word())[:2]
        ('b', ['den', 'shadows'])
    """

    def __init__(
        self,
        table: pa.Table,
        encoder: TextEncoder,
        keys: PassageVectors | Float[np.ndarray, "passages width"] | csr_array | csr_matrix,
        words: BM25,
        splitter: Vocabulary,
        *,
        mix: float = 0.5,
        metric: Float[np.ndarray, "width width"] | None = None,
        passages: Passages | None = None,
    ) -> None:
        self.table = table
        self.encoder = encoder
        self.keys = keys if isinstance(keys, PassageVectors) else PassageVectors(keys)
        self.words = words
        self.splitter = splitter
        self.mix = _check_mix(mix)
        self.metric = metric
        self.passages: Passages = PassageRange(self.keys, words) if passages is None else passages
        self.owners: Int[np.ndarray, " passages"] = table.column("document").to_numpy()

    @classmethod
    def from_texts(
        cls,
        source: object,
        *,
        encoder: str | TextEncoder = "latent",
        n_components: int | None = None,
        stem: str | None = None,
        column: str | None = None,
        words: int = 200,
        overlap: int = 40,
        mix: float | None = None,
        progress: Progress | None = None,
    ) -> Index:
        """Split texts into passages, and return a search index of the passages.

        Args:
            source: list of documents, SMART file, BEIR folder, or a source that `read_texts` accepts.
            encoder: name for `build_encoder`, or an encoder.
            n_components: number of dimensions of the latent space; None to choose it from the passages by
                `qkv.search.choose_settings`, or by `default_components` for fewer than 100 passages of at least
                20 words.
            stem: `"english"` to compare words by their stems; None to compare them as written.
            column: column of texts, if the source is a table.
            words: maximum number of words per passage; 0 for whole documents.
            overlap: maximum number of words shared with the previous passage, in whole sentences.
            mix: m, from 0 (BM25 alone) to 1 (vectors alone); None to choose it from the passages, or ½ for fewer
                than 100 passages of at least 20 words.
            progress: called after each step.

        Raises:
            DataError: the source contains no text, or the texts contain no words.
            OptionError: an option is invalid.
            MissingPackageError: scikit-learn or bm25s is not installed.
        """
        from qkv.search.choose_settings import choose_components_and_mix, choose_mix
        from qkv.search.collections import read_documents

        if mix is not None:
            _check_mix(mix)
        documents = source if _are_documents(source) else read_documents(source, column)
        if not documents:
            raise DataError("source must contain at least one document, got an empty list. Pass at least one text.")
        built = build_encoder(encoder, n_components=n_components, stem=stem) if isinstance(encoder, str) else encoder
        splitter = Vocabulary(stem)
        passages = passages_of(documents, words, overlap)
        texts = [documents[part.document].whole[part.start : part.end] for part in passages]
        split: list[Sequence[str]] = []
        for begin in range(0, len(texts), 1000):
            split += map(splitter, texts[begin : begin + 1000])
            report(progress, "words", len(split), len(texts))
        if not any(split):
            raise DataError(
                "source must contain at least one word that is not a stop word such as 'the' or 'of', got none. "
                "Add a document with other words."
            )
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
        bm25 = BM25.fit(split)
        if isinstance(encoder, str) and isinstance(built, LatentEncoder) and (n_components is None or mix is None):
            settings = choose_components_and_mix(texts, built, splitter, mix, progress)
            built, mix = LatentEncoder(settings.n_components, built.weighting, stem), settings.mix
        is_split = built.vocabulary is not None and built.vocabulary.stem == stem
        given: Sequence[object] = split if is_split else texts
        keys = built.fit_encode(given, progress)
        if mix is None:
            mix = choose_mix(texts, built, keys, splitter, progress).mix
        return cls(table, built, keys, bm25, splitter, mix=mix)

    @classmethod
    def open(cls, path: str | PathLike[str], cluster: str | None = None) -> Index:
        """Open the index in a folder that `save` wrote, with dense vectors memory-mapped.

        With `cluster`, workers hold the vectors and the BM25 scores of the passages and compare them with queries, and
        this process encodes queries and explains hits. Hits, weights and scores are the same.

        Args:
            path: the folder; the machines of a cluster must see it under the same path.
            cluster: "processes", "ray", one of them with a number of workers such as "processes:4", or the address of
                a cluster of Ray such as "ray://host:10001". None: this process.

        Raises:
            DataError: the folder contains no index.
            DamagedError: the index is damaged.
            OptionError: `cluster` names no workers.
            MissingPackageError: Ray is not installed.
        """
        from qkv.search.cluster_passages import open_passages
        from qkv.search.index_files import parse_index, read_index

        return cls(**(parse_index(read_index(Path(path))) if cluster is None else open_passages(Path(path), cluster)))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the index to a folder atomically. An index that the folder already contains is replaced.

        Raises:
            DataError: the folder contains other files, or cannot be written.
        """
        from qkv.search.index_files import save_index

        save_index(self, Path(path))

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return f"Index({len(self):,} passages of {self.documents:,} documents, {self.encoder.name})"

    @property
    def documents(self) -> int:
        """Number of documents whose passages are in the index."""
        return int(self.owners[-1]) + 1

    def search(
        self,
        query: str,
        top: int = 10,
        *,
        mix: float | None = None,
        temperature: float = 1.0,
        contributions: bool = True,
    ) -> list[Hit]:
        """Return the passages with the largest attention weights for a query, in descending order of weight.

        The list is empty if no word of the query is known.

        Args:
            query: text of the query.
            top: maximum number of passages.
            mix: m; None for the value of the index.
            temperature: T, in standard deviations of the score; a small T concentrates the weights.
            contributions: whether to compute the contributions of words.

        Raises:
            OptionError: the query is no text or is empty, or a number is out of range.
        """
        if not isinstance(query, str) or not query.strip():
            raise OptionError(f"query must contain at least one word of text, got {query!r}. Add one.")
        mix = self.mix if mix is None else _check_mix(mix)
        bound = _Queries(self, [query], mix)
        best = bound.top(top, temperature, True)
        parts = self.encoder.word_contributions(query) if contributions and bound.vector_scale[0] else None
        found = []
        assert best.scores is not None
        scores = best.scores[0] - bound.center[0]
        for row, weight, score in zip(best.rows[0].tolist(), best.weights[0].tolist(), scores.tolist(), strict=True):
            checkpoint()
            if row >= 0 and bound.found[0]:
                record = self.table.slice(row, 1).to_pylist()[0]
                place = record["name"], record["title"], record["text"], record["start"], record["end"]
                why = self._contributions(query, parts, row, record["text"], bound) if contributions else None
                found.append(Hit(*place, weight, score, why))
        return found

    def rank(
        self, queries: Sequence[str], top: int = 1000, *, mix: float | None = None, progress: Progress | None = None
    ) -> Iterator[dict[str, float]]:
        """Yield a dict for each query, with the weights of the documents it finds, by document name.

        The weight of a document is the weight of its best passage.

        Args:
            queries: texts of the queries.
            top: maximum number of passages per query.
            mix: m; None for the value of the index.
            progress: called after each batch of queries.
        """
        firsts = np.searchsorted(self.owners, np.arange(self.documents))
        names = self.table.column("name").take(firsts).to_pylist()
        mix = self.mix if mix is None else _check_mix(mix)
        together = max(1, min(_MAX_QUERIES, _MAX_PAIRS // len(self)))
        for begin in range(0, len(queries), together):
            bound = _Queries(self, queries[begin : begin + together], mix)
            found = bound.top(top, 1.0, False)
            for at, (rows, weights) in enumerate(zip(found.rows, found.weights, strict=True)):
                best: dict[int, float] = {}
                for row, weight in zip(rows.tolist(), weights.tolist(), strict=True):
                    if row >= 0 and bound.found[at]:
                        best.setdefault(int(self.owners[row]), weight)
                yield {names[owner]: weight for owner, weight in best.items()}
            report(progress, "ranking", min(begin + together, len(queries)), len(queries))

    def with_metric(self, metric: Float[np.ndarray, "width width"] | None) -> Index:
        """Return an index of the same passages with the metric W = `metric`, or the identity matrix if it is None."""
        parts = self.table, self.encoder, self.keys, self.words, self.splitter
        return Index(*parts, mix=self.mix, metric=metric, passages=self.passages)

    def with_encoder(self, encoder: TextEncoder, progress: Progress | None = None) -> Index:
        """Return an index of the same passages with the vectors of another encoder, which is fitted to them."""
        keys = encoder.fit_encode(self.table.column("text").to_pylist(), progress)
        return Index(self.table, encoder, keys, self.words, self.splitter, mix=self.mix)

    def vectors(self, queries: Sequence[str]) -> Float[np.ndarray, "queries width"] | csr_array | csr_matrix:
        """Return the encoded queries `(queries, width)`, multiplied by the metric W if the index has one."""
        encoded = self.encoder.encode(queries)
        return encoded if self.metric is None else encoded @ self.metric

    # -- implementation -----------------------------------------------------------------------------------------

    def _contributions(
        self, query: str, query_parts: WordContributions | None, row: int, text: str, bound: _Queries
    ) -> Contributions:
        """Return the contributions of word pairs to the score of the passage in row `row` for a query."""
        parts = []
        if query_parts is not None:
            (left, first), (right, second) = query_parts, self.encoder.word_contributions(text)
            projected = first if self.metric is None else first @ self.metric
            shares = projected @ second.T
            shares = shares if isinstance(shares, np.ndarray) else shares.toarray()
            parts.append((left, right, bound.vector_scale[0] * shares))
        shared = self.words.contributions(self.splitter(query), row)
        if bound.bm25_scale[0] and shared:
            names = list(shared)
            parts.append((names, names, bound.bm25_scale[0] * np.diag(list(shared.values()))))
        return merge_contributions(parts, -float(bound.center[0]))


class _Queries:
    """Batch of queries over an index, whose scores are those of `Passages.bind` minus `center`.

    Attributes:
        vector_scale, bm25_scale: factors of inner products and BM25 scores for each query; 0 if all passages have the
            same score.
        found: whether any word of each query is known.
    """

    def __init__(self, index: Index, queries: Sequence[str], mix: float) -> None:
        vectors = index.vectors(queries) if mix > 0 else None
        self.bound = index.passages.bind(QueryWords([index.splitter(query) for query in queries], vectors))
        statistics = self.bound.statistics()
        (words, products), (spread, other) = statistics.mean, np.sqrt(statistics.variance)
        self.bm25_scale, self.vector_scale = _divide(1 - mix, spread), np.zeros(len(queries))
        if vectors is not None:
            if index.keys.dense:
                products, other = index.keys.score_statistics(vectors)
            self.vector_scale = _divide(mix, other)
        self.center = self.bm25_scale * words + self.vector_scale * products
        self.found = statistics.known

    def top(self, top: int, temperature: float, scored: bool) -> TopPassages:
        """Return the `top` passages with the largest weights; their scores are not centered."""
        check_integers(top=top)
        if not 0 < temperature < float("inf"):
            raise OptionError(f"temperature must be positive and finite, got {temperature}. Pass, for example, 1.0.")
        return self.bound.select(Selection(self.bm25_scale, self.vector_scale, top, temperature, scored))


def _divide(share: float, spread: Float[np.ndarray, " queries"]) -> Float[np.ndarray, " queries"]:
    return np.where(spread > _MIN_DEVIATION, share / np.where(spread > _MIN_DEVIATION, spread, 1.0), 0.0)


def _check_mix(mix: float) -> float:
    if not 0 <= mix <= 1:
        raise OptionError(f"mix must be from 0 to 1, got {mix}. Pass 0 for BM25 alone, or 1 for vectors alone.")
    return mix


def _are_documents(source: object) -> TypeGuard[Sequence[Document]]:
    return (
        isinstance(source, Sequence)
        and not isinstance(source, str)
        and all(isinstance(each, Document) for each in source)
    )
