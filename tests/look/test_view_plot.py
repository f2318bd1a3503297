"""Figures of views for papers: their text, size, colours and fonts."""

import base64
import io
import re
import warnings
import xml.etree.ElementTree as ElementTree
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv import Database, look
from qkv.errors import OptionError, ShapeError
from qkv.look.color_range import automatic_range, format_weight, range_norm
from qkv.look.figure import _fallback_fonts
from qkv.look.inline_map import map_svg
from qkv.look.tiled_views import arrays_view
from qkv.look.views import View
from tests.effort import LONG, cases, sample

pytest.importorskip("matplotlib")

WORDS = ["when", "he", "saw", "$x$", "dog", "Ωμέγα", "<b>"]


def saved(figure, kind):
    stream = io.BytesIO()
    figure.savefig(stream, format=kind)
    return stream.getvalue()


def pixels(figure):
    raw = np.frombuffer(saved(figure, "rgba"), np.uint8)
    return raw.reshape(-1, round(figure.bbox.width), 4)[..., :3].astype(int)


def cell_colours(figure, rows, columns):
    """Return the colours at the centres of the cells of the first map, `(rows, columns, 3)`."""
    picture = pixels(figure)
    box = figure.axes[0].get_window_extent()
    x = (box.x0 + (np.arange(columns) + 0.5) * box.width / columns).astype(int)
    y = (len(picture) - box.y1 + (np.arange(rows) + 0.5) * box.height / rows).astype(int)
    return picture[y[:, None], x]


def causal(tokens, layers=1, heads=1, seed=0):
    weights = np.tril(np.random.default_rng(seed).random((layers, heads, tokens, tokens)) ** 4)
    return weights / weights.sum(axis=-1, keepdims=True)


def panel():
    return look.plot_view(seven(), 1, 2, width="single"), [*WORDS, "weight", "seven <words> & $: layer 1, head 2"]


def grid():
    return look.plot_view(seven(), width="double"), ["layer 0", "layer 1", "0", "2", "weight", "seven <words> & $"]


def test_titles_name_the_model():
    view = look.View.from_weights(np.eye(3)[None, None], ["a", "b", "c"], name="words", model="bert")
    assert look.plot_view(view, 0, 0).axes[0].get_title() == "words: bert, layer 0, head 0"
    assert look.plot_view(view).get_suptitle() == "words: bert"
    assert look.plot_view(view, 0, 0, title="mine").axes[0].get_title() == "mine"


def differences():
    """The difference of two texts with 2 × 3 heads: only the weights of the last row of layer 1, head 2 differ."""
    first = np.broadcast_to(np.tri(4) / np.arange(1, 5)[:, None], (2, 3, 4, 4)).copy()
    second = first.copy()
    second[1, 2, 3] = [0.5, 0.0, 0.25, 0.25]
    words = [["a", "b", "c", word] for word in "de"]
    views = (look.View.from_weights(w, t, name=t[3]) for w, t in zip((first, second), words, strict=True))
    return look.difference(*views)


def test_the_figure_of_a_difference_names_what_differs_between_texts_that_begin_alike():
    texts = ["When he saw his owner, the dog was happy", "When he saw his owner, the cat was angry"]
    views = [look.View.from_weights(np.eye(3), ["a", "b", "c"], name=name) for name in texts]
    figure = look.plot_view(look.difference(*views), 0, 0, width="single")
    one, other = figure.axes[0].get_title().removesuffix(": layer 0, head 0").split("\nminus ")
    assert one.startswith("…")
    assert one.endswith("the dog was happy")
    assert other.endswith("the cat was angry")
    figure.canvas.draw()
    for axes in figure.axes:
        assert axes.get_tightbbox().x1 <= figure.bbox.x1 + 1, axes


