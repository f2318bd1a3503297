"""Selected pairs in Chromium: their labels, their weights with all digits, and what moves while they are pinned."""

import re

import numpy as np
import pytest

from qkv.errors import OptionError
from qkv.look.html_export import export_html
from qkv.look.page import Page
from qkv.look.server import ServedPage, serve_in_thread
from qkv.look.text_views import text_views
from qkv.look.views import View

from .chromium import needs_chromium, redrawn, spot
from .colours import difference

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = [needs_chromium, pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")]

from .test_generation import TEXT, reader  # noqa: E402

COUNT = 300


@pytest.fixture(scope="module")
def model():
    return reader("gpt2")


@pytest.fixture(scope="module")
def views(model):
    rng = np.random.default_rng(0)
    long = rng.dirichlet(np.full(COUNT, 0.3), (1, 1, COUNT))
    signed = np.array([[0.9, -0.9, 0], [0.1, -0.1, 0], [0, 0, 0]])
    return [
        text_views(model, [TEXT])[0],
        View.from_weights(long, [f"w{i}" for i in range(COUNT)], name="long"),
        View.from_weights(signed[None, None], list("abc"), name="signed"),
        View.from_weights(np.broadcast_to(np.eye(3), (5, 1, 3, 3)), list("abc"), name="deep"),
    ]


@pytest.fixture(scope="module")
def served(views):
    with serve_in_thread(ServedPage(page=Page.from_views(views, "pairs"))) as address:
        yield address


def labelled(page):
    canvas = page.locator("canvas.map").first
    return [[int(i) for i in canvas.get_attribute(f"data-{axis}").split(",")] for axis in ("rows", "columns")]


def readout(page):
    return page.locator("output.readout").first.text_content()


def test_the_selected_row_and_column_are_labelled_where_labels_are_thinned(opened, served):
    page = opened(f"{served}#view=1&query=151&key=87")
    rows, columns = labelled(page)
    assert 20 < len(rows) < 60
    assert 151 in rows
    assert 87 in columns
    # Labels do not overlap the selected one.
    height = page.locator("canvas.map").first.bounding_box()["height"] - 84
    for row in rows:
        assert row == 151 or abs(row - 151) * height / COUNT >= 13
    page.locator("canvas.map").first.focus()
    redrawn(page, lambda: page.keyboard.press("ArrowDown"))
    rows, columns = labelled(page)
    assert 152 in rows
    assert 151 not in rows
    # While the pointer is elsewhere, the pinned row is labelled, too.
    page.get_by_label("Find a word").fill("w33")
    redrawn(page, lambda: page.get_by_role("option", name="w33", exact=True).click())
    box = page.locator("canvas.map").first.bounding_box()
    redrawn(page, lambda: page.mouse.move(box["x"] + 92 + 200, box["y"] + 8 + (201.5 / COUNT) * (box["height"] - 84)))
    assert {33, 201} <= set(labelled(page)[0])


def test_all_digits_of_a_weight_are_those_of_the_model(opened, served, model, views):
    page = opened(f"{served}#view=0&layer=1&head=1&query=3&key=1")
    model.model.set_attn_implementation("eager")
    with torch.no_grad():
        ids = model.tokenizer(TEXT, return_tensors="pt")["input_ids"]
        weights = model.model(input_ids=ids, output_attentions=True).attentions[1][0, 1].numpy()
    for key in (1, 0, 3):
        page.evaluate("link => (location.hash = link)", f"view=0&layer=1&head=1&query=3&key={key}")
        page.wait_for_function(f"() => document.querySelector('output.readout').textContent.includes('({key}): ')")
        page.get_by_role("button", name="All digits").click()
        page.wait_for_function("() => document.querySelector('output.readout').textContent.includes('in float32')")
        three, every = re.fullmatch(r".*: (\S+); in float32: (\S+)", readout(page)).groups()
        assert np.float32(every) == pytest.approx(weights[3, key], rel=1e-5)  # rounding in the layers before
        assert float(f"{float(every):.3g}") == float(three)
        assert len(every) > len(three)
        assert views[0].weight(1, 1, 3, key) == np.float32(every)
    # Maps over all heads have no weights of a model, and masked pairs have none.
    page.get_by_role("gridcell", name="all heads, mean").click()
    page.wait_for_function("() => document.querySelector('h2').textContent.includes('mean')")
    page.get_by_role("button", name="All digits").wait_for(state="hidden")
    page.evaluate("location.hash = 'view=0&layer=1&head=1&query=1&key=3'")
    page.wait_for_function("() => document.querySelector('output.readout').textContent.endsWith(': masked')")
    page.get_by_role("button", name="All digits").wait_for(state="hidden")


def test_an_exported_file_states_how_its_weights_are_rounded(opened, views, tmp_path):
    page = opened(export_html(Page.from_views(views[:1]), tmp_path / "all.html").as_uri())
    page.get_by_role("button", name="All digits").wait_for(state="hidden")
    missing = page.locator(".missing").text_content()
    assert "rounded queries and keys in this file" in page.locator(".keys").text_content()
    assert "“All digits”" in missing


def test_a_pinned_pair_stays_while_the_pointer_moves_over_its_row_and_away(opened, served):
    page = opened(f"{served}#view=2")
    box = page.locator("canvas.map").first.bounding_box()
    width, height = (box["width"] - 102) / 3, (box["height"] - 84) / 3

    def cell(row, column):
        return box["x"] + 92 + (column + 0.5) * width, box["y"] + 8 + (row + 0.5) * height

    page.mouse.click(*cell(0, 1))
    assert readout(page) == "“a” (0) → “b” (1): −0.900"
    page.mouse.move(*cell(0, 0))
    assert readout(page) == "“a” (0) → “a” (0): 0.900"
    page.mouse.move(box["x"] + 300, box["y"] - 20)
    assert readout(page) == "“a” (0) → “b” (1): −0.900"
    page.wait_for_function("() => location.hash.includes('key=1')")


@pytest.mark.parametrize("dark", [False, True])
def test_both_ends_of_a_diverging_scale_stand_out(opened, served, dark):
    page = opened(f"{served}#view=2&query=2&key=2&dark={int(dark)}")
    positive, negative, zero = (np.array(spot(page, 0, column, 3, 3)) for column in range(3))
    assert zero.tolist() == ([21, 24, 29] if dark else [255, 255, 255])
    assert min(difference(positive, zero), difference(negative, zero), 40) >= 40
    assert difference(positive, negative) >= 30
    assert positive[2] > positive[0]  # blue
    assert negative[0] > negative[2]  # orange
    # The legend does not assume a light background.
    assert "darkest" not in page.locator(".rule").first.text_content()
    assert "strongest from 0.900" in page.locator(".rule").first.text_content()


def test_another_text_with_fewer_layers_shows_a_head_that_can_be_ablated(opened, served):
    page = opened(f"{served}#view=3&layer=4&open=effect")
    page.get_by_label("Text").select_option("0")
    page.wait_for_selector("[data-shown='0,1,0']")
    page.get_by_role("button", name="Ablate layer 1, head 0").wait_for()
    page.get_by_role("gridcell", name="all heads, mean").click()
    page.get_by_text("Maps over several heads cannot be ablated. Select a head in the grid.").wait_for()


def test_python_refuses_weights_that_do_not_exist(views):
    for place in ((0, 9, 0, 0), (0, 0, 99, 0), (9, 0, 0, 0), (0, 0, 0, -1)):
        with pytest.raises(OptionError, match="must"):
            views[0].weight(*place)
