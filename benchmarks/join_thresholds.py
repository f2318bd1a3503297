"""Compare thresholds of joins without labels: `QKV_DATA=… python -m benchmarks.join_thresholds`.

Each line is a data set and its columns, with the F1 on the training and on the validation pairs at a threshold of .5,
at the threshold of the model, and at the best threshold, which is chosen with the labels of these pairs. The last
column is the F1 on the validation pairs at the best threshold of the training pairs: what labels of other pairs reach.
The test pairs are not read.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
from examples.matching import prepare_pairs
from examples.matching.without_labels import COLUMNS

from benchmarks.labelled_joins import Tables
from qkv.core.typing import Float
from qkv.join.labels import Labels
from qkv.join.supervised import best_threshold
from qkv.join.unsupervised import DEFAULT_THRESHOLD

__all__ = ["ROWS", "f1", "main"]

ROWS = [
    (name, on)
    for name, choices in COLUMNS.items()
    for on in choices
    if "," in on  # a single column is declined or estimated in another way
]


def f1(labels: Labels, weights: Float[np.ndarray, " pairs"], threshold: float) -> float:
    """Return the F1 of the pairs whose weight reaches the threshold."""
    found = weights >= threshold
    return 2 * float((found & (labels.match == 1)).sum()) / max(int(found.sum() + labels.match.sum()), 1)


def main(arguments: list[str] | None = None) -> None:
    """Print a line for each data set and its columns."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.join_thresholds", description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="data set; default: all")
    asked = parser.parse_args(arguments)
    source = Path(os.environ["QKV_DATA"]) / "matching"
    head = ("pairs, matches", ".5", "model", "best")
    names = [f"{title} {column}" for title in ("training", "validation") for column in head]
    print("| data set, columns | model | " + " | ".join(names) + " | validation, best of training |")
    print("|---" * (len(names) + 3) + "|")
    best = DEFAULT_THRESHOLD
    with tempfile.TemporaryDirectory() as folder:
        for name, on in ROWS:
            if (asked.only and name not in asked.only) or not (source / name).exists():
                continue
            prepare_pairs(source / name, Path(folder) / name)
            tables = Tables(Path(folder) / name, on)
            model = tables.estimate.model
            cells = []
            for split in ("train", "valid"):
                labels = tables.labels(split)
                weights = tables.weights([model], labels)[0]
                if split == "valid":
                    carried = f"{f1(labels, weights, best):.3f}"  # of the training pairs
                best, largest = best_threshold(labels.match, weights)
                cells += [f"{len(weights)}, {labels.match.sum()}", f"{f1(labels, weights, 0.5):.3f}"]
                cells += [f"{f1(labels, weights, model.threshold):.3f}", f"{largest:.3f} at {best:.3f}"]
            print(f"| {name}, {on} | {model.threshold:.3f} | {' | '.join(cells)} | {carried} |", flush=True)


if __name__ == "__main__":
    main()
