"""Answers over numbers are those of all rows, although rows beyond the reach of the kernel are not read."""

import numpy as np
import pytest

from qkv.database import Database
from qkv.database.execute import in_memory
from qkv.database.keys import comparisons


def opened(seed, columns):
    """Return a database of 600 rows, some without a key or a value, in two distant clusters."""
    draw = np.random.default_rng(seed)
    points = draw.normal(0, 1, (600, columns)) + 50 * (np.arange(600) % 2)[:, None]
    values = np.sin(4 * points).sum(axis=1) + draw.normal(0, 0.1, 600)
    points[draw.random(600) < 0.02, 0] = np.nan
    values[draw.random(600) < 0.02] = np.nan
    table = {f"x{number}": column for number, column in enumerate(points.T)}
    return Database.open({**table, "v": values}, key=list(table), value="v")


@pytest.mark.thinned
@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize(
    "options", [{}, {"score": "epanechnikov"}, {"score": "laplace"}, {"where": "v > 0"}, {"top": 3}]
)
def test_answers_are_those_of_all_rows(monkeypatch, columns, options):
    queries = [(x,) * columns for x in (-9.0, -1.0, 0.0, 0.3, 25.0, 50.0, 1e6)]
    monkeypatch.setattr(in_memory, "_LARGE_TABLE", 10**9)
    monkeypatch.setattr(comparisons, "_FEWEST_ROWS", 10**9)
    expected = [str(opened(0, columns).ask(query, **options)) for query in queries]
    read = []
    attend = in_memory.attend_to_rows

    def count_rows(queries, comparison, *rest, **more):
        read.append(len(comparison.key))
        return attend(queries, comparison, *rest, **more)

    monkeypatch.setattr(in_memory, "_LARGE_TABLE", 1)
    monkeypatch.setattr(comparisons, "_FEWEST_ROWS", 1)
    monkeypatch.setattr(in_memory, "attend_to_rows", count_rows)
    database = opened(0, columns)
    assert [str(database.ask(query, **options)) for query in queries] == expected
    assert min(read) < 300
    assert max(read) == 600  # queries far from all rows
