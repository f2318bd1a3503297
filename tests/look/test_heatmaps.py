"""Heatmaps: pixels equal the weights on one scale, and pooling keeps every large weight."""

import io

import numpy as np
import pytest

from qkv import look
from qkv.errors import OptionError, ShapeError
from qkv.look.quantize import max_pool

pytest.importorskip("matplotlib")

TOKENS = ["when", "he", "saw", "his", "owner", ",", "the", "dog", "was", "happy"]


def pixels(figure):
    """Return the pixels, `(height, width, 3)` bytes."""
    from matplotlib.image import imread

    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    stream.seek(0)
    return np.asarray(imread(stream)[..., :3] * 255, int)


def red(picture):
    """Return a mask of the pixels of the darkest red of the map."""
    return (np.abs(picture - [103, 0, 13]).sum(axis=-1) < 40) & (picture[..., 0] > picture[..., 1] + 40)


def test_the_identity_of_size_ten_shows_its_diagonal_and_one_colour_bar():
    figure = look.heatmaps(np.eye(10)[None, None])
    assert len(figure.axes) == 2
    axes, bar = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel(), bar.get_xlabel()) == ("Keys", "Queries", "weight")
    assert tuple(figure.get_size_inches()) == (2.5, 2.5)
    picture = pixels(figure)
    box = axes.get_window_extent()
    height = picture.shape[0]
    for i in range(10):
        for j in range(10):
            x = int(box.x0 + (j + 0.5) * box.width / 10)
            y = int(height - box.y1 + (i + 0.5) * box.height / 10)
            assert red(picture[y, x]) == (i == j), (i, j)


def test_a_map_of_one_weight_has_the_tick_0():
    axes = look.heatmaps(np.eye(1)).axes[0]
    assert [tick for tick in axes.get_xticks() if -0.5 <= tick <= 0.5] == [0]
    assert [tick for tick in axes.get_yticks() if -0.5 <= tick <= 0.5] == [0]


def test_the_label_of_the_colour_bar_does_not_overlap_the_map():
    words = ["He", "asked", "me", "if", "I", "knew", "her", "telephone", "number", "."]
    figure = look.alignment(words, words, np.eye(10))
    figure.draw_without_rendering()
    axes, bar = figure.axes
    assert bar.xaxis.label.get_window_extent().x0 > axes.get_window_extent().x1


def test_all_panels_share_the_scale_of_the_colour_bar():
    weights = np.zeros((1, 2, 3, 3))
    weights[0, 0], weights[0, 1] = 0.1, 1.0
    figure = look.heatmaps(weights)
    assert len(figure.axes) == 3
    first, second = (axes.get_images()[0] for axes in figure.axes[:2])
    assert first.get_clim() == second.get_clim() == (0.0, 1.0)
    picture = pixels(figure)
    middles = []
    for axes in figure.axes[:2]:
        box = axes.get_window_extent()
        middles.append(picture[int(picture.shape[0] - (box.y0 + box.y1) / 2 + 3), int((box.x0 + box.x1) / 2 + 3)])
    assert middles[0][1] > 200 > middles[1][1], "0.1 is pale and 1 is dark"


@pytest.mark.parametrize("tokens", [2048, pytest.param(4096, marks=pytest.mark.long)])
def test_a_single_weight_of_one_among_thousands_squared_is_visible(tokens):
    weights = np.zeros((tokens, tokens), np.float32)
    row, column = int(0.3 * tokens), int(0.7 * tokens)
    weights[row, column] = 1.0
    figure = look.heatmaps(weights)
    picture = pixels(figure)
    box = figure.axes[0].get_window_extent()
    inside = picture[
        int(picture.shape[0] - box.y1) + 2 : int(picture.shape[0] - box.y0) - 2, int(box.x0) + 2 : int(box.x1) - 2
    ]
    places = np.argwhere(red(inside))
    assert len(places) >= 4
    middle = places.mean(axis=0) / inside.shape[:2]
    assert np.abs(middle - [row / tokens, column / tokens]).max() < 0.02


def test_a_small_map_is_not_pooled():
    weights = np.random.default_rng(0).random((7, 5))
    image = look.heatmaps(weights).axes[0].get_images()[0]
    assert np.array_equal(np.asarray(image.get_array()), weights)


@pytest.mark.parametrize("length", [1, 2, 9, 10, 11, 99])
def test_max_pooling_keeps_the_maximum_of_each_cell(length):
    panel = np.random.default_rng(length).random((length, 13))
    small = max_pool(panel, 10, 10)
    assert small.shape == (min(length, 10), 10)
    assert small.max() == panel.max()
    assert set(small.ravel()) <= set(panel.ravel())


def test_titles_label_columns_and_names_label_rows():
    figure = look.heatmaps(np.ones((2, 2, 3, 3)) / 3, titles=["a", "b"], rows=["one", "two"])
    assert [axes.get_title() for axes in figure.axes[:4]] == ["a", "b", "", ""]
    assert [axes.get_ylabel() for axes in figure.axes[:4]] == ["one\nQueries", "", "two\nQueries", ""]


def test_tokens_label_both_axes_in_order():
    figure = look.attention(TOKENS, np.eye(10))
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == TOKENS
    assert [label.get_text() for label in axes.get_yticklabels()] == TOKENS


