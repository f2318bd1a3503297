"""Plots of answers within their tables: their contents, and atomic saving."""

import datetime as dt
import itertools
import sys

import numpy as np
import pytest

from qkv.database import Database
from qkv.errors import DataError, MissingPackageError
from qkv.look import plot_query, save_query_plot
from tests.effort import sample

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


def test_the_interval_is_that_of_the_answers():
    random = np.random.default_rng(0)
    x = random.uniform(0, 1, 200)
    database = Database.open({"x": x, "y": np.sin(6 * x) + random.normal(0, 0.2, 200)}, key="x", value="y")
    axes = plot_query(database, database.ask(0.5)).axes[0]
    labels = {text.get_text() for text in axes.get_legend().get_texts()}
    assert labels == {"rows", "weighted mean", "90% prediction interval", "answer ± standard error"}
    (band,) = [artist for artist in axes.collections if artist.get_label() == "90% prediction interval"]
    outline = band.get_paths()[0].vertices
    place = outline[np.abs(outline[:, 0] - 0.5).argmin(), 0]
    ends = outline[outline[:, 0] == place, 1]
    assert (ends.min(), ends.max()) == pytest.approx(database.ask(place).prediction_interval)


@pytest.mark.parametrize(
    ("size", "table", "query"),
    sample(
        [
            (size, table, query)
            for size in ((7.2, 4.6), (4.4, 3.2))
            for table, query in ((LINE, 0.5), (MAP, (0.05, 0.06)), (DAYS, "2020-01-20"), (NAMES, "Jon Smith"))
        ],
        3,
    ),
)
def test_rows_effective_rows_and_bandwidth_are_below_the_plot(table, query, size):
    *key, value = table
    database = Database.open(table, key=key, value=value)
    answer = database.ask(query)
    figure = plot_query(database, answer, size=size)
    footer = figure.get_supxlabel().replace("\n", " ")
    assert footer.startswith(f"{len(database)} rows of the dict")
    assert f"effective rows: {answer.effective_rows:,.1f}" in footer
    (compared,) = [note for note in answer.notes if note.startswith("compared by")]
    assert ("bandwidth" in footer) == ("bandwidth" in compared)
    assert compared.partition("bandwidth")[2] in footer
    # The footer and all labels lie within the figure.
    figure.draw_without_rendering()
    for text in (figure._supxlabel, *(axes.xaxis.label for axes in figure.axes)):
        box = text.get_window_extent().transformed(figure.transFigure.inverted())
        assert box.x0 >= -0.01
        assert box.x1 <= 1.01
        assert box.y0 >= -0.01


@pytest.mark.parametrize("where", [None, "v < 60"])
def test_the_map_of_answers_is_that_of_the_database(where):
    database = Database.open(MAP, key="x,y", value="v")
    answers = picture(MAP, (0.05, 0.06), where=where).axes[1]
    (field,) = answers.collections
    cells = np.ma.asarray(field.get_array())
    corners = field.get_coordinates()
    middles = (0.25 * (corners[1:, 1:] + corners[1:, :-1] + corners[:-1, 1:] + corners[:-1, :-1])).reshape(-1, 2)
    some = np.random.default_rng(0).choice(len(middles), 40, replace=False)
    asked = database.ask([tuple(point) for point in middles[some].tolist()], where=where)
    for place, found, value in zip(some, asked.found, asked.value, strict=True):
        assert found == (not np.ma.getmaskarray(cells).ravel()[place])
        assert not found or cells.ravel()[place] == pytest.approx(value)


def test_a_map_shows_values_answers_and_weights():
    whole, answers, near = picture(MAP, (0.05, 0.06)).axes[:3]
    assert (whole.get_xlim(), whole.get_ylim()) == (answers.get_xlim(), answers.get_ylim())
    assert sum(near.get_xlim()) / 2 == pytest.approx(0.05)
    assert sum(near.get_ylim()) / 2 == pytest.approx(0.06)
    assert np.ptp(near.get_xlim()) < np.ptp(whole.get_xlim())
    (values,) = whole.collections
    assert (np.asarray(values.get_array()) == MAP["v"]).all()
    field, rings = near.collections
    # The middle cell of the field is the answer.
    middle = np.ma.asarray(field.get_array())
    middle = middle[middle.shape[0] // 2, middle.shape[1] // 2]
    database = Database.open(MAP, key="x,y", value="v")
    answer = database.ask((0.05, 0.06), top=100)
    assert middle == pytest.approx(answer.value, abs=2)
    assert len(rings.get_offsets()) == sum(row.weight > 0.02 * answer.rows[0].weight for row in answer.rows)
    assert field.norm is values.norm is answers.collections[0].norm
    for axes in (whole, answers):
        (frame,) = axes.patches
        corners = zip(near.get_xlim(), near.get_ylim(), strict=True)
        assert frame.get_bbox().extents == pytest.approx([each for corner in corners for each in corner])
    assert (whole.get_xlabel(), whole.get_ylabel(), near.get_xlabel()) == ("x", "y", "x")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (DAYS["day"], np.arange(60.0)),
        ([dt.datetime(2020, 1, 1, i % 24, tzinfo=dt.UTC) + dt.timedelta(i) for i in range(60)], np.arange(60.0)),
        (np.arange(60.0), DAYS["day"]),
    ],
    ids=["date", "zone", "value"],
)
def test_dates_have_a_date_axis(key, value):
    from matplotlib.dates import ConciseDateFormatter, date2num

    database = Database.open({"key": key, "value": value}, key="key", value="value")
    axes = plot_query(database, database.ask(key[20])).axes[0]
    dates, axis, limits = (key, axes.xaxis, axes.get_xlim()) if value[0] == 0 else (value, axes.yaxis, axes.get_ylim())
    assert isinstance(axis.get_major_formatter(), ConciseDateFormatter)
    assert limits[0] < date2num(dates[0]) < date2num(dates[-1]) < limits[1]
    drawn = axes.lines[0].get_xdata() if dates is key else axes.lines[0].get_ydata()
    assert np.asarray(drawn) == pytest.approx(date2num(dates))


