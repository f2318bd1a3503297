"""Axes of series, tables and images: their labels, curves and groups, in Python and on the page."""

import numpy as np
import pytest

from qkv import look
from qkv.errors import OptionError, ShapeError
from qkv.look.axis import Axis
from qkv.look.page import Page
from qkv.look.server import ServedPage, serve_in_thread

from .chromium import needs_chromium, redrawn

VALUES = np.array([3.0, 1.0, 2.0, 9.0, 8.0, 7.0])
DAYS = ["Monday", "Monday", "Monday", "Tuesday", "Tuesday", "Tuesday"]
CURVE = [74, 131, 196]


def series():
    """A view of six hours of two days; each hour attends to itself and to the one before."""
    axis = Axis.from_series([f"hour {i} of the series" for i in range(6)], VALUES, name="°C", groups={"day": DAYS})
    weights = 0.75 * np.eye(6) + 0.25 * np.eye(6, k=-1)
    weights[0, 0] = 1
    return look.View.from_weights(weights[None, None], axis, name="hours")


def test_a_curve_has_the_smallest_and_the_largest_sample_of_each_frame():
    samples = np.random.default_rng(0).normal(size=103)
    curve = Axis.from_series(range(10), samples).curve
    frames = [samples[i * 103 // 10 : (i + 1) * 103 // 10] for i in range(10)]
    assert curve.low.tolist() == [frame.min() for frame in frames]
    assert curve.high.tolist() == [frame.max() for frame in frames]


def test_hours_are_merged_to_days_with_the_range_of_their_values():
    days = series().grouped("day")
    assert days.queries.tokens == ("Monday", "Tuesday")
    assert (days.queries.curve.low.tolist(), days.queries.curve.high.tolist()) == ([1, 7], [3, 9])
    assert np.allclose(days.weights(0, 0), [[1, 0], [0.25 / 3, 2.75 / 3]], rtol=6e-3)


def test_an_axis_has_only_its_own_units():
    with pytest.raises(OptionError, match="unit must be one of tokens, words, day, got 'sentences'"):
        series().grouped("sentences")
    image = look.View.from_weights(np.full((1, 1, 7, 7), 1 / 7), Axis.from_patches(3, 2, 1))
    assert image.grouped("row").queries.tokens == ("[CLS]", "row 0", "row 1", "row 2")


@pytest.mark.parametrize("options", [{"values": [1.0]}, {"values": np.ones((2, 2))}, {"groups": {"day": ["a"]}}])
def test_values_and_groups_that_do_not_fit_the_labels_are_refused(options):
    with pytest.raises(ShapeError, match="each of 2 labels"):
        Axis.from_series(["a", "b"], **options)


def curve_pixels(page):
    """Return the number of pixels in the colour of curves left of the map and below it."""
    return page.evaluate(
        """(colour) => {
            const canvas = document.querySelector("canvas.map"), { width, height } = canvas;
            const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
            const found = [0, 0];
            for (let i = 0; i < width * height; i++) {
                if (!colour.every((one, c) => Math.abs(data[4 * i + c] - one) < 3)) continue;
                found[i % width < 0.4 * width && i < 0.7 * width * height ? 0 : 1]++;
            }
            return found;
        }""",
        CURVE,
    )


@needs_chromium
def test_the_page_draws_the_curve_of_both_axes_and_merges_the_units_of_the_series(opened):
    with serve_in_thread(ServedPage(page=Page.from_views(series()))) as address:
        page = opened(address)
        assert min(curve_pixels(page)) > 20
        units = page.locator("select.unit option").all_text_contents()
        assert units == ["tokens", "day"]
        redrawn(page, lambda: page.locator("select.unit").select_option("day"))
        assert page.locator("output").first.text_content().startswith("“Monday” (0) → “Monday” (0): 1")
        with page.expect_download() as waiting:
            page.get_by_label("Save as SVG").click()
        svg = waiting.value.path().read_text("utf-8")
        assert svg.count('fill="#4a83c4"') == 2
        assert all(f">{text}</text>" in svg for text in ("Monday", "Tuesday", "°C · key (attended)"))


@needs_chromium
def test_a_page_of_words_has_no_curve(opened):
    view = look.View.from_weights(np.eye(3)[None, None], ["a", "b", "c"])
    with serve_in_thread(ServedPage(page=Page.from_views(view))) as address:
        assert curve_pixels(opened(address)) == [0, 0]


def test_a_figure_draws_the_curve_of_the_keys_above_the_map():
    pytest.importorskip("matplotlib")
    view = series()
    figure = look.plot_view(view, 0, 0, width="single")
    (strip,) = figure.axes[0].child_axes
    drawn = strip.collections[0].get_datalim(strip.transData)
    assert (drawn.ymin, drawn.ymax) == (1, 9)
    assert [text.get_text() for text in strip.texts] == ["°C"]
    assert figure.get_tightbbox().y1 <= figure.get_size_inches()[1] + 0.01  # nothing is cut
