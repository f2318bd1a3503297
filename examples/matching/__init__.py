"""Convert the public matching data sets to tables: python -m examples.matching FOLDER OUT

`FOLDER` contains data sets in the format of the ER-Magellan benchmark, one pair per line: `COL name VAL … TAB
COL name VAL … TAB 0 or 1`, or Febrl's records. For each data set, `left.csv`, `right.csv` and the pairs
`train.csv`, `valid.csv` and `test.csv` are written to `OUT`; for Febrl one table and `same.csv`. The tables
contain the records that occur in some pair.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

__all__ = ["prepare_duplicates", "prepare_pairs"]

_CELL = re.compile(r"COL (\S+) VAL (.*?)(?=\s*COL \S+ VAL|\s*$)")
_SPLITS = ("train", "valid", "test")


def prepare_pairs(folder: Path, out: Path) -> None:
    """Write both tables and the labelled pairs of one data set.

    Records that are equal are one row. A pair of such rows is a match if it has this label anywhere in a file.
    """
    tables: tuple[dict[str, int], dict[str, int]] = ({}, {})
    out.mkdir(parents=True, exist_ok=True)
    for split in _SPLITS:
        labels: dict[tuple[int, int], int] = {}
        for line in _lines(folder / f"{split}.txt.gz"):
            left, right, match = line.rstrip("\n").split("\t")
            pair = tables[0].setdefault(left, len(tables[0])), tables[1].setdefault(right, len(tables[1]))
            labels[pair] = max(int(match), labels.get(pair, 0))
        _write(out / f"{split}.csv", ["left", "right", "match"], [(*pair, match) for pair, match in labels.items()])
    for name, table in zip(("left", "right"), tables, strict=True):
        records = [dict(_CELL.findall(text)) for text in table]
        columns = list(records[0])
        _write(out / f"{name}.csv", columns, [[record.get(column, "") for column in columns] for record in records])


def prepare_duplicates(file: Path, out: Path) -> None:
    """Write Febrl's records, and the pairs of records of the same person, whose ids share a number."""
    out.mkdir(parents=True, exist_ok=True)
    header, *rows = csv.reader(_lines(file), skipinitialspace=True)
    _write(out / "people.csv", header, rows)
    people: dict[str, list[str]] = {}
    for row in rows:
        people.setdefault(row[0].split("-")[1], []).append(row[0])
    same = [pair for ids in people.values() for pair in combinations(ids, 2)]
    _write(out / "same.csv", ["left", "right"], same)


def _lines(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        yield from stream


def _write(path: Path, header: list[str], rows: Sequence[Sequence[object]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    path.write_text(text.getvalue(), encoding="utf-8")
