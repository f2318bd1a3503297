"""Plots of regressions and of answers without their tables show the values of the model and of the answer."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from qkv import look
from qkv.database import Database
from qkv.errors import DataError, KindError, OptionError

X = np.linspace(0, 6, 80)
TABLE = {"age": list(range(20, 70)), "income": [10 + each % 7 for each in range(50)]}


@pytest.fixture(scope="module")
def model():
    pytest.importorskip("torch")
    pandas = pytest.importorskip("pandas")
    from qkv.estimators import AttentionRegressor

    frame = pandas.DataFrame({"place": X, "colour": np.where(X > 3, "red", "blue")})
    return AttentionRegressor("none").fit(frame, np.sin(X))


def query(model, place=2.0, colour="blue"):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"place": [place], "colour": [colour]})


def labelled(axes, label):
    return next(drawn for drawn in [*axes.lines, *axes.patches, *axes.collections] if drawn.get_label() == label)


def test_the_line_the_band_and_the_answer_are_those_of_the_model(model):
    pandas = pytest.importorskip("pandas")
    figure = look.plot_regression(model, "place", query(model))
    axes = figure.axes[0]
    line = labelled(axes, "estimate")
    along = pandas.DataFrame({"place": line.get_xdata(), "colour": "blue"})
    np.testing.assert_allclose(line.get_ydata(), model.predict(along), atol=1e-6)
    edge = axes.collections[0].get_paths()[0].vertices
    error = model.predict_std(along)
    assert edge[:, 1].max() == pytest.approx((line.get_ydata() + error).max(), abs=1e-6)
    assert figure.get_suptitle().startswith(f"2  →  {model.predict(query(model))[0]:.3g} ±")


@pytest.mark.parametrize("dark", [False, True])
def test_the_legend_of_a_figure_of_one_column_is_outside_the_axes(model, dark):
    figure = look.plot_regression(model, "place", query(model), width="single", dark=dark)
    assert figure.get_size_inches()[0] == 3.5
    figure.draw_without_rendering()
    axes = figure.axes[0]
    legend = axes.get_legend().get_window_extent()
    assert legend.y0 >= axes.bbox.y1
    assert figure.bbox.x1 >= legend.x1
    with pytest.raises(OptionError, match="width must be 'single'"):
        look.plot_regression(model, "place", width="triple")


def test_the_dots_are_the_rows_and_the_red_dots_those_with_weight(model):
    axes = look.plot_regression(model, "place", query(model)).axes[0]
    dots = labelled(axes, "fitted rows")
    np.testing.assert_allclose(dots.get_xdata(), X, atol=1e-4)
    np.testing.assert_allclose(dots.get_ydata(), np.sin(X), atol=1e-6)
    seen = model.explain_rows(query(model), top=80)
    weighed = next(each for each in axes.collections if each.get_array() is not None)
    heavy = seen.weights[0] > 0.01 * seen.weights[0, 0]
    np.testing.assert_allclose(np.sort(weighed.get_array()), np.sort(seen.weights[0][heavy]))


def test_without_a_query_a_fitted_row_is_used_and_columns_go_by_index_too(model):
    asked = float(look.plot_regression(model, 0, dark=True).get_suptitle().split("  →")[0])
    assert np.abs(X - asked).min() < 0.01


@pytest.mark.parametrize(
    ("feature", "says"),
    [
        ("colour", "holds text"),
        ("size", "got 'size'"),
        (7, "from 0 to 1"),
        (True, "got True"),
        (TABLE, "got an object"),
    ],
)
def test_a_column_that_cannot_be_drawn_is_refused(model, feature, says):
    with pytest.raises((OptionError, KindError), match=says):
        look.plot_regression(model, feature)


def test_a_classifier_and_an_empty_column_are_refused(model):
    from qkv.estimators import AttentionClassifier

    x, y = np.c_[np.arange(9.0), np.full(9, np.nan)], np.arange(9) % 2
    with pytest.raises(KindError, match="must be an AttentionRegressor, got an object of type AttentionClassifier"):
        look.plot_regression(AttentionClassifier("none").fit(x, y), 0)
    with pytest.raises(OptionError, match="column 1, which is empty"):
        look.plot_regression(type(model)("none").fit(x, y), 1)


def test_several_queries_are_refused(model):
    pandas = pytest.importorskip("pandas")
    both = pandas.concat([query(model), query(model, 3.0)])
    with pytest.raises(DataError, match="got 2"):
        look.plot_regression(model, "place", both)


def test_a_plot_of_an_answer_shows_weights_values_and_standard_error():
    answer = Database.open(TABLE, key="age", value="income").ask(35, top=5)
    rows, cells = look.plot_answer(answer).axes
    assert [bar.get_width() for bar in rows.patches] == [row.weight for row in answer.rows]
    dots = labelled(cells, "rows")
    assert list(dots.get_xdata()) == [row.record["income"] for row in answer.rows]
    assert list(labelled(cells, "answer").get_xdata()) == [answer.value] * 2
    band = labelled(cells, "± standard error")
    # A rectangle, which was a polygon before Matplotlib 3.9.
    span = band.get_path().transformed(band.get_patch_transform()).get_extents()
    ends = answer.value - answer.standard_error, answer.value + answer.standard_error
    assert (span.x0, span.x1) == pytest.approx(ends)


def test_a_plot_of_an_answer_from_one_row_has_no_standard_error():
    answer = Database.open({"age": [30], "income": [10.0]}, key="age", value="income").ask(30)
    cells = look.plot_answer(answer).axes[1]
    assert answer.standard_error is None
    assert list(labelled(cells, "answer").get_xdata()) == [10.0, 10.0]
    assert [patch.get_label() for patch in cells.patches] == ["spread of the values"]


def test_a_plot_of_a_vote_shows_the_probabilities():
    table = {"age": TABLE["age"], "city": ["Oslo" if each % 3 else "Bergen" for each in TABLE["age"]]}
    answer = Database.open(table, key="age", value="city").ask(36)
    figure = look.plot_answer(answer, dark=True)
    cells = figure.axes[1]
    assert [bar.get_width() for bar in cells.patches] == list(answer.probabilities.values())
    # A vote has a probability, and no spread.
    share = answer.probabilities[answer.value]
    error = answer.standard_error
    assert figure.get_suptitle() == f"36  →  {answer.value} ({share:.0%}, standard error {error:.1%})"
    database = Database.open(table, key="age", value="city")
    assert look.plot_query(database, answer).get_suptitle() == figure.get_suptitle()


def test_labels_of_bars_do_not_overlap_the_names_of_the_vote():
    table = {"major": ["physics", "physics", "history"], "name": ["Omar Haddad", "Jane Roe", "Luca Rossi"]}
    figure = look.plot_answer(Database.open(table, key="major", value="name").ask("physics"))
    figure.draw_without_rendering()
    rows, cells = figure.axes
    values = [text.get_window_extent() for text in rows.texts]
    names = [text.get_window_extent() for text in cells.get_yticklabels()]
    assert max(box.x1 for box in values) + 20 < min(box.x0 for box in names)


def test_an_answer_without_a_match_shows_the_reason_and_several_are_refused():
    names = Database.open({"name": ["John", "Jane"], "n": [1, 2]}, key="name", value="n")
    nobody = names.ask("Xqzw")
    assert not nobody.found
    (axes,) = look.plot_answer(nobody).axes
    words = " ".join(text.get_text() for text in axes.texts)
    assert words.split()[:3] == nobody.reason.split()[:3]
    with pytest.raises(DataError, match="got 2"):
        look.plot_answer(names.ask(["John", "Jane"]))


def test_rows_of_negative_weight_are_drawn_and_marked():
    draw = np.random.default_rng(0)
    x = draw.uniform(0, 10, 120)
    database = Database.open({"x": x, "z": draw.uniform(0, 10, 120), "y": 2 * x + draw.normal(size=120)}, "x", "y")
    answer = database.ask(10.0, aggregate="local-linear", top=120)
    weights = np.array([row.weight for row in answer.rows])
    assert (weights[:12] > 0).all()
    assert weights.min() < -0.01 * weights.max()
    bars, cells = look.plot_answer(answer).axes
    widths = np.array([bar.get_width() for bar in bars.patches])
    assert (widths < 0).sum() == 3
    assert len({bar.get_facecolor()[:3] for bar in bars.patches}) == 2
    points = labelled(cells, "rows of negative weight").get_xydata()
    assert len(points) == (weights < 0).sum()
    assert points[:, 1].max() < 0
    assert cells.get_ylim()[0] < weights.min()
    (axes, _) = look.plot_query(database, answer, aggregate="local-linear").axes
    assert labelled(axes, "local linear fit") is not None
    drawn = labelled(axes, "negative weight").get_offsets()
    assert len(drawn) == (weights < -0.01 * weights.max()).sum()
    positive = look.plot_answer(database.ask(5.0, top=120))
    assert "rows of negative weight" not in [text.get_text() for text in positive.axes[1].get_legend().texts]


def test_rings_of_negative_weight_are_dashed_in_a_map():
    draw = np.random.default_rng(0)
    x, z = draw.uniform(0, 10, (2, 120))
    database = Database.open({"x": x, "z": z, "y": 2 * x + z + draw.normal(size=120)}, "x,z", "y")
    for aggregate, dashed in (("local-linear", True), ("mean", False)):
        answer = database.ask((9.9, 9.5), aggregate=aggregate, top=120)
        near = look.plot_query(database, answer, aggregate=aggregate).axes[2]
        assert ("dashed: negative" in near.get_title("left")) == dashed


@pytest.mark.parametrize("text", [True, False])
def test_dates_also_as_text_are_drawn_as_dates(text):
    pytest.importorskip("torch")
    pandas = pytest.importorskip("pandas")
    from qkv.estimators import AttentionRegressor

    days = pandas.date_range("2020-01-01", periods=80)
    days = (days.strftime("%Y-%m-%d") if text else days).tolist()
    frame = pandas.DataFrame({"day": [*days[:-1], None]})
    model = AttentionRegressor("none").fit(frame, np.sin(X))
    figure = look.plot_regression(model, "day", frame[40:41])
    assert figure.get_suptitle().startswith("2020-02-10  →  ")
    dots = labelled(figure.axes[0], "fitted rows").get_xdata()
    assert dots.dtype.kind == "M"
    assert abs(dots[0] - np.datetime64("2020-01-01")) < np.timedelta64(1, "m")
    assert len(dots) == 79