def test_the_figure_of_a_difference_has_its_sign_names_and_one_linear_scale():
    result = differences()
    figure = look.plot_view(result, 1, 2, width="single")
    assert figure.axes[0].get_title() == "d\nminus e: layer 1, head 2"
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["a", "b", "c", "d | e"]
    # A dash marks the sign of the negative cell in grey prints.
    assert figure.axes[1].get_xlabel() == "difference\ndash: < 0"
    assert figure.axes[0].collections[0].get_segments()[0].tolist() == [[-0.25, 3.25], [0.25, 3.25]]
    assert not look.plot_view(result, 0, 0).axes[0].collections[0].get_segments()
    assert [label.get_text() for label in figure.axes[1].get_yticklabels()] == [
        "−0.250",
        "−0.138",
        "0",
        "0.138",
        "0.250",
    ]
    orange, blue, white, masked = [92, 26, 2], [3, 28, 82], [255, 255, 255], [222, 222, 222]
    assert cell_colours(figure, 4, 4)[[3, 3, 3, 2, 0], [0, 1, 2, 0, 1]].tolist() == [orange, blue, white, white, masked]
    grid = look.plot_view(result)
    assert (grid.get_suptitle(), grid.axes[1].get_xlabel()) == ("d\nminus e", "difference")
    sheet = np.asarray(grid.axes[0].get_images()[0].get_array())
    coloured = [(sheet[34 * i :, 34 * j :][:32, :32] == blue).all(axis=-1).any() for i in range(2) for j in range(3)]
    assert coloured == [False] * 5 + [True]


def test_the_figure_of_two_heads_of_one_text_names_both():
    view = look.View.from_weights(causal(4, 2, 3), list("abcd"), name="four")
    figure = look.plot_view(look.difference(view, heads=((0, 1), (1, None))), 0, 0)
    assert figure.axes[0].get_title() == "four: layer 0, head 1 minus layer 1, mean of its heads"


def test_texts_without_a_common_token_have_no_figure_of_their_difference():
    one, other = (
        look.View.from_weights(np.eye(len(text))[None, None], list(text), name=text, model=text)
        for text in ("ab", "cde")
    )
    with pytest.raises(ShapeError, match="both texts must have tokens in common, got ab and cde"):
        look.plot_view(look.difference(one, other))


def heatmap():
    return look.heatmaps(np.eye(3), titles=["three"], width=5), ["three", "Keys", "Queries"]


def alignment():
    return look.alignment(WORDS, WORDS, np.eye(7)), WORDS


def seven():
    return look.View.from_weights(causal(7, 2, 3), WORDS, name="seven <words> & $")


@pytest.mark.parametrize("plot", sample([panel, grid, heatmap, alignment], 2))
def test_text_is_text_in_svg_and_truetype_in_pdf(plot):
    figure, words = plot()
    root = ElementTree.fromstring(saved(figure, "svg"))
    texts = [text.text.strip() for text in root.iter("{http://www.w3.org/2000/svg}text") if text.text]
    assert set(words) <= set(texts)
    pdf = saved(figure, "pdf")
    assert b"/Type3" not in pdf
    assert b"/Subtype /CIDFontType2" in pdf or b"/Subtype /TrueType" in pdf
    assert pdf.count(b"/FontFile2") >= 1  # the fonts are embedded


@pytest.mark.parametrize(
    ("width", "inches"),
    [
        ("single", 3.5),
        *(pytest.param(*pair, marks=pytest.mark.long) for pair in (("double", 7.2), (2, 2.0), (5.5, 5.5))),
    ],
)
def test_a_figure_has_the_width_in_inches_that_was_asked_for(width, inches):
    for figure in islice(figures_of_width(width), None if LONG else 2):
        assert figure.get_size_inches()[0] == inches
        assert figure.get_size_inches()[1] <= 9
        (_, _, wide, high) = map(
            float, re.search(rb"MediaBox \[ (\S+) (\S+) (\S+) (\S+) \]", saved(figure, "pdf")).groups()
        )
        assert (wide, high) == pytest.approx(figure.get_size_inches() * 72, abs=0.01)
        picture = pixels(figure)
        assert picture.shape[1] == pytest.approx(inches * 300, abs=1)
        # Nothing is cut off: the outermost pixels are paper.
        assert (picture[[0, -1]] == 255).all()
        assert (picture[:, [0, -1]] == 255).all()


def figures_of_width(width):
    view = look.View.from_weights(causal(30, 2, 12), [f"token{i}" for i in range(30)])
    yield look.plot_view(view, 1, 2, width=width)
    yield look.plot_view(view, width=width)
    yield look.heatmaps(np.eye(90)[:, :25], width=width)
    yield look.attention(["a"] * 90, np.eye(90)[:4], queries=list("abcd"), width=width)


