"""Answers from the candidates of FAISS, usearch and Lance beside the libraries themselves, at equal recall.

    python -m benchmarks.candidates                  # some minutes on one core
    python -m benchmarks.candidates --rows 20000     # smaller

Rows are mean vectors of three random words of 64 numbers, with a value each; queries are other such vectors. A query is
answered by the mean of the values of the ten rows of largest cosine, weighted by softmax. Two programs use the same
index with the same number of candidates, so that their recall is equal:

library  the search of the index, then exact cosines of its candidates, the best ten and their weighted mean in NumPy
qkv      `ask(…, candidates=…)`, after recall was measured; it also returns standard errors, intervals and evidence

Printed are the recall against a full scan by NumPy, the recall that the answer states, the largest difference of values
between the two programs, and the CPU time for 64 queries: medians of rounds in which both run one after the other.
"""

from __future__ import annotations

import argparse
import gzip
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from qkv.database import Candidates, Database, Queryable

WIDTH, QUERIES, BEST, TEMPERATURE = 64, 64, 10, 0.05
ASKED: dict[str, Any] = {"score": "cosine", "normalizer": f"topk:{BEST}:{TEMPERATURE}", "min_similarity": -1.0}

Search = Callable[[np.ndarray, int], np.ndarray]


def draw_vectors(rows: int, seed: int) -> np.ndarray:
    """Return mean vectors of three random words, of length 1."""
    with gzip.open(Path(os.environ["QKV_DATA"]) / "vectors" / "googlenews8k_300d_f16.npy.gz") as file:
        words = np.load(file).astype(np.float32)
    words -= words.mean(axis=0)
    words = words @ np.linalg.svd(words, full_matrices=False)[2][:WIDTH].T
    draw = np.random.default_rng(seed)
    out = words[draw.integers(len(words), size=(rows, 3))].mean(axis=1)
    return np.asarray(out / np.linalg.norm(out, axis=1, keepdims=True), np.float32)


def weigh(queries: np.ndarray, rows: np.ndarray, vectors: np.ndarray, pay: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the best rows among the given rows of each query, and the weighted means of their values."""
    cosine = np.einsum("qd,qnd->qn", queries, vectors[rows], dtype=np.float64)
    cosine = np.where(rows < 0, -np.inf, cosine)
    order = np.argsort(-cosine, axis=1)[:, :BEST]
    best, near = np.take_along_axis(rows, order, axis=1), np.take_along_axis(cosine, order, axis=1)
    weights = np.exp((near - near[:, :1]) / TEMPERATURE)
    return best, (weights * pay[best]).sum(axis=1) / weights.sum(axis=1)


def indexes(vectors: np.ndarray, folder: Path) -> Iterator[tuple[str, str, object, Search, dict[str, Any]]]:
    """Yield each index that is installed: its name, backend, object, search, and arguments of `Candidates`."""
    lists = int(np.sqrt(len(vectors)))
    if find_spec("faiss"):
        faiss = import_module("faiss")
        for kind in (f"IVF{lists},Flat", f"IVF{lists},PQ16"):
            index = faiss.index_factory(WIDTH, kind, faiss.METRIC_INNER_PRODUCT)
            index.train(vectors)
            index.add(vectors)
            index.nprobe = 16
            yield f"FAISS {kind}, nprobe 16", "", index, lambda q, n, index=index: index.search(q, n)[1], {}
    if find_spec("usearch"):
        hnsw = import_module("usearch.index").Index(ndim=WIDTH, metric="cos", dtype="i8")
        hnsw.add(np.arange(len(vectors)), vectors, threads=1)

        def search(queries: np.ndarray, count: int) -> np.ndarray:
            return np.asarray(hnsw.search(queries, count, threads=1).keys).astype(np.int64)

        yield "usearch HNSW, int8", "", hnsw, search, {"options": {"threads": 1}}
    if find_spec("lance"):
        lance = import_module("lance")
        path = folder / "lance"
        dataset = lance.dataset(path)
        dataset.create_index("vector", "IVF_PQ", metric="cosine", num_partitions=lists, num_sub_vectors=16)
        dataset = lance.dataset(path)

        def nearest(queries: np.ndarray, count: int) -> np.ndarray:
            asked = [{"column": "vector", "q": query, "k": count, "nprobes": 16} for query in queries]
            found = [dataset.to_table(nearest=each, columns=["number", "_distance"])["number"] for each in asked]
            return np.stack([column.to_numpy() for column in found])

        yield "Lance IVF_PQ, nprobes 16", "lance", dataset, nearest, {"options": {"nprobes": 16}}


def seconds_of(run: Callable[[], object]) -> float:
    """Return the CPU time of a call."""
    started = time.process_time()
    run()
    return time.process_time() - started


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--counts", type=int, nargs="+", default=[20, 100, 500])
    given = parser.parse_args()
    vectors, pay = draw_vectors(given.rows, 0), np.random.default_rng(1).standard_normal(given.rows)
    queries = draw_vectors(QUERIES, 2)
    columns = {"vector": vectors, "pay": pay, "number": np.arange(given.rows)}
    memory: Queryable = Database.open(columns, "vector", "pay")
    exact = np.argsort(-(queries.astype(np.float64) @ vectors.T.astype(np.float64)), axis=1)[:, :BEST]
    full = statistics.median(seconds_of(lambda: memory.ask(list(queries), **ASKED)) for _ in range(3))
    print(f"{given.rows:,} rows of {WIDTH} numbers, {QUERIES} queries; all rows: {1000 * full:.0f} ms")
    print(f"{'index':30}{'candidates':>11}{'recall':>8}{'stated':>8}{'differ':>9}{'library':>9}{'qkv':>9}{'ratio':>7}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stored = Database.create(folder / "lance", columns, "vector", "pay", backend="lance")
        for label, backend, index, search, options in indexes(vectors, folder):
            stored.refresh()
            table = stored if backend else memory
            for count in given.counts:
                near = Candidates(index, count, **options)

                def library(search: Search = search, count: int = count) -> tuple[np.ndarray, np.ndarray]:
                    return weigh(queries, search(queries, count), vectors, pay)

                def ours(table: Queryable = table, near: Candidates = near) -> Any:
                    return table.ask(list(queries), **ASKED, candidates=near)

                answer, (best, values) = ours(), library()  # recall is measured here
                recall = np.mean([len(np.intersect1d(*pair)) / BEST for pair in zip(best, exact, strict=True)])
                differ = np.abs(np.array(answer.value) - values).max()
                rounds = [(seconds_of(library), seconds_of(ours)) for _ in range(given.rounds)]
                theirs, own = (1000 * statistics.median(times) for times in zip(*rounds, strict=True))
                ratio = statistics.median(b / a for a, b in rounds)
                print(
                    f"{label:30}{count:>11}{recall:>8.3f}{answer.recall:>8.3f}{differ:>9.1g}{theirs:>6.1f} ms"
                    f"{own:>6.1f} ms{ratio:>7.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
