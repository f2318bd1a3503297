"""Choose the dimensions of the latent space and the share of the vectors from the passages, without judgements.

    passage p = its words without q, and q = up to ten consecutive words of p
    loss(k, m) = mean over drawn passages of log(rank of p for the query q)

A query made of words of a passage should find the rest of that passage. The words of the query are removed from the
passage, so the passage is found by its other words: by those that occur again, which favors BM25, and by those that
occur in similar texts, which favors the vectors. The number k and the share m with the smallest loss are chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array, csr_matrix

from qkv.core.progress import Progress, report
from qkv.core.typing import Float, Int
from qkv.encoders.encoder import TextEncoder
from qkv.encoders.text_encoders import LatentEncoder
from qkv.encoders.vocabulary import Vocabulary
from qkv.search.bm25 import BM25
from qkv.search.passage_range import PassageVectors, row_statistics

DEFAULT_MIX = 0.5
"""Share of the vectors if there are too few passages to choose it."""
_COMPONENTS = (10, 15, 20, 30, 40, 50, 60, 80, 100, 150, 200, 300)
_MIXES = tuple(tenth / 10 for tenth in range(11))
_MAX_PASSAGES = 5_000
"""Passages beyond this number are left out of the choice; those that remain are drawn at random."""
_MIN_PASSAGES = 100
"""Minimum number of passages with `_MIN_WORDS` words; fewer give no reliable choice."""
_MIN_WORDS, _QUERY_WORDS = 20, 10
_LATENT_QUERIES, _ENCODED_QUERIES = 1_000, 300
"""Numbers of queries. A sentence model needs about as long for one of these as for one passage of the index."""
_MAX_FITS = 10
"""Maximum number of latent spaces that are fitted. Queries are drawn from a quarter of the passages at a time."""
_BATCH = 250


@dataclass(frozen=True)
class Settings:
    """Settings of a search index that were chosen from its passages.

    Attributes:
        n_components: number of dimensions of the latent space; None if the encoder has none.
        mix: share of the vectors in the score.
        queries: number of queries that were drawn; 0 if there are too few passages, and the settings are defaults.
    """

    n_components: int | None
    mix: float
    queries: int


@dataclass(frozen=True)
class _Sample:
    """Passages from which settings are chosen."""

    texts: list[str]
    words: list[Sequence[str]]
    allowed: Int[np.ndarray, " allowed"]


@dataclass(frozen=True)
class _Trial:
    """Queries, and the passages from which the words of these queries are removed.

    Attributes:
        rows: index of the passage of each query.
        queries: the queries, as text.
        query_words: the words of each query.
        texts: the passages in `rows`, without their queries.
        words: the words of all passages, without the queries.
    """

    rows: Int[np.ndarray, " queries"]
    queries: list[str]
    query_words: list[Sequence[str]]
    texts: list[str]
    words: list[Sequence[str]]


def choose_components_and_mix(
    texts: Sequence[str], encoder: LatentEncoder, splitter: Vocabulary, mix: float | None, progress: Progress | None
) -> Settings:
    """Choose the dimensions of the latent space, and the share of the vectors unless it is given, from passages."""
    sample = _sample(texts, splitter)
    mixes = _MIXES if mix is None else (mix,)
    if len(sample.allowed) < _MIN_PASSAGES:
        return Settings(encoder.n_components, DEFAULT_MIX if mix is None else mix, 0)
    random = np.random.default_rng(0)
    each = len(sample.allowed) // 4
    total = min(_LATENT_QUERIES, _MAX_FITS * each)
    counts = _COMPONENTS if encoder.n_components is None else (encoder.n_components,)
    losses, asked = np.zeros((len(counts), len(mixes))), 0
    while asked < total:
        report(progress, "choosing components and mix", asked, total)
        trial = _draw(sample, min(each, total - asked), splitter, random)
        widest = LatentEncoder(max(counts), encoder.weighting, encoder.vocabulary.stem)
        keys, queries = widest.fit_projections(trial.words, trial.query_words)
        words = BM25.fit(trial.words).score(trial.query_words)
        for row, count in enumerate(counts):
            if row and count > keys.shape[1]:
                losses[row] = np.inf
                continue
            scores = _unit_rows(queries[:, :count]) @ _unit_rows(keys[:, :count]).T
            losses[row] += _log_ranks(scores, words, trial.rows, mixes)
        asked += len(trial.rows)
    report(progress, "choosing components and mix", total, total)
    best = divmod(int(losses.argmin()), len(mixes))
    return Settings(counts[best[0]], mixes[best[1]], asked)


def choose_mix(
    texts: Sequence[str],
    encoder: TextEncoder,
    keys: PassageVectors | Float[np.ndarray, "passages width"] | csr_array | csr_matrix,
    splitter: Vocabulary,
    progress: Progress | None,
) -> Settings:
    """Choose the share of the vectors of a fitted encoder, such as a sentence model, from passages."""
    rows = keys.rows if isinstance(keys, PassageVectors) else keys
    sample = _sample(texts, splitter)
    if len(sample.allowed) < _MIN_PASSAGES:
        return Settings(None, DEFAULT_MIX, 0)
    report(progress, "choosing mix", 0, 1)
    trial = _draw(sample, min(len(sample.allowed), _ENCODED_QUERIES), splitter, np.random.default_rng(0))
    queries = encoder.encode(trial.queries)
    # The other passages keep their vectors; only those with a query are encoded again.
    reduced = encoder.encode(trial.texts)
    chosen = rows[_numbers(len(texts))]
    scores = _products(queries, chosen)
    own = np.arange(len(trial.rows))
    scores[own, trial.rows] = _row_products(queries, reduced)
    losses = _log_ranks(scores, BM25.fit(trial.words).score(trial.query_words), trial.rows, _MIXES)
    report(progress, "choosing mix", 1, 1)
    return Settings(None, _MIXES[int(losses.argmin())], len(trial.rows))


def _numbers(passages: int) -> Int[np.ndarray, " drawn"]:
    """Return the indices of the passages from which settings are chosen, in ascending order."""
    if passages <= _MAX_PASSAGES:
        return np.arange(passages)
    return np.sort(np.random.default_rng(1).choice(passages, _MAX_PASSAGES, replace=False))


def _sample(texts: Sequence[str], splitter: Vocabulary) -> _Sample:
    drawn = [texts[number] for number in _numbers(len(texts))]
    words = [splitter(text) for text in drawn]
    return _Sample(drawn, words, np.array([row for row, each in enumerate(words) if len(each) >= _MIN_WORDS], np.int64))


def _draw(sample: _Sample, count: int, splitter: Vocabulary, random: np.random.Generator) -> _Trial:
    """Draw passages and, from each, consecutive words that become its query."""
    rows = random.permutation(sample.allowed)[:count]
    words, queries, texts = list(sample.words), [], []
    for row in rows:
        text = sample.texts[row]
        found = splitter.find_words(text)
        length = min(_QUERY_WORDS, len(found) // 2)
        first = int(random.integers(len(found) - length + 1))
        start, end = found[first][0], found[first + length - 1][1]
        queries.append(text[start:end])
        texts.append(f"{text[:start]} {text[end:]}")
        words[row] = splitter(texts[-1])
    return _Trial(rows, queries, [splitter(query) for query in queries], texts, words)


def _log_ranks(
    vectors: Float[np.ndarray, "queries passages"],
    words: Float[np.ndarray, "queries passages"],
    rows: Int[np.ndarray, " queries"],
    mixes: Sequence[float],
) -> Float[np.ndarray, " mixes"]:
    """Return for each share of the vectors the sum over queries of the logarithm of the rank of the query's passage.

    A passage that ties with n others ranks n / 2 places below the first of them.
    """
    found = np.zeros(len(mixes))
    for begin in range(0, len(rows), _BATCH):
        part = slice(begin, begin + _BATCH)
        first, second = _standardize(vectors[part]), _standardize(words[part])
        for column, mix in enumerate(mixes):
            score = np.float32(mix) * first + np.float32(1 - mix) * second
            own = np.take_along_axis(score, rows[part, None], axis=1)
            place = (score > own).sum(axis=1) + ((score == own).sum(axis=1) - 1) / 2 + 1
            found[column] += np.log(place).sum()
    return found


def _standardize(scores: Float[np.ndarray, "queries passages"]) -> Float[np.ndarray, "queries passages"]:
    mean, spread = row_statistics(scores)
    factor = np.where(spread > 1e-6, 1 / np.maximum(spread, 1e-6), 0.0)
    return np.asarray((scores - mean[:, None]) * factor[:, None], np.float32)


def _unit_rows(rows: Float[np.ndarray, "rows width"]) -> Float[np.ndarray, "rows width"]:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(np.where(norms > 1e-6, rows / np.maximum(norms, 1e-12), 0.0), np.float32)


def _products(
    queries: Float[np.ndarray, "queries width"] | csr_array | csr_matrix,
    keys: Float[np.ndarray, "keys width"] | csr_array | csr_matrix,
) -> Float[np.ndarray, "queries keys"]:
    products = queries @ keys.T
    return np.array(products if isinstance(products, np.ndarray) else products.toarray(), np.float32)


def _row_products(
    queries: Float[np.ndarray, "rows width"] | csr_array | csr_matrix,
    keys: Float[np.ndarray, "rows width"] | csr_array | csr_matrix,
) -> Float[np.ndarray, " rows"]:
    """Return the inner product of each query with the key in the same row."""
    if isinstance(queries, np.ndarray):
        return np.asarray((queries * keys).sum(axis=1), np.float32)
    return np.asarray(queries.multiply(keys).sum(axis=1), np.float32).reshape(-1)
