"""The tables on which the estimators are evaluated, and the command that evaluates them."""

import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("pandas")

from examples import table_million, tables

pytestmark = pytest.mark.skipif("QKV_DATA" not in os.environ, reason="QKV_DATA does not name the folder of public data")


@pytest.mark.parametrize(
    ("table", "splits", "rows", "asked", "columns"),
    [
        ("yacht", 20, 277, 31, 6),
        ("airfoil", 10, 1353, 150, 5),
        ("abalone", 5, 3341, 836, 8),
        ("california", 5, 16512, 4128, 9),
        ("adult", 1, 32561, 16281, 14),
    ],
)
def test_a_table_has_its_rows_in_its_splits(table, splits, rows, asked, columns):
    found = list(tables.splits_of(table, Path(os.environ["QKV_DATA"])))
    assert len(found) == splits
    assert found[0].X.shape == (rows, columns)
    assert found[0].X_test.shape == (asked, columns)
    assert len(found[0].y) == rows
    if table == "adult":
        assert set(found[0].y) == set(found[0].y_test) == {"<=50K", ">50K"}


def test_the_command_prints_a_line_for_a_method(capsys):
    tables.main(["yacht", "--splits", "1", "--only", "5 nearest neighbours"])
    assert "| yacht | 1 | 5 nearest neighbours | 9.667 |" in capsys.readouterr().out


def test_every_table_is_measured_where_none_is_named(capsys, monkeypatch):
    monkeypatch.setattr(tables, "PEERS", {"guess": lambda classes: None})
    monkeypatch.setattr(tables, "splits_of", lambda table, folder: [table])
    monkeypatch.setattr(tables, "measure", lambda model, split: float(len(split)))
    tables.main([])
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split(" | ")[0] for line in lines] == [f"| {table}" for table in tables.TABLES]


def test_a_table_that_is_not_there_is_refused_by_name(capsys):
    with pytest.raises(SystemExit) as ended:
        tables.main(["yatch"])
    assert ended.value.code == 2
    assert "got 'yatch'" in capsys.readouterr().err


def test_the_large_table_has_its_columns_and_asks_rows_it_is_not_made_from():
    X, y, new, wanted = table_million.table(Path(os.environ["QKV_DATA"]), 2000, 40)
    assert X.shape == (2000, 40)
    assert new.shape == (1000, 40)
    assert list(X.columns) == list(new.columns)
    assert len(np.unique(y)) > 1900
    assert abs(y.mean() - wanted.mean()) < 0.2
