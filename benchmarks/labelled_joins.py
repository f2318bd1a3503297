"""Measure the F1 of joins against the number of labels: `python -m benchmarks.labelled_joins [--strategies]`.

Without options, the results are written to `benchmarks/results/labelled_joins.csv`, from which the page on joins draws
its figure.

`$QKV_DATA/matching` holds pairs of tables in the format of the ER-Magellan benchmark. Labels are asked from the
training and validation pairs, one at a time, as `qkv join --label` does from all candidates; the joins of whole tables
are evaluated on the test pairs. With `--strategies`, ways to choose the pairs are compared: labels are asked from four
fifths of the training pairs, five at a time, and the joins are evaluated on the validation pairs; the test pairs are
not read.
"""

from __future__ import annotations

import argparse
import csv
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from examples.matching import prepare_pairs
from examples.matching.without_labels import COLUMNS

from qkv.core.typing import Bool, Float, Int
from qkv.database.io.sources import read
from qkv.join.active_learner import ActiveLearner
from qkv.join.blocking import CandidatePairs
from qkv.join.compared_columns import read_columns
from qkv.join.comparison_vectors import ComparisonVectors, append_log_odds, level_log_odds
from qkv.join.labels import Labels, read_labels
from qkv.join.model import JoinModel
from qkv.join.unsupervised import estimate_without_labels

__all__ = ["COUNTS", "RESULTS", "TABLES", "Tables", "main"]

RESULTS = Path(__file__).with_name("results") / "labelled_joins.csv"
COUNTS = (0, 10, 20, 50, 100)
TABLES = [(name, choices[-1]) for name, choices in COLUMNS.items()] + [
    ("Walmart-Amazon", "title,price"),
    ("Walmart-Amazon", "title"),
]
"""Data sets and compared columns: all columns that both tables have, and two harder choices."""

_Chooser = Callable[[ActiveLearner, Bool[np.ndarray, " pairs"], np.random.Generator, int], list[tuple[int, int]]]


class Tables:
    """Two tables of a data set, with the scores of their pairs without labels.

    Args:
        folder: folder of `left.csv`, `right.csv` and the labelled pairs.
        on: names of the compared columns, separated by commas.
    """

    def __init__(self, folder: Path, on: str) -> None:
        self._folder = folder
        names = tuple(on.split(","))
        left, right = (read(str(folder / f"{side}.csv")) for side in ("left", "right"))
        self.sizes = left.num_rows, right.num_rows
        self.candidates = CandidatePairs(ComparisonVectors(read_columns(left, right, names)))
        self.estimate = estimate_without_labels(self.candidates, tuple((name, name) for name in names))

    def labels(self, *splits: str) -> Labels:
        """Return the labelled pairs of some splits, each once: a pair is a match if any line says so."""
        parts = [read_labels(str(self._folder / f"{split}.csv"), self.sizes, (None, None)) for split in splits]
        rows, keys, match = (np.concatenate([getattr(part, field) for part in parts]) for field in _FIELDS)
        known: dict[tuple[int, int], int] = {}
        for row, key, label in zip(rows.tolist(), keys.tolist(), match.tolist(), strict=True):
            known[row, key] = max(label, known.get((row, key), 0))
        rows, keys = np.array(list(known)).T
        return Labels(rows, keys, np.array(list(known.values())), False)

    def learner(self) -> ActiveLearner:
        """Return a learner without labels."""
        return ActiveLearner(self.estimate, self.candidates.measures, False)

    def weights(self, models: list[JoinModel], pairs: Labels) -> Float[np.ndarray, "models pairs"]:
        """Return the weight of each pair in the joins of the whole tables by each model."""
        found = np.zeros((len(models), len(pairs.rows)))
        for rows, keys, similarities in self.candidates.batches(of=pairs.rows):
            width = len(keys) // len(np.unique(rows))
            own = np.isin(pairs.rows, rows)
            place = (np.searchsorted(rows[::width], pairs.rows[own]), pairs.keys[own])
            vectors = append_log_odds(
                similarities, level_log_odds(self.candidates.measures, similarities, self.estimate.model.log_odds)
            )
            for number, model in enumerate(models):
                logits = model.logits_of(vectors).reshape(-1, width)
                largest = np.maximum(logits.max(axis=1, keepdims=True), 0.0)
                shares = np.exp(logits - largest)
                found[number, own] = (shares / (shares.sum(axis=1, keepdims=True) + np.exp(-largest)))[place]
        return found

    def f1(self, models: list[JoinModel], truth: Labels) -> list[float]:
        """Return the F1 of the joins of the whole tables by each model on labelled pairs."""
        thresholds = np.array([[model.threshold] for model in models])
        found = self.weights(models, truth) >= thresholds
        right = (found & (truth.match == 1)).sum(axis=1)
        return [float(score) for score in 2 * right / np.maximum(found.sum(axis=1) + truth.match.sum(), 1)]


_FIELDS = ("rows", "keys", "match")


