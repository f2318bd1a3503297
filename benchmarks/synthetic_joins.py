"""Joins without labels of tables that nobody has tuned for: `QKV_DATA=… python -m benchmarks.synthetic_joins`.

People and products are drawn at random from the lists of names of the public data, with copies that have errors:
exchanged and missing letters, words in another order or left out, missing cells, prices that differ by up to a fifth.
Each line is a setting, the number of true matches, the mean precision and recall of the pairs that `SoftJoin` finds
with its defaults, and the lowest F1. Settings without a match must find none.
"""

from __future__ import annotations

import argparse
import math
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qkv.join import SoftJoin

__all__ = ["SETTINGS", "main", "measure"]

Record = dict[str, Any]
_WORDS = (
    "super", "deluxe", "classic", "mini", "pro", "wireless", "digital", "portable", "black", "silver", "red",
    "blue", "set", "kit", "pack", "case", "cable", "adapter", "battery", "charger", "camera", "lens", "printer",
    "ink", "toner", "paper", "desk", "lamp", "chair", "table", "speaker", "phone", "tablet", "mouse", "stand",
    "cover",
)  # fmt: skip

SETTINGS: dict[str, tuple[str, tuple[str, ...], int, int, int, float]] = {
    "people, four columns": ("people", ("name", "city", "born", "phone"), 200, 200, 100, 0.6),
    "people, two columns": ("people", ("name", "city"), 200, 300, 150, 0.6),
    "people, names": ("people", ("name",), 200, 200, 100, 0.6),
    "people, resembling names": ("resembling", ("name",), 100, 100, 60, 0.6),
    "people, resembling names and towns": ("resembling", ("name", "town"), 100, 100, 60, 0.6),
    "people, resembling names, no match": ("resembling", ("name", "town"), 100, 100, 0, 0.6),
    "people, few matches": ("people", ("name", "city", "born", "phone"), 300, 300, 8, 0.3),
    "people, all match": ("people", ("name", "city", "born", "phone"), 150, 150, 150, 0.3),
    "people, 30 right rows twice": ("people", ("name", "city", "born", "phone"), 200, 200, 100, 0.6),
    "people, 20 and 600 rows": ("people", ("name", "city", "born", "phone"), 20, 600, 15, 0.3),
    "people, 8 rows": ("people", ("name", "city", "born", "phone"), 8, 8, 5, 0.3),
    "people, no match": ("people", ("name", "city", "born", "phone"), 150, 150, 0, 0.3),
    "products, titles and prices": ("products", ("title", "price"), 200, 250, 120, 0.6),
    "products, titles": ("products", ("title",), 200, 250, 120, 0.6),
    "products, no match": ("products", ("title", "price"), 150, 150, 0, 0.3),
    "product titles, no match": ("products", ("title",), 150, 150, 0, 0.3),
}
"""Kind of records, compared columns, left rows, right rows, matches, and the probability of each kind of error."""

_TWICE = {"people, 30 right rows twice": 30}
"""How many of the matching right rows stand in the table twice."""


class _Records:
    """Random records and their copies with errors."""

    def __init__(self, folder: Path, seed: int) -> None:
        paths = sorted(path for path in (folder / "names").glob("*.txt"))
        self.names = [name.strip() for path in paths for name in path.read_text(encoding="utf-8").splitlines() if name]
        self.random = random.Random(seed)

    def people(self) -> Record:
        draw = self.random
        born = f"19{draw.randrange(10, 99)}-{draw.randrange(1, 13):02d}-{draw.randrange(1, 29):02d}"
        name = f"{draw.choice(self.names)} {draw.choice(self.names)}"
        phone = "".join(draw.choice("0123456789") for _ in range(9))
        return {"name": name, "city": f"{draw.choice(self.names)}town", "born": born, "phone": phone}

    def resembling(self) -> Record:
        draw = self.random
        name = f"{draw.choice(self.names[:20])} {draw.choice(self.names[1000:1050])}"
        return {"name": name, "town": f"{draw.choice(self.names[:5])}town", "born": ""}

    def products(self) -> Record:
        draw = self.random
        words = " ".join(draw.sample(_WORDS, draw.randrange(3, 7)))
        title = f"{draw.choice(self.names)} {words} {draw.choice('ABCXZ')}{draw.randrange(100, 9999)}"
        return {"title": title, "price": round(math.exp(draw.gauss(3, 1)), 2)}

    def copy(self, record: Record, noise: float) -> Record:
        draw, found = self.random, dict(record)
        if "name" in found:
            if draw.random() < noise:
                found["name"] = self._misspelt(found["name"])
            if draw.random() < noise:
                found["name"] = " ".join(reversed(found["name"].split()))
            missing = {name: None for name in ("city", "phone") if draw.random() < noise / 2}
            return found | missing | ({"born": self._misspelt(found["born"])} if draw.random() < noise / 2 else {})
        words = [word for word in found["title"].split() if draw.random() > noise / 4] or found["title"].split()
        if draw.random() < noise:
            draw.shuffle(words)
        title = " ".join([*words, *draw.sample(_WORDS, draw.randrange(0, 3))])
        price = None if draw.random() < 0.1 else round(found["price"] * draw.uniform(0.8, 1.2), 2)
        return {"title": title.lower() if draw.random() < 0.5 else title, "price": price}

    def _misspelt(self, text: str) -> str:
        place = self.random.randrange(max(1, len(text) - 1))
        before, here, after = text[:place], text[place : place + 2], text[place + 2 :]
        return before + self.random.choice([here[1:], here[::-1], self.random.choice("aeiou") + here[1:]]) + after


def measure(folder: Path, setting: str, seed: int) -> tuple[int, float, float]:
    """Return the number of true matches, and the precision and the recall of the pairs that are found.

    Both are 1 if there is no match and none is found.
    """
    kind, on, left, right, matches, noise = SETTINGS[setting]
    records = _Records(folder, seed)
    make: Callable[[], Record] = getattr(records, kind)
    rows = [make() for _ in range(left)]
    others = [(records.copy(row, noise), place) for place, row in enumerate(rows[:matches])]
    others += others[: _TWICE.get(setting, 0)]
    others += [(make(), -1) for _ in range(right - len(others))]
    records.random.shuffle(others)
    tables = [{name: [row[name] for row in some] for name in on} for some in (rows, [row for row, _ in others])]
    found = {(pair.left, pair.right) for pair in SoftJoin(on=on if len(on) > 1 else on[0]).join(*tables)}
    true = {(left_row, place) for place, (_, left_row) in enumerate(others) if left_row >= 0}
    right_ones = len(found & true)
    return len(true), right_ones / len(found) if found else 1.0, right_ones / len(true) if true else 1.0


def main(arguments: list[str] | None = None) -> None:
    """Print one line for each setting and seed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.synthetic_joins", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="number of random pairs of tables for each setting")
    asked = parser.parse_args(arguments)
    folder = os.environ.get("QKV_DATA")
    if not folder:
        parser.exit(2, "The variable QKV_DATA must name the folder of the names.\n")
    print("| setting | matches | precision | recall | F1, lowest |\n|---|---|---|---|---|")
    for setting in SETTINGS:
        found = [measure(Path(folder), setting, seed) for seed in range(1, asked.seeds + 1)]
        scores = [2 * precision * recall / max(precision + recall, 1e-9) for _, precision, recall in found]
        precision, recall = (sum(column) / len(found) for column in list(zip(*found, strict=True))[1:])
        print(f"| {setting} | {found[0][0]} | {precision:.3f} | {recall:.3f} | {min(scores):.3f} |", flush=True)


if __name__ == "__main__":
    main()