def test_tick_labels_in_print_do_not_overlap():
    names = [f"token{i}" for i in range(200)]
    figure = look.plot_view(look.View.from_weights(causal(200), names), 0, 0, width="single")
    figure.draw_without_rendering()
    for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
        boxes = [label.get_window_extent() for label in axis.get_ticklabels()]
        assert len(boxes) > 5
        assert not any(one.overlaps(other) for one, other in pairwise(boxes))
        assert min(label.get_fontsize() for label in axis.get_ticklabels()) >= 6.5


@pytest.mark.filterwarnings("error")  # such as that of a layout without space
def test_labels_of_sentences_leave_space_for_the_map_and_its_title():
    names = [f"This is the sentence with the number {i}, which nobody would read in a small figure." for i in range(6)]
    figure = look.plot_view(look.View.from_weights(np.eye(6)[None, None], names, name=names[0]), 0, 0, width="single")
    axes = figure.axes[0]
    figure.draw_without_rendering()
    assert axes.get_window_extent().width > figure.bbox.width / 3
    assert all(label.get_text().startswith("This is the") for label in axes.get_xticklabels())
    extent = axes.title.get_window_extent()
    assert 0 <= extent.x0 < extent.x1 <= figure.bbox.width


def test_the_colours_are_those_of_the_page():
    weights = np.where(np.tri(8, dtype=bool), 0.0, 7.0)
    weights[4, 2], weights[5, 1], weights[6, 3], weights[7, 7] = 0.7, -0.7, np.nan, 0.02
    view = look.View.from_weights(weights[None, None], list("abcdefgh"), mask=np.tri(8, dtype=bool))
    for dark, expected in (
        (False, ([3, 28, 82], [92, 26, 2], [222, 222, 222], [200, 0, 130], [255, 255, 255])),
        (True, ([150, 208, 255], [255, 190, 110], [52, 55, 60], [255, 80, 190], [21, 24, 29])),
    ):
        colours = cell_colours(look.plot_view(view, 0, 0, dark=dark, width="single"), 8, 8)
        found = tuple(colours[at].tolist() for at in ((4, 2), (5, 1), (2, 6), (6, 3), (5, 4)))
        assert found == expected


def test_weights_above_twice_the_uniform_weight_of_a_causal_map_are_visible():
    weights = causal(40)
    view = look.View.from_weights(weights, [str(i) for i in range(40)])
    colours = cell_colours(look.plot_view(view, 0, 0, width="single"), 40, 40)
    uniform = 1 / np.arange(1, 41)[:, None]
    known = np.tri(40, dtype=bool)
    dark = 765 - colours.sum(axis=-1)
    assert (dark[known & (weights[0, 0] > 2 * uniform)] >= 38).mean() >= 0.9
    assert (dark[known & (weights[0, 0] < uniform.min() / 2)] >= 38).mean() <= 0.05


def test_the_maps_of_a_grid_are_thumbnails_of_the_heads_in_their_order():
    weights = np.stack([np.roll(np.eye(8), i, axis=1) for i in range(6)]).reshape(2, 3, 8, 8)
    figure = look.plot_view(look.View.from_weights(weights, list("abcdefgh")))
    sheet = np.asarray(figure.axes[0].get_images()[0].get_array())
    for layer in range(2):
        for head in range(3):
            panel = sheet[34 * layer :, 34 * head :][2:32:4, 2:32:4, :3]
            assert (np.linalg.norm(panel - panel.min(axis=(0, 1)), axis=-1) < 0.1).tolist() == weights[
                layer, head
            ].astype(bool).tolist()


def test_flow_has_a_scale_of_its_own_and_is_named():
    view = look.View.from_weights([np.stack([np.eye(4)] * 3), np.stack([np.eye(4), 9 * np.eye(4)])], list("abcd"))
    maps = view.layers[1]
    named = type(maps)("all heads", ("mean", "flow"), maps.codes, maps.ranges)
    figure = look.plot_view(type(view)(**{**vars(view), "layers": (view.layers[0], named)}))
    assert [text.get_text() for text in figure.axes[0].texts] == ["mean, flow (own scale)"]


