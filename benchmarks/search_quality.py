"""Measure how well searches rank: `python -m benchmarks.search_quality` writes `benchmarks/results/search.csv`.

`$QKV_DATA` holds the folders `cranfield` and `cisi`. The file has the means of `qkv evaluate COLLECTION`, and of
`qkv evaluate COLLECTION --n-components 300 --mix 0.5 --learned` before and after learning, on the test halves. The
page on search draws its figures from it.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import stdev
from typing import Any

RESULTS = Path(__file__).with_name("results") / "search.csv"
COLLECTIONS = {"Cranfield": "cranfield", "CISI": "cisi"}
MEASURES = ("nDCG@10", "MAP")


def evaluate(folder: str, *options: str) -> dict[str, Any]:
    """Return what `qkv evaluate --json` prints for a collection of `$QKV_DATA`."""
    place = str(Path(os.environ["QKV_DATA"]) / folder)
    command = [sys.executable, "-m", "qkv", "evaluate", place, "--json", *options]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def rows(name: str, folder: str) -> list[list[str]]:
    """Return rows of a collection: name, ranking, measure, means before and after learning, deviation of the gain."""
    found: list[list[str]] = []
    for ranking, means in evaluate(folder)["means"].items():
        found += [[name, ranking, measure, f"{means[measure]:.4f}", "", ""] for measure in MEASURES]
    for ranking, result in evaluate(folder, "--n-components", "300", "--mix", "0.5", "--learned")["learned"].items():
        for measure in MEASURES:
            start, learned = result["start"][measure], result["learned"][measure]
            found.append(
                [name, ranking, measure, f"{start:.4f}", f"{learned:.4f}", f"{stdev(result['gains'][measure]):.4f}"]
            )
    return found


def main() -> None:
    """Write the results of all collections."""
    with RESULTS.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["collection", "ranking", "measure", "mean", "learned", "deviation"])
        for name, folder in COLLECTIONS.items():
            for row in rows(name, folder):
                out.writerow(row)
                print(*row, flush=True)


if __name__ == "__main__":
    main()
