"""Tests of keys without a value: they decide who is meant, and neighbours never give their value."""

from __future__ import annotations

import numpy as np
import pytest

from qkv.database import Database

FIRST = ["Jon", "John", "Joan", "Ann", "Anna", "Maria", "Mario", "José", "Jose"]
LAST = ["Smith", "Smyth", "Gonzales", "Gonzalez", "Ray", "Reyes"]
CITIES = ["Springfield", "Springfields", "Portland", "Niger", "Nigeria", "Iran", "Iraq"]
STATES = ["Illinois", "Missouri", "Oregon", "Maine"]


def _misspelt(rng: np.random.Generator, text: str) -> str:
    """Return a text with two neighbouring letters exchanged, words in another order, other case, or as it is."""
    at = int(rng.integers(1, len(text) - 1))
    swapped = text[: at - 1] + text[at] + text[at - 1] + text[at + 1 :]
    return str(rng.choice([text, text.upper(), " ".join(reversed(text.split())), swapped, text[: len(text) - 2]]))


def _table(rng: np.random.Generator, kind: str, rows: int = 40) -> tuple[dict[str, list], str, list[object]]:
    """Return a table whose value is the number of the row, the names of its key columns, and queries."""
    value = [float(row) for row in range(rows)]
    if kind == "names":
        names = [f"{rng.choice(FIRST)} {rng.choice(LAST)}" for _ in range(rows)]
        return {"name": names, "value": value}, "name", [_misspelt(rng, str(rng.choice(names))) for _ in range(40)]
    if kind == "two texts":
        city, state = ([str(rng.choice(each)) for _ in range(rows)] for each in (CITIES, STATES))
        asked = [(_misspelt(rng, str(rng.choice(CITIES))), str(rng.choice(STATES))) for _ in range(30)]
        return {"city": city, "state": state, "value": value}, "city,state", asked
    if kind == "identifiers":
        codes = [f"u{rng.integers(1, 25):04d}" for _ in range(rows)]
        return {"user_id": codes, "value": value}, "user_id", [f"u{number:04d}" for number in range(1, 30)]
    numbers = rng.integers(0, 20, rows).tolist()
    return {"order_id": numbers, "value": value}, "order_id", list(range(22))


def _without_some(rng: np.random.Generator, table: dict[str, list]) -> dict[str, list]:
    """Return the table with missing values: of some rows, and of all rows of some keys."""
    keys = list(zip(*(cells for name, cells in table.items() if name != "value"), strict=True))
    blank = {keys[row] for row in rng.integers(0, len(keys), 6).tolist()}
    drop = rng.random(len(keys)) < 0.2
    kept = [None if drop[row] or keys[row] in blank else cell for row, cell in enumerate(table["value"])]
    return {**table, "value": kept}


def _databases(folder: str, table: dict[str, list], key: str) -> list:
    Database.create(folder, table, key, "value")
    return [
        Database.open(table, key=key, value="value"),
        Database.open(folder),
        Database.open(folder, memory=1),
    ]


@pytest.mark.parametrize("kind", ["names", "two texts", "identifiers", "numbers of orders"])
@pytest.mark.parametrize("seed", range(3))
def test_the_key_that_is_meant_does_not_depend_on_which_values_are_missing(tmp_path, kind, seed):
    rng = np.random.default_rng([seed, len(kind)])
    table, key, queries = _table(rng, kind)
    columns = key.split(",")
    whole = Database.open(table, key=key, value="value").ask(queries, top=100)
    partly = _without_some(rng, table)
    for database in _databases(f"{tmp_path}/store", partly, key):
        seen = 0
        for meant, answer in zip(whole, database.ask(queries, top=100), strict=True):
            if not meant.found:
                assert not answer.found
                assert not answer.missing_rows
                assert set(answer.candidates) == set(meant.candidates)
                assert answer.reason == meant.reason or meant.candidates
                continue
            cells = [partly["value"][row.index] for row in meant.rows]
            present = [cell for cell in cells if cell is not None]
            missing = sorted(row.index for row, cell in zip(meant.rows, cells, strict=True) if cell is None)
            assert sorted(answer.missing_rows) == missing
            if present:
                assert answer.value == pytest.approx(np.mean(present))
                assert bool(answer.remarks) == bool(missing)
            else:
                seen += 1
                shown = ", ".join(str(meant.rows[0].record[name]) for name in columns)
                assert (answer.found, answer.value, answer.rows) == (False, None, ())
                assert "is in the table; its value is missing (row" in answer.reason
                assert answer.reason.casefold().startswith(shown.casefold())
        assert seen