@pytest.mark.long
def test_the_grid_of_a_long_text_in_tiles_is_plotted():
    rows = np.random.default_rng(0).normal(size=(2, 300, 8)).astype(np.float32)
    view = arrays_view(rows, rows, causal=True, name="long")
    figure = look.plot_view(view, width=3)
    assert figure.get_size_inches()[0] == 3
    with pytest.raises(OptionError, match="not be in tiles to plot one head, got 'long' with 300 tokens"):
        look.plot_view(view, 0, 0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"layer": 0}, "layer and head must be given together"),
        ({"layer": 2, "head": 0}, "layer must be between 0 and 1, got 2"),
        ({"layer": 0, "head": -1}, "head must be between 0 and 2, got -1"),
        ({"width": "triple"}, "width must be 'single', 'double', or a number of inches"),
        ({"width": 0}, "width must be"),
        ({"width": float("nan")}, "width must be"),
        ({"vmax": -1.0, "layer": 0, "head": 0}, "vmax must be positive"),
        ({"vmax": -1.0}, "vmax must be positive"),
    ],
)
def test_invalid_options_are_refused_in_one_sentence(options, says):
    view = look.View.from_weights(causal(4, 2, 3), list("abcd"))
    with pytest.raises(OptionError, match=says):
        look.plot_view(view, **options)


@pytest.mark.parametrize("counts", [[1], [1, 2], [1, 2, 3], range(1, 8), [1, 2, 2, 2, 2], [2] * 9], ids=str)
def test_a_weight_of_one_has_the_strongest_color_for_any_number_of_keys(counts):
    colors = automatic_range(np.array([0.0, 0.3, 1.0]), np.array(counts))
    assert colors.top <= 1
    assert colors.shares([0.0, 1.0]).tolist() == [0, 1]


@given(st.lists(st.floats(-1e5, 1e5), min_size=1, max_size=40), st.booleans())
@settings(max_examples=cases(40))
def test_shares_of_the_automatic_range_increase_with_weights_and_can_be_inverted(weights, shares_of_one):
    cells = np.array(weights)
    colors = automatic_range(cells, np.full(3, len(cells)) if shares_of_one else None)
    assert colors.largest == np.abs(cells).max()
    shares = colors.shares(np.sort(cells))
    assert (np.diff(shares) >= 0).all()
    assert (np.abs(shares) <= 1).all()
    inside = (np.abs(cells) >= colors.start) & (np.abs(cells) <= colors.top)
    assert np.allclose(colors.weights(colors.shares(cells[inside])), cells[inside])
    assert float(range_norm(colors)(0.0)) == pytest.approx(0.5 if colors.signed else 0.0)


@given(st.floats(1e-12, 1e12))
def test_printed_weights_have_three_significant_digits(weight):
    text = format_weight(weight)
    assert float(text) == float(f"{weight:.3g}")
    assert format_weight(-weight) == f"−{text}"


@pytest.fixture
def squares(tmp_path):
    """A font whose only characters, those of one word, are squares; the only one installed beside DejaVu."""
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.ttGlyphPen import TTGlyphPen
    from matplotlib.font_manager import fontManager

    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for corner in ((0, 900), (900, 900), (900, 0)):
        pen.lineTo(corner)
    pen.closePath()
    font, square = FontBuilder(1000), pen.glyph()
    names = [".notdef", "one", "two"]
    font.setupGlyphOrder(names)
    font.setupCharacterMap({ord("漢"): "one", ord("字"): "two"})
    font.setupGlyf(dict.fromkeys(names, square))
    font.setupHorizontalMetrics(dict.fromkeys(names, (1000, 0)))
    font.setupHorizontalHeader(ascent=900, descent=-100)
    font.setupNameTable({"familyName": "Squares", "styleName": "Regular", "psName": "Squares"})
    font.setupOS2()
    font.setupPost()
    font.save(tmp_path / "squares.ttf")
    before = list(fontManager.ttflist)
    fontManager.ttflist[:] = [font for font in before if font.name.startswith("DejaVu")]
    fontManager.addfont(tmp_path / "squares.ttf")
    _fallback_fonts.cache_clear()
    yield "Squares"
    fontManager.ttflist[:] = before
    _fallback_fonts.cache_clear()