def _models(tables: Tables, pool: Labels, choose: _Chooser, seed: int, batch: int) -> tuple[list[JoinModel], list[int]]:
    """Return the models for each of `COUNTS`, and the numbers of matches among their labels."""
    learner, draw = tables.learner(), np.random.default_rng(seed)
    learner.add(pool.rows, pool.keys)
    answers = dict(zip(zip(pool.rows.tolist(), pool.keys.tolist(), strict=True), pool.match.tolist(), strict=True))
    given: dict[tuple[int, int], int] = {}
    models, matches = [learner.model], [0]
    for count in COUNTS[1:]:
        while len(given) < min(count, len(answers)):
            pairs = list(zip(*(side.tolist() for side in learner.pairs), strict=True))
            free = np.array([pair in answers and pair not in given for pair in pairs])
            for pair in choose(learner, free, draw, min(batch, count - len(given))):
                given[pair] = answers[pair]
            rows, keys = np.array(list(given)).T
            learner.fit(Labels(rows, keys, np.array(list(given.values())), False))
        models.append(learner.model)
        matches.append(sum(given.values()))
    return models, matches


def _committee(
    learner: ActiveLearner, free: Bool[np.ndarray, " pairs"], draw: np.random.Generator, count: int
) -> list[tuple[int, int]]:
    return learner.informative(count, among=free)


def _random(
    learner: ActiveLearner, free: Bool[np.ndarray, " pairs"], draw: np.random.Generator, count: int
) -> list[tuple[int, int]]:
    return _pairs(learner, draw.permutation(np.flatnonzero(free))[:count])


def _uncertain(
    learner: ActiveLearner, free: Bool[np.ndarray, " pairs"], draw: np.random.Generator, count: int
) -> list[tuple[int, int]]:
    near = np.where(free, np.abs(learner.weights - 0.5), np.inf)
    return _pairs(learner, np.argsort(near, kind="stable")[:count])


def _stratified(
    learner: ActiveLearner, free: Bool[np.ndarray, " pairs"], draw: np.random.Generator, count: int
) -> list[tuple[int, int]]:
    """Return three fifths of pairs near the threshold, a fifth of likely matches and a fifth of others."""
    likely, free = learner.weights >= 0.5, free.copy()
    chosen: list[tuple[int, int]] = []
    for kind in range(count):
        own = free & likely if kind % 5 == 3 else free & ~likely if kind % 5 == 4 else free
        strategy = _random if kind % 5 >= 3 and own.any() else _uncertain
        pair = strategy(learner, own if own.any() else free, draw, 1)
        rows, keys = learner.pairs
        free &= ~((rows == pair[0][0]) & (keys == pair[0][1]))
        chosen += pair
    return chosen


def _pairs(learner: ActiveLearner, places: Int[np.ndarray, " chosen"]) -> list[tuple[int, int]]:
    rows, keys = learner.pairs
    return list(zip(rows[places].tolist(), keys[places].tolist(), strict=True))


_STRATEGIES: dict[str, _Chooser] = {
    "random": _random,
    "uncertain": _uncertain,
    "stratified": _stratified,
    "committee": _committee,
}


def _compare(tables: Tables, seeds: int) -> None:
    train, truth = tables.labels("train"), tables.labels("valid")
    models: list[JoinModel] = []
    for choose in _STRATEGIES.values():
        for seed in range(seeds):
            kept = np.random.default_rng(seed).random(len(train.rows)) < 0.8
            pool = Labels(train.rows[kept], train.keys[kept], train.match[kept], False)
            models += _models(tables, pool, choose, seed, 5)[0]
    scores = np.array(tables.f1(models, truth)).reshape(len(_STRATEGIES), seeds, len(COUNTS)).mean(axis=1)
    for name, row in zip(_STRATEGIES, scores, strict=True):
        print(f"    {name:12}", *(f"{score:.3f}" for score in row), flush=True)


def main() -> None:
    """Print a line for each data set: F1 for each number of labels."""
    parser = argparse.ArgumentParser(description="Measure joins against the number of labels.")
    parser.add_argument("--strategies", action="store_true", help="compare strategies on the validation pairs")
    parser.add_argument("--only", action="append", help="data set; default: all")
    parser.add_argument("--seeds", type=int, default=3, help="number of random pools for --strategies")
    given = parser.parse_args()
    source = Path(os.environ["QKV_DATA"]) / "matching"
    found = [["tables", "columns", *map(str, COUNTS)]]
    print("F1 with", ", ".join(map(str, COUNTS)), "labels, and the number of matches among them")
    with tempfile.TemporaryDirectory() as folder:
        for name, on in TABLES:
            if (given.only and name not in given.only) or not (source / name).exists():
                continue
            prepare_pairs(source / name, Path(folder) / name)
            tables = Tables(Path(folder) / name, on)
            if given.strategies:
                print(name, on, flush=True)
                _compare(tables, given.seeds)
                continue
            start = time.process_time()
            models, matches = _models(tables, tables.labels("train", "valid"), _committee, 0, 1)
            seconds = (time.process_time() - start) / COUNTS[-1]
            scores = tables.f1(models, tables.labels("test"))
            found.append([name, on, *(f"{score:.3f}" for score in scores)])
            shown = (f"{score:.3f} ({count})" for score, count in zip(scores, matches, strict=True))
            print(f"{name:15} {on:72}", *shown, f"{seconds:.2f} s per label", sep="  ", flush=True)
    if not (given.strategies or given.only):
        with RESULTS.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(found)


if __name__ == "__main__":
    main()