def test_tick_labels_are_thinned_if_they_do_not_fit():
    words = [f"w{i}" for i in range(300)]
    axes = look.attention(words, np.eye(300)).axes[0]
    shown = [label.get_text() for label in axes.get_xticklabels()]
    places = [int(word[1:]) for word in shown]
    assert 20 < len(shown) < 100
    assert len(set(np.diff(places))) == 1
    assert places == [round(place) for place in axes.get_xticks()]


def test_a_dollar_sign_in_a_word_does_not_start_a_formula():
    figure = look.attention(["$x$", "cost_$5"], np.eye(2))
    assert pixels(figure).size


def test_an_alignment_labels_source_and_translation():
    axes = look.alignment(["the", "cat"], ["le", "chat", "."], np.ones((3, 2)) / 2).axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("source (keys)", "translation (queries)")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["le", "chat", "."]


def test_heads_are_a_grid_of_layers_and_heads():
    figure = look.heads(np.ones((2, 3, 4, 4)) / 4)
    assert [axes.get_title() for axes in figure.axes[:3]] == ["head 0", "head 1", "head 2"]
    assert figure.axes[3].get_ylabel().startswith("layer 1")


def test_tensors_with_gradients_are_plotted():
    torch = pytest.importorskip("torch")
    weights = torch.softmax(torch.randn(4, 4, requires_grad=True), -1)
    image = look.heatmaps(weights).axes[0].get_images()[0]
    assert np.allclose(np.asarray(image.get_array()), weights.detach().numpy())


@pytest.mark.parametrize("scale", ["linear", "sqrt", "log"])
def test_every_scale_ends_at_vmax(scale):
    image = look.heatmaps(np.eye(3) * 0.5, vmax=0.5, scale=scale).axes[0].get_images()[0]
    assert image.norm(0.5) == 1.0
    assert image.norm(0.005) == pytest.approx({"linear": 0.01, "sqrt": 0.1, "log": 0.5}[scale])


def test_weights_above_one_extend_the_colour_scale():
    image = look.heatmaps(np.full((2, 2), 3.0)).axes[0].get_images()[0]
    assert image.get_clim() == (0.0, 3.0)


def test_dark_figures_have_a_dark_background_and_light_labels():
    picture = pixels(look.heatmaps(np.eye(3), dark=True))
    assert picture[2, 2].max() < 40
    assert picture.max() > 200


def test_a_figure_is_displayed_in_a_notebook():
    assert look.heatmaps(np.eye(3))._repr_png_()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        (lambda: look.heatmaps(np.ones(3)), ShapeError, r"\(3,\)"),
        (lambda: look.heatmaps(np.ones((1, 1, 1, 2, 2))), ShapeError, "Select one element of the batch"),
        (lambda: look.heatmaps(np.ones((0, 3))), ShapeError, "non-empty array"),
        (lambda: look.heatmaps(np.eye(2), titles=["a", "b"]), ShapeError, "titles must have 1 elements, got 2"),
        (lambda: look.heatmaps(np.eye(2), scale="cubic"), OptionError, "linear, sqrt, log"),
        (lambda: look.heatmaps(np.eye(2), vmax=0.0), OptionError, "positive"),
        (lambda: look.attention(TOKENS, np.eye(3)), ShapeError, "10 queries and 10 keys"),
        (lambda: look.heads(np.eye(3)), ShapeError, r"\(layers, heads, queries, keys\)"),
    ],
)
def test_invalid_arguments_are_refused_in_one_sentence(wrong, error, says):
    with pytest.raises(error, match=says):
        wrong()


def test_negative_weights_have_a_diverging_scale_around_zero():
    figure = look.heatmaps(np.array([[-0.5, 0.0], [2.0, -3.0]]))
    image = figure.axes[0].images[0]
    assert (image.norm.vmin, image.norm.vmax) == (-3, 3)
    assert image.get_cmap().name == "RdBu_r"
    white, red, blue = (image.cmap(image.norm(weight))[:3] for weight in (0, 3, -3))
    assert min(white) > 0.95
    assert red[0] > red[2]
    assert blue[2] > blue[0]
    for scale in ("sqrt", "log"):
        image = look.heatmaps(np.array([[-1.0, 0.25]]), scale=scale).axes[0].images[0]
        assert image.norm(0.0) == pytest.approx(0.5)
        assert image.norm(-0.25) == pytest.approx(1 - image.norm(0.25))
        assert 0.5 < image.norm(0.25) < image.norm(0.9)


def test_cells_without_a_weight_are_grey_and_do_not_change_the_scale():
    masked = np.ma.masked_array(np.eye(3), mask=np.triu(np.ones((3, 3)), 1))
    for weights in (masked, masked.filled(np.nan)):
        image = look.heatmaps(weights).axes[0].images[0]
        assert (image.norm.vmin, image.norm.vmax) == (0, 1)
        assert np.isnan(np.asarray(image.get_array().filled(np.nan))[0, 1:]).all()
        assert image.get_cmap().get_bad()[:3] == pytest.approx([0xDE / 255] * 3)
    large = np.full((900, 900), np.nan)
    large[0, 5] = -0.5
    shown = look.heatmaps(large).axes[0].images[0].get_array()
    assert shown.min() == -0.5
    assert shown.count() == 1


def test_an_arrow_marks_weights_beyond_the_scale():
    for weights, vmax, extend in ((np.eye(2), None, "neither"), (np.eye(2), 0.5, "max"), (-np.eye(2), 0.5, "min")):
        assert look.heatmaps(weights, vmax=vmax).axes[0].images[0].colorbar.extend == extend
