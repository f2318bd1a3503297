"""Measure joins without labels on the tables that `python -m examples.matching` wrote.

Run as `python -m examples.matching.without_labels TABLES`. Each line is a data set, the compared columns and the F1 on
a split of its labelled pairs. `--test` also evaluates the test pairs; leave it out while an estimator is chosen.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from qkv.join import SoftJoin

__all__ = ["COLUMNS", "measure"]

COLUMNS = {
    "Beer": ("Beer_Name", "Beer_Name,Brew_Factory_Name,Style,ABV"),
    "Fodors-Zagats": ("name", "name,addr,city,phone,type"),
    "iTunes-Amazon": (
        "Song_Name",
        "Song_Name,Artist_Name,Price",
        "Song_Name,Artist_Name,Album_Name,Genre,Price,CopyRight,Time,Released",
    ),
    "DBLP-ACM": ("title", "title,authors,venue,year"),
    "Walmart-Amazon": ("title", "title,price", "title,brand,price", "title,category,brand,modelno,price"),
}
"""Compared columns of each data set: the title alone, columns as in other product tables, and all of them."""


def measure(folder: Path, on: str, splits: tuple[str, ...], candidates: int | None = None) -> dict[str, float]:
    """Return the F1 of a join without labels on each split of the labelled pairs in `folder`.

    Example:
        >>> measure(Path("tables/Beer"), "Beer_Name", ("train",))  # doctest: +SKIP
        {'train': 0.9397590361445783}
    """
    joined = SoftJoin(on).join(folder / "left.csv", folder / "right.csv", candidates=candidates)
    return {split: joined.evaluate(folder / f"{split}.csv").f1 for split in splits}


def main() -> None:
    """Print the F1 of each data set and each choice of columns."""
    parser = argparse.ArgumentParser(description="Measure joins without labels.")
    parser.add_argument("tables", type=Path, help="folder that `python -m examples.matching` wrote")
    parser.add_argument("--test", action="store_true", help="also evaluate the test pairs")
    parser.add_argument("--candidates", type=int, help="right rows compared with each left row (default: all)")
    given = parser.parse_args()
    splits = ("train", "valid", "test") if given.test else ("train", "valid")
    for name, choices in COLUMNS.items():
        for on in choices:
            found = measure(given.tables / name, on, splits, given.candidates)
            print(f"{name:15} {on:70}", *(f"{split} {f1:.3f}" for split, f1 in found.items()), sep="  ", flush=True)


if __name__ == "__main__":
    main()