def test_characters_that_the_font_lacks_are_drawn_by_another_font_or_named(squares):
    view = look.View.from_weights(causal(3), ["he", "漢字", "$x$"], name="漢")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert squares in saved(look.plot_view(view, 0, 0), "svg").decode()
        assert b"Squares" in saved(look.plot_view(view, 0, 0), "pdf")
    missing = look.View.from_weights(causal(3), ["he", "\U00013000", "字"])
    with pytest.warns(UserWarning, match="no installed font has the characters '\U00013000'"):
        saved(look.plot_view(missing, 0, 0), "png")
    with warnings.catch_warnings():  # once
        warnings.simplefilter("error")
        saved(look.plot_view(missing, 0, 0), "png")


@pytest.mark.parametrize("tokens", [3, 60])
def test_the_picture_of_a_view_is_static_escaped_and_says_what_it_shows(tokens):
    words = ["<script>", "b\x1b[31m", *(f"w{i}" for i in range(tokens - 2))]
    view = View.from_weights(np.eye(tokens)[None, None], words, name='a "text"')
    svg = ElementTree.fromstring(map_svg(view))
    parts = list(svg.iter())
    assert {part.tag.split("}")[1] for part in parts} == {"svg", "title", "rect", "text"}
    assert not {"style", "class", "href"} & {name for part in parts for name in part.attrib}
    assert (svg.get("width"), svg.get("height"), svg.get("role")) == ("600", "400", "img")
    said = 'Attention map of a "text" · layer 0, head 0. “<script>” attends to 1.00 <script>'
    assert svg.get("aria-label").startswith(said)
    # The diagonal has the strongest colour: of each pair, or of each cell of 60 / 32 tokens; so has the end of the bar.
    darkest = [part for part in parts if part.get("fill") == "#031c52"]
    assert len(darkest) == (3 if tokens == 3 else 32) + 1
    assert ("b\\x1b[31m" in [part.text for part in parts]) == (tokens == 3)
    html = view._repr_html_()
    assert html.startswith('<img alt="View(')
    assert base64.b64decode(html.split("base64,")[1].rstrip('">')).decode() == map_svg(view)


def test_a_long_text_prints_one_line_and_has_a_picture():
    rows = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    view = arrays_view(rows, rows, name="long")
    assert repr(view) == "TiledView('long', 1 layers, 1 maps of 300 queries × 300 keys)"
    assert "Attention map of long · arrays, head 0." in map_svg(view)
    with pytest.raises(OptionError, match="head must be between 0 and 0, got 1"):
        map_svg(view, 0, 1)


def test_results_show_themselves_in_notebooks_as_escaped_tables():
    x = np.ones((2, 3, 4))
    seen = qkv.observe(x, x, x, readouts=[qkv.readouts.Entropy()])
    assert '<td style="text-align:left">2×3×4 float64</td>' in seen._repr_html_()
    assert "2×3 float64" in seen._repr_html_()
    assert all(f">{name}</td>" in seen.plan._repr_html_() for name in ("kernel", "mask", "cost"))
    people = Database.open({"name": ["<b>Ann</b>", "Bob"], "pay": [1.0, 2.0]}, key="name", value="pay")
    assert "&lt;b&gt;Ann" in people._repr_html_()
    assert "<b>Ann" not in people._repr_html_() + people.ask("<b>Ann</b>")._repr_html_()
    assert '<meter value="1.000"' in people.ask("Bob")._repr_html_()
    assert people.ask(["Bob", "Ann"])._repr_html_().count("<tr>") == 2
    shown = qkv.readouts.Heads(qkv.readouts.TopWeights(2), (0, -1))._repr_html_()
    assert "max-width:600px;max-height:400px" in shown
    assert re.findall(r"<b>(\w+)</b>|>([^<>]+)</td>", shown) == [
        ("Heads", ""), ("", "readout"), ("", "TopWeights(2)"), ("", "heads"), ("", "(0, -1)"),
    ]  # fmt: skip


def test_a_figure_of_one_column_has_its_width_in_notebooks():
    view = View.from_weights(np.eye(3)[None, None], ["a", "b", "c"])
    data, metadata = look.plot_view(view, 0, 0, width="single")._repr_mimebundle_()
    assert metadata == {"image/png": {"width": 336}}  # 3.5 inches of 96 pixels
    assert data["image/png"].startswith(b"\x89PNG")
