"""Prediction intervals contain 90 % of new values: on simulated values, and on public tables (pytest -m long -s)."""

import os
from pathlib import Path

import numpy as np
import pytest
from benchmarks.coverage import NOISE, markdown, public, simulated_curve, simulated_groups

from qkv.database import Database


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize(("rows", "tables"), [(300, 9), (1500, 3)])
def test_intervals_contain_nine_of_ten_simulated_values(noise, rows, tables):
    assert 0.88 < simulated_curve(noise, rows, tables).inside < 0.92


@pytest.mark.parametrize("noise", ["normal", "skewed", "heavy tails"])
@pytest.mark.parametrize("kind", ["category", "text"])
def test_intervals_of_groups_of_any_size_and_scale_contain_nine_of_ten_values(noise, kind):
    assert 0.88 < simulated_groups(noise, kind).inside < 0.92


def test_a_store_and_a_filter_give_the_same_interval(tmp_path):
    draw = np.random.default_rng(0)
    x, shop = draw.random(400), draw.integers(0, 2, 400)
    table = {"x": x, "shop": shop, "y": x + draw.exponential(size=400) * (1 + 9 * shop)}
    few = {name: np.asarray(cells)[shop == 0] for name, cells in table.items()}
    Database.create(tmp_path / "s", table, "x", "y")
    wanted = Database.open(few, "x", "y").ask(0.5)
    for database in (Database.open(table, "x", "y"), Database.open(tmp_path / "s", memory=1)):
        answer = database.ask(0.5, where="shop = 0")
        assert answer.prediction_interval == pytest.approx(wanted.prediction_interval, rel=1e-6)


@pytest.mark.long
@pytest.mark.skipif("QKV_DATA" not in os.environ, reason="QKV_DATA does not name the folder of public data")
def test_intervals_contain_nine_of_ten_rows_of_public_tables():
    found = list(public(Path(os.environ["QKV_DATA"])))
    print(f"\n{markdown(found)}")
    assert sum(0.88 <= one.inside <= 0.92 for one in found) >= 10
    for one in found:
        # An interval contains all rows or no row with one of a few distinct values; a few hundred rows are few draws.
        slack = 0.035 if one.distinct < 20 or one.rows < 1000 else 0.02
        assert 0.88 <= one.inside <= 0.9 + slack, one
