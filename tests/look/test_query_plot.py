"""Plots of answers within their tables: their contents, and atomic saving."""

import datetime as dt
import sys

import numpy as np
import pytest

from qkv.database import Database
from qkv.errors import DataError, MissingPackageError
from qkv.look import plot_query, save_query_plot

pytest.importorskip("matplotlib")

X = np.linspace(0, 1, 60)
LINE = {"x": X, "y": np.sin(6 * X)}
MAP = {"x": np.tile(X[:10], 10), "y": np.repeat(X[:10], 10), "v": np.arange(100.0)}
NAMES = {"name": ["John Smith", "Jane Roe", "Li Mu"], "income": [1000, 2000, 3000]}
DAYS = {"day": [dt.date(2020, 1, 1) + dt.timedelta(days=i) for i in range(60)], "n": np.arange(60.0)}
JOINED = {"n": np.arange(60.0), "day": DAYS["day"]}


def picture(table, query, **options):
    *key, value = table
    database = Database.open(table, key=key, value=value)
    return plot_query(database, database.ask(query, **options), **options)


def words(figure):
    return " ".join(text.get_text() for text in figure.findobj(match=lambda artist: hasattr(artist, "get_text")))


@pytest.mark.parametrize(
    ("table", "query"),
    [
        (LINE, 0.5),
        (LINE, "0.5"),
        (DAYS, "2020-01-20"),
        (DAYS, dt.date(2020, 1, 20)),
        (JOINED, 20),
        (MAP, (0.05, 0.05)),
        (MAP, "0.05,0.05"),
        (NAMES, "Jon Smith"),
    ],
    ids=["number", "number as text", "day", "day as date", "number to day", "map", "map as text", "names"],
)
def test_the_title_is_the_query_and_its_answer(table, query):
    figure = picture(table, query)
    title = figure.get_suptitle()
    asked, answered = title.split("  →  ")
    assert asked.startswith(str(query if not isinstance(query, tuple) else query[0])[:4])
    assert answered != "no match"


def test_a_line_shows_every_point_the_estimate_and_the_answer():
    figure = picture(LINE, 0.5)
    axes = figure.axes[0]
    data, curve = axes.lines[0], axes.lines[1]
    assert len(data.get_xdata()) == 60
    assert (np.asarray(data.get_ydata()) == LINE["y"]).all()
    assert np.abs(np.asarray(curve.get_ydata()) - np.sin(6 * np.asarray(curve.get_xdata()))).max() < 0.2
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("x", "y")


def test_a_map_has_a_whole_and_a_neighbourhood_around_the_query():
    whole, near = picture(MAP, (0.05, 0.06)).axes[:2]
    assert sum(near.get_xlim()) / 2 == pytest.approx(0.05)
    assert sum(near.get_ylim()) / 2 == pytest.approx(0.06)
    assert np.ptp(near.get_xlim()) < np.ptp(whole.get_xlim())


def test_bars_are_the_weights_of_the_rows():
    database = Database.open(NAMES, key="name", value="income")
    answer = database.ask("Jon Smith")
    axes = plot_query(database, answer).axes[0]
    assert [bar.get_width() for bar in axes.patches] == [row.weight for row in answer.rows]
    assert [label.get_text() for label in axes.get_yticklabels()] == [row.record["name"] for row in answer.rows]


def test_the_average_of_vectors_is_shown_in_the_title():
    figure = picture({"x": [1.0, 2.0], "v": np.eye(2)}, 1.5)
    assert figure.get_suptitle() == "1.5  →  [0.5, 0.5] ± 0.71 (standard error)"


def test_no_match_shows_the_reason():
    figure = picture(NAMES, "zzzzz")
    assert "no match" in figure.get_suptitle()
    assert "under 0.8" in words(figure).replace("\n", " ")


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_the_format_of_a_plot_is_that_of_its_suffix(suffix, magic, tmp_path):
    database = Database.open(LINE, key="x", value="y")
    save_query_plot(database, database.ask(0.5), tmp_path / f"p{suffix}")
    assert (tmp_path / f"p{suffix}").read_bytes().startswith(magic)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_failure_keeps_the_old_plot_and_leaves_no_partial_file(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    def broken(self, stream, **_):
        stream.write(b"half a pic")
        raise ValueError("broken")

    (tmp_path / "p.png").write_bytes(b"old")
    monkeypatch.setattr(Figure, "savefig", broken)
    database = Database.open(LINE, key="x", value="y")
    with pytest.raises(ValueError, match="broken"):
        save_query_plot(database, database.ask(0.5), tmp_path / "p.png")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_several_queries_are_refused():
    database = Database.open(LINE, key="x", value="y")
    with pytest.raises(DataError, match=r"answer\[0\]"):
        plot_query(database, database.ask([0.1, 0.2]))


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingPackageError, match=r'pip install "qkv\[look\]"'):
        picture(NAMES, "Jon Smith")
