"""Measure joins by other packages on the tables of docs/join.md: `python -m benchmarks.joins_without_labels`.

Splink and the expectation–maximization of the Python Record Linkage Toolkit learn without labels, and so does the
mixture of ZeroER, which is written here after its paper (without its transitivity). RapidFuzz's similarity of whole
records has its function and threshold chosen on the training and validation pairs. All are evaluated on the test pairs,
with a threshold of 0.5 on the probability: each pair alone, and where only the best right row of each left row counts.

`pip install splink recordlinkage rapidfuzz` provides the packages; a method whose package is missing is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from examples.matching import prepare_pairs
from examples.matching.without_labels import COLUMNS
from scipy.special import expit

from benchmarks.labelled_joins import Tables
from qkv.core.typing import Float, Int
from qkv.database.io.sources import read
from qkv.join import SoftJoin
from qkv.join.compared_columns import clean
from qkv.join.comparison_vectors import PairList
from qkv.join.labels import Labels

__all__ = ["main", "zeroer_probabilities"]

_CANDIDATES = 20
_OVERLAP_STRENGTH = 0.15
"""κ of ZeroER, as published."""
_STEPS = 200


class _Cells:
    """Cleaned cells of two tables, and the candidates of each left row."""

    def __init__(self, folder: Path, on: str) -> None:
        self.names = on.split(",")
        self.tables = Tables(folder, on)
        self.left, self.right = (
            {
                name: [clean(str(cell)) if cell is not None else "" for cell in table.column(name).to_pylist()]
                for name in self.names
            }
            for table in (read(str(folder / f"{side}.csv")) for side in ("left", "right"))
        )

    def candidates(self, extra: Labels) -> tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]]:
        """Return the 20 most similar right rows of each left row, and labelled pairs besides."""
        sample = self.tables.estimate.sample
        pairs = np.unique(
            np.concatenate([np.stack([sample.rows, sample.keys], 1), np.stack([extra.rows, extra.keys], 1)]), axis=0
        )
        return pairs[:, 0], pairs[:, 1]


_Scored = tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"], Float[np.ndarray, " pairs"]]


def _splink(cells: _Cells, truth: Labels) -> _Scored:
    import logging

    import pandas as pd
    import splink.comparison_library as cl  # type: ignore[import-not-found]
    from splink import Linker, SettingsCreator, block_on  # type: ignore[import-not-found]

    logging.getLogger("splink").setLevel(logging.ERROR)
    from splink.internals.duckdb.database_api import DuckDBAPI  # type: ignore[import-not-found]

    frames = []
    for side in (cells.left, cells.right):
        frame = pd.DataFrame({name: [cell or None for cell in side[name]] for name in cells.names})
        frames.append(frame.assign(unique_id=np.arange(len(frame))))
    settings = SettingsCreator(
        link_type="link_only",
        comparisons=[cl.JaroWinklerAtThresholds(name, [0.92, 0.8, 0.7]) for name in cells.names],
        blocking_rules_to_generate_predictions=["1=1"],
    )
    engine = DuckDBAPI()
    tables = [engine.register(frame, dataset_display_name=name) for name, frame in zip("ab", frames, strict=True)]
    linker = Linker(tables, settings, logging.ERROR)
    rules = [block_on(name) for name in cells.names]
    linker.training.estimate_probability_two_random_records_match(rules[:1], recall=0.7)
    linker.training.estimate_u_using_random_sampling(max_pairs=1e6, seed=0)
    for rule in rules:
        try:
            linker.training.estimate_parameters_using_expectation_maximisation(rule)
        except Exception:
            continue
    found = linker.inference.predict(threshold_match_probability=0.01).as_pandas_dataframe()
    return (
        found["unique_id_l"].to_numpy(int),
        found["unique_id_r"].to_numpy(int),
        found["match_probability"].to_numpy(float),
    )


def _toolkit_ecm(cells: _Cells, truth: Labels) -> _Scored:
    import recordlinkage  # type: ignore[import-not-found]

    rows, keys, table = _toolkit_features(cells, truth)
    model = recordlinkage.ECMClassifier(binarize=0.85)
    model.fit(table)
    return rows, keys, np.asarray(model.prob(table), float)


def _toolkit_clusters(cells: _Cells, truth: Labels) -> _Scored:
    """Return scores of at least 0.5 for the pairs in the cluster of matches, in the order of their mean similarity."""
    import recordlinkage

    rows, keys, table = _toolkit_features(cells, truth)
    matches = recordlinkage.KMeansClassifier().fit_predict(table)
    return rows, keys, np.where(table.index.isin(matches), 0.5, 0.0) + table.to_numpy().mean(axis=1) / 2.1


def _toolkit_features(cells: _Cells, truth: Labels) -> tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"], Any]:
    import pandas as pd
    from rapidfuzz.distance import JaroWinkler

    rows, keys = cells.candidates(truth)
    features = {
        name: [
            JaroWinkler.normalized_similarity(cells.left[name][row], cells.right[name][key])
            for row, key in zip(rows, keys, strict=True)
        ]
        for name in cells.names
    }
    return rows, keys, pd.DataFrame(features, index=pd.MultiIndex.from_arrays([rows, keys]))


def _zeroer(cells: _Cells, truth: Labels) -> _Scored:
    rows, keys = cells.candidates(truth)
    measures = cells.tables.candidates.measures
    names = [name for name, measure in measures.names if measure != "missing"]
    kept = [measure != "missing" for _, measure in measures.names]
    found = measures.compute(PairList(rows, keys)).astype(np.float64)[:, kept]
    groups = [np.flatnonzero(np.array(names) == name) for name in dict.fromkeys(names)]
    return rows, keys, zeroer_probabilities(found, groups)


def zeroer_probabilities(
    features: Float[np.ndarray, "pairs features"], groups: list[Int[np.ndarray, " group"]]
) -> Float[np.ndarray, " pairs"]:
    """Return the probability of a match of each pair by the mixture of two normal distributions of ZeroER.

    Features of different columns are independent. Both distributions have the same correlations within a column, and
    each variance grows by κ (μ₁ − μ₀)², so that features with a small overlap do not dominate. Transitivity between
    the tables, the third part of ZeroER, is left out.

    Source: Wu, Chaba, Sawlani, Chu, Thirumuruganathan 2020, ZeroER: Entity resolution using zero labeled examples.

    Args:
        features: similarities of each pair, where larger is more similar.
        groups: indices of the features of each column.
    """
    low, high = features.min(axis=0), features.max(axis=0)
    scaled = (features - low) / np.where(high > low, high - low, 1.0)
    norm = np.linalg.norm(scaled, axis=1)
    share = ((norm - norm.min()) / max(norm.max() - norm.min(), 1e-12) > 0.8).astype(float)
    for _ in range(_STEPS):
        previous = share
        prior = float(np.clip(share.mean(), 1e-6, 1 - 1e-6))
        weights = (1.0 - share, share)
        means = [weight @ scaled / max(weight.sum(), 1e-9) for weight in weights]
        deviations = [
            np.sqrt(weight @ (scaled - mean) ** 2 / max(weight.sum(), 1e-9) + 1e-6)
            for weight, mean in zip(weights, means, strict=True)
        ]
        penalty = _OVERLAP_STRENGTH * (means[1] - means[0]) ** 2
        residual = sum(
            weight[:, None] ** 0.5 * (scaled - mean) / deviation
            for weight, mean, deviation in zip(weights, means, deviations, strict=True)
        )
        logits = np.full(len(scaled), np.log(prior / (1.0 - prior)))
        for group in groups:
            own = residual[:, group]
            correlation = own.T @ own / len(own)
            for sign, mean, deviation in zip((-1.0, 1.0), means, deviations, strict=True):
                spread = deviation[group]
                covariance = correlation * np.outer(spread, spread) + np.diag(penalty[group] + 1e-6)
                factor = np.linalg.cholesky(covariance)
                distance = np.linalg.solve(factor, (scaled[:, group] - mean[group]).T)
                logits += sign * (-0.5 * (distance**2).sum(axis=0) - np.log(np.diag(factor)).sum())
        share = expit(logits)
        if np.abs(share - previous).max() < 1e-5:
            break
    return np.asarray(share)


def _tuned_similarity(cells: _Cells, truth: Labels) -> _Scored:
    """Return 1 where the similarity of whole records reaches the best threshold of the labelled pairs, else 0."""
    from rapidfuzz import fuzz

    from qkv.join.supervised import best_threshold

    known = cells.tables.labels("train", "valid")
    records = [
        [" ".join(filter(None, row)) for row in zip(*side.values(), strict=True)] for side in (cells.left, cells.right)
    ]
    best: tuple[float, Callable[..., float], float] | None = None
    for scorer in (fuzz.ratio, fuzz.token_sort_ratio, fuzz.token_set_ratio, fuzz.WRatio):
        scores = _similarities(scorer, records, known.rows, known.keys)
        threshold, f1 = best_threshold(known.match, scores)
        if best is None or f1 > best[0]:
            best = f1, scorer, threshold
    assert best is not None
    rows, keys = cells.candidates(truth)
    scores = _similarities(best[1], records, rows, keys)
    return rows, keys, np.where(scores >= best[2], 0.5 + scores / 2, scores / 4)


def _similarities(
    scorer: Callable[..., float],
    records: list[list[str]],
    rows: Int[np.ndarray, " pairs"],
    keys: Int[np.ndarray, " pairs"],
) -> Float[np.ndarray, " pairs"]:
    return np.array([scorer(records[0][row], records[1][key]) / 100 for row, key in zip(rows, keys, strict=True)])


_METHODS = {
    "Splink": ("splink", _splink),
    "ZeroER's mixture": ("scipy", _zeroer),
    "Record Linkage Toolkit, ECM": ("recordlinkage", _toolkit_ecm),
    "Record Linkage Toolkit, k-means": ("recordlinkage", _toolkit_clusters),
    "RapidFuzz, tuned": ("rapidfuzz", _tuned_similarity),
}


def _f1(scored: _Scored, truth: Labels, best_only: bool) -> float:
    rows, keys, probability = scored
    order = np.argsort(-probability, kind="stable")
    if best_only:
        order = order[np.sort(np.unique(rows[order], return_index=True)[1])]
    chosen = order[probability[order] >= 0.5]
    found = set(zip(rows[chosen].tolist(), keys[chosen].tolist(), strict=True))
    pairs = list(zip(truth.rows.tolist(), truth.keys.tolist(), strict=True))
    said = np.array([pair in found for pair in pairs])
    return float(2 * (said & (truth.match == 1)).sum() / max(said.sum() + truth.match.sum(), 1))


def _own(folder: Path, on: str, split: str) -> tuple[float, float]:
    """Return the F1 of `SoftJoin` without labels by the probability of each pair, and by the attention weights."""
    files = [str(folder / f"{side}.csv") for side in ("left", "right")]
    join = SoftJoin(on).fit(*files)
    each, best = (join.join(*files, many=many).evaluate(str(folder / f"{split}.csv")).f1 for many in (True, False))
    return each, best


def _show(name: str, title: str, each: float, best: float, seconds: float) -> None:
    print(f"{name:15} {title:32} {each:.3f}  best of each row {best:.3f}  {seconds:.0f} s", flush=True)


def main() -> None:
    """Print a line for each data set and method: F1 of each pair alone, and of the best right rows."""
    parser = argparse.ArgumentParser(description="Measure joins by other packages.")
    parser.add_argument("--only", action="append", help="data set; default: all")
    parser.add_argument("--split", default="test", choices=("valid", "test"), help="labelled pairs for the evaluation")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    source = Path(os.environ["QKV_DATA"]) / "matching"
    with tempfile.TemporaryDirectory() as folder:
        for name, choices in COLUMNS.items():
            if (given.only and name not in given.only) or not (source / name).exists():
                continue
            prepare_pairs(source / name, Path(folder) / name)
            cells = _Cells(Path(folder) / name, choices[-1])
            truth = cells.tables.labels(given.split)
            start = time.process_time()
            each, best = _own(Path(folder) / name, choices[-1], given.split)
            _show(name, "SoftJoin", each, best, time.process_time() - start)
            for title, (package, score) in _METHODS.items():
                if importlib.util.find_spec(package) is None:
                    print(f"{name:15} {title:32} not installed", flush=True)
                    continue
                start = time.process_time()
                scored = score(cells, truth)
                seconds = time.process_time() - start
                _show(name, title, _f1(scored, truth, False), _f1(scored, truth, True), seconds)


if __name__ == "__main__":
    main()