@pytest.mark.parametrize("key", ["at", "length"])
def test_times_and_durations_are_drawn_in_hours_and_days(key):
    table = {
        "at": [dt.time(i // 2, 30 * (i % 2)) for i in range(40)],
        "length": [dt.timedelta(hours=6 * i) for i in range(40)],
        "v": np.arange(40.0),
    }
    database = Database.open(table, key=key, value="v")
    axes = plot_query(database, database.ask(table[key][10])).axes[0]
    assert axes.get_xlabel() == {"at": "at (hours)", "length": "length (days)"}[key]
    expected = np.arange(40) * {"at": 0.5, "length": 0.25}[key]
    assert np.asarray(axes.lines[0].get_xdata()) == pytest.approx(expected)


@pytest.mark.parametrize("keys", ["x", "x,z"])
def test_many_rows_are_drawn_as_density(keys):
    random = np.random.default_rng(0)
    table = {name: random.normal(size=3001) for name in "xzy"}  # one more than are drawn as points
    database = Database.open(table, key=keys, value="y")
    axes = plot_query(database, database.ask("0.1,0.1" if "," in keys else 0.1)).axes[0]
    drawn = [len(line.get_xdata()) for line in axes.lines] + [len(c.get_offsets()) for c in axes.collections]
    assert max(drawn) < 3000
    cells = axes.collections[0].get_array()
    assert len(cells) > 100
    if keys == "x":
        assert cells.sum() == 3001


@pytest.mark.parametrize(("memory", "keys"), sample(itertools.product(["512 MiB", 1], ["x", "x,z"]), 3))
def test_rows_that_are_left_out_do_not_affect_the_scale(tmp_path, keys, memory):
    random = np.random.default_rng(0)
    inside = random.uniform(0, 1, (80, 3))
    outside = 1e6 + random.uniform(0, 1, (20, 3))
    missing = np.array([[1e9, 0.5, np.nan], [0.5, 1e9, np.nan]])
    x, z, y = np.concatenate([inside, outside, missing]).T
    table = {"x": x, "z": z, "y": y, "part": ["a"] * 80 + ["b"] * 20 + ["a"] * 2}
    Database.create(tmp_path / "s", table, key=keys, value="y")
    where = "part = 'a'"
    for database in (Database.open(table, key=keys, value="y"), Database.open(tmp_path / "s", memory=memory)):
        query = "0.5,0.5" if "," in keys else "0.5"
        figure = plot_query(database, database.ask(query, where=where), where=where)
        for axes in figure.axes:
            assert np.abs([*axes.get_xlim(), *axes.get_ylim()]).max() < 10
        if "," in keys:
            (values,) = figure.axes[0].collections
            assert np.sort(np.asarray(values.get_array())) == pytest.approx(np.sort(inside[:, 2]))


def test_the_estimate_is_interrupted_where_no_key_matches():
    x = np.concatenate([np.linspace(0, 1, 50), np.linspace(9, 10, 50), [20.0]])
    database = Database.open({"x": x, "y": np.sin(x)}, key="x", value="y")
    figure = plot_query(database, database.ask(0.5))
    curve, alone = figure.axes[0].lines[1:3]
    grid, estimate = np.asarray(curve.get_xdata()), np.asarray(curve.get_ydata())
    found = np.array(database.ask(list(grid)).found)
    assert (np.isfinite(estimate) == found).all()
    assert not found[(grid > 4) & (grid < 6)].any()
    assert found[(grid < 1) | ((grid > 9) & (grid < 10))].all()
    # A single key between gaps has a mark, as a line needs two points.
    assert 20.0 in alone.get_xdata() or found[grid > 19.5].sum() > 1


@pytest.mark.parametrize(
    ("constant", "rows", "keys"), sample(itertools.product([True, False], [1, 2, 7], ["x", "x,z"]), 5)
)
def test_few_and_constant_rows_are_drawn(keys, rows, constant, recwarn):
    x = np.zeros(rows) if constant else np.arange(rows) * 1.0
    database = Database.open({"x": x, "z": x * 2, "y": x + 1e9}, key=keys, value="y")
    figure = plot_query(database, database.ask("0,0" if "," in keys else "0"))
    figure.draw_without_rendering()
    assert "no match" not in figure.get_suptitle()
    assert not recwarn.list


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
