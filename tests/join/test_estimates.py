"""Joins without labels of people whose names resemble one another, beside columns that tell nothing."""

import numpy as np
import pytest

from qkv.join import SoftJoin
from tests.effort import sample

LETTERS = np.array(list("abcdefghijklmnoprstuvz"))
COLUMNS = {
    "none": lambda draw, rows: None,
    "one value": lambda draw, rows: ["x"] * rows,
    "five values": lambda draw, rows: draw.choice(["red", "green", "blue", "black", "white"], rows).tolist(),
    "numbers": lambda draw, rows: draw.integers(0, 1000, rows).tolist(),
}


def names(draw, count):
    """Distinct names of two words, of which many share one word."""
    first, last = (["".join(draw.choice(LETTERS, draw.integers(4, 9))) for _ in range(words)] for words in (20, 50))
    numbers = draw.choice(1000, count, replace=False)
    return [f"{first[number // 50]} {last[number % 50]}" for number in numbers]


def misspelt(name, draw):
    place = int(draw.integers(1, len(name) - 1))
    return name[:place] + draw.choice(["", name[place] * 2, str(draw.choice(LETTERS))]) + name[place + 1 :]


def tables(seed, rows, matches, column):
    draw = np.random.default_rng(seed)
    every = names(draw, 2 * rows)
    right = [misspelt(name, draw) if draw.random() < 0.75 else name for name in every[rows - matches :][:rows]]
    cells = [COLUMNS[column](draw, rows) for _ in range(2)]
    sides = zip((every[:rows], right), cells, strict=True)
    return tuple({"name": own} | ({} if other is None else {"other": other}) for own, other in sides)


def found(*arguments):
    left, right = tables(*arguments)
    return {(pair.left, pair.right) for pair in SoftJoin().join(left, right)}


@pytest.mark.parametrize("column", sample(sorted(COLUMNS), 2))
def test_misspelt_people_are_found_whatever_stands_beside_their_names(column):
    right, wrong, every = 0, 0, 0
    for seed, rows in enumerate((30, 60, 90, 120, 60, 90)):
        matches = rows if seed % 2 else rows // 2
        pairs = found(seed, rows, matches, column)
        true = {(rows - matches + place, place) for place in range(matches)}
        right, wrong, every = right + len(pairs & true), wrong + len(pairs - true), every + matches
    assert right >= 0.95 * every
    assert wrong <= 0.03 * every


@pytest.mark.parametrize("column", sample(sorted(COLUMNS), 2))
def test_other_people_with_resembling_names_are_hardly_ever_found(column):
    assert sum(len(found(seed, rows, 0, column)) for seed, rows in enumerate((10, 30, 60, 90, 120))) <= 3
