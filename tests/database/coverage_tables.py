"""Public tables whose rows are asked for in the tests of prediction intervals: keys, values and names."""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

# Table, names of the columns that are keys (or their indices), and the value.
_TABLES = (
    ("california", "tables/california_housing.csv.gz", ("longitude", "latitude"), "median_house_value"),
    ("california income", "tables/california_housing.csv.gz", ("median_income",), "median_house_value"),
    ("abalone", "tables/abalone.csv", (1, 2), 4),
    ("abalone shell", "tables/abalone.csv", (7,), 4),
    ("adult", "tables/adult-train.csv.gz", (0,), 2),
    ("airfoil", "uci-evans/airfoil/data.csv.gz", (0, 1, 2), -1),
    ("autompg", "uci-evans/autompg/data.csv.gz", (3,), -1),
    ("parkinsons", "uci-evans/parkinsons/data.csv.gz", (0, 2), -1),
    ("pol", "uci-evans/pol/data.csv.gz", (4, 5), -1),
    ("sml", "uci-evans/sml/data.csv.gz", (2, 3), -1),
    ("stock", "uci-evans/stock/data.csv.gz", (4,), -1),
    ("wine", "uci/wine-quality-red/data.txt", (10,), 8),
    ("adult occupation", "tables/adult-train.csv.gz", (6,), 2),
)


def tables() -> Iterator[tuple[str, dict[str, list[object]], list[str]]]:
    """Yield the name, the columns and the key of each table; the value is in the column `value`."""
    for name, file, keys, value in _TABLES:
        rows = _read(Path(os.environ["QKV_DATA"]) / file)
        header = None
        if isinstance(value, str):
            header, rows = rows[0], rows[1:]
        columns = [header.index(key) if header else key for key in (*keys, value)]
        rows = [row for row in rows if len(row) > 1 and all(row[column].strip() for column in columns)]
        names = [f"key{n}" for n in range(len(keys))]
        table = {each: _cells([row[c] for row in rows]) for each, c in zip((*names, "value"), columns, strict=True)}
        yield name, table, names


def _read(path: Path) -> list[list[str]]:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return (
        [line.split() for line in text.splitlines()] if path.suffix == ".txt" else list(csv.reader(text.splitlines()))
    )


def _cells(texts: list[str]) -> list[object]:
    try:
        return np.array(texts, float).tolist()
    except ValueError:
        return [text.strip() for text in texts]
