"""Maps of many tokens in Chromium: zoom from the whole map to single pairs by wheel, drag and keyboard."""

import json
from dataclasses import replace

import numpy as np
import pytest

from qkv.look.axis import Axis
from qkv.look.page import Page
from qkv.look.server import ServedPage, serve_in_thread
from qkv.look.tiled_views import arrays_view
from tests.effort import sample

from .chromium import DARKEST, PAPER, needs_chromium, part, redrawn, settle
from .colours import cell_colours, difference

torch = pytest.importorskip("torch")
pytestmark = needs_chromium


def lone_pair(tokens, query, key):
    """Return a view with uniform weights, except for one query with all its weight on one key."""
    rows = np.zeros((tokens, 64), np.float32)
    queries, keys = rows.copy(), rows.copy()
    queries[query, 0] = keys[key, 0] = 40.0
    return arrays_view(queries, keys)


@pytest.fixture(scope="module", params=[2048, *(pytest.param(n, marks=pytest.mark.long) for n in (8192, 65_536))])
def served(request):
    tokens = request.param
    query, key = 5 * tokens // 8 + 3, 3 * tokens // 8 + 1
    with serve_in_thread(ServedPage(page=Page.from_views(lone_pair(tokens, query, key), "long"))) as address:
        yield address, tokens, query, key


def settled(page):
    """Wait until the map has all its tiles and is not drawn any more."""
    page.wait_for_selector("canvas.map:not([aria-busy])")
    settle(page)


def zoom_in(page, most):
    """Zoom in by keyboard, to four tokens at most."""
    for _ in range(most):
        if part(page)[2] > 4:
            page.keyboard.press("+")
    settled(page)


def test_a_long_text_has_a_map_of_its_sentences(opened):
    rng = np.random.default_rng(0)
    words = [f"W{i}{'.' if i % 30 == 29 else ''}" for i in range(600)]
    arrays = rng.normal(size=(2, 600, 8)).astype(np.float32)
    view = replace(arrays_view(arrays, arrays, causal=True), queries=Axis.from_words(words))
    exact = view.head(0, 1).weights((0, 600), (0, 600)).reshape(20, 30, 20, 30).sum(axis=3).mean(axis=1)
    sentences = view.grouped("sentences")
    assert np.allclose(sentences.weights(0, 1), np.tril(exact), rtol=6e-3)
    assert (sentences.allowed(0, 1) == np.tri(20, dtype=bool)).all()
    with serve_in_thread(ServedPage(page=Page.from_views(view))) as address:
        page = opened(f"{address}#unit=sentences&head=1&query=100&key=40")
        assert page.get_by_text("no words: the map is in tiles").is_visible()
        assert part(page) == [0, 0, 20, 20]
        told = page.locator("output").first.text_content()
        assert told.startswith("“W90 W91")
        assert told.endswith(f": {float(f'{exact[3, 1]:.3g}'):.3f}")
        redrawn(page, lambda: page.locator("select.unit").select_option("tokens"))
        assert part(page) == [0, 0, 600, 600]


def test_the_keyboard_zooms_from_all_tokens_to_a_single_pair(opened, served):
    address, tokens, query, key = served
    page = opened(f"{address}#query={query}&key={key}")
    settled(page)
    assert part(page) == [0, 0, tokens, tokens]
    # A single weight of 1 is visible in the whole map, at its place.
    assert darkest(page) == pytest.approx([query / tokens, key / tokens], abs=0.01)
    page.locator("canvas.map").first.focus()
    zoom_in(page, 20)
    top, left, rows, columns = part(page)
    assert (rows, columns) == (4, 4)
    for row, colours in enumerate(cell_colours(page, 4, 4)):
        for column, colour in enumerate(colours.tolist()):
            if (top + row, left + column) == (query, key):
                assert colour == DARKEST
            elif top + row == query:  # e^-200
                assert difference(colour, PAPER) < 1
            else:  # uniform attention, from which on cells are coloured
                assert 4 < difference(colour, PAPER) < 7
    assert page.locator("output").first.text_content() == f"“{query}” ({query}) → “{key}” ({key}): 1.00"
    first = page.locator("tbody tr").first
    assert first.locator("th, td").all_text_contents() == [str(key), str(key), "1.00"]
    # A step past the edge scrolls the map.
    for _ in range(6):
        page.keyboard.press("ArrowDown")
    settled(page)
    assert part(page)[0] == query + 6 - 3
    redrawn(page, lambda: page.keyboard.press("0"))
    assert part(page) == [0, 0, tokens, tokens]


@pytest.mark.parametrize("selected", sample([True, False], 2))
def test_the_wheel_zooms_where_it_points_and_dragging_moves_the_map(opened, served, selected):
    address, tokens, _, _ = served
    page = opened(address)
    if selected:  # the browser would drag the selected text instead of the map
        page.evaluate("getSelection().selectAllChildren(document.body)")
    box = page.locator("canvas.map").first.bounding_box()
    x, y = box["x"] + 92 + (box["width"] - 102) / 2, box["y"] + 8 + (box["height"] - 84) / 2
    page.mouse.move(x, y)
    for _ in range(8):
        redrawn(page, lambda: page.mouse.wheel(0, -100))
    settled(page)
    top, left, rows, columns = part(page)
    assert rows == pytest.approx(tokens * 0.8**8, rel=0.01)
    assert top + rows / 2 == pytest.approx(tokens / 2, rel=0.02)
    page.mouse.down()
    page.mouse.move(x - 100, y - 50, steps=4)
    page.mouse.up()
    settled(page)
    down, across = part(page)[0] - top, part(page)[1] - left
    assert across == pytest.approx(100 / (box["width"] - 102) * columns, rel=0.05)
    assert down == pytest.approx(50 / (box["height"] - 84) * rows, rel=0.05)


def test_searching_a_word_scrolls_to_it(opened, served):
    address, _, query, _ = served
    page = opened(address)
    page.locator("canvas.map").first.focus()
    zoom_in(page, 5)
    assert part(page)[0] == 0
    page.get_by_label("Find a word").fill(str(query))
    page.get_by_label("Find a word").press("Enter")
    settled(page)
    top, _, rows, _ = part(page)
    assert top <= query < top + rows
    assert f"“{query}” ({query})" in page.locator("output").first.text_content()


def test_a_json_file_holds_the_visible_weights_if_all_are_too_many(opened, served):
    address, _, query, key = served
    page = opened(f"{address}#query={query}&key={key}")
    page.get_by_label("Save as JSON").click()
    assert "To save fewer weights, zoom in" in page.locator(".status").text_content()
    page.locator("canvas.map").first.focus()
    zoom_in(page, 20)
    with page.expect_download() as waiting:
        page.get_by_label("Save as JSON").click()
    saved = json.loads(waiting.value.path().read_bytes())
    assert np.max(saved["weights"]) == 1
    assert str(query) in saved["queries"]
    assert str(key) in saved["keys"]


def darkest(page):
    """Return the position of the darkest pixel of the map, as shares of its height and width."""
    return page.evaluate(
        """() => {
            const canvas = document.querySelector("canvas.map");
            const ratio = canvas.width / canvas.clientWidth;
            const width = Math.round((canvas.clientWidth - 102) * ratio);
            const height = Math.round((canvas.clientHeight - 84) * ratio);
            const data = canvas.getContext("2d").getImageData(92 * ratio, 8 * ratio, width, height).data;
            for (let i = 0; i < width * height; i++) {
                if (data[4 * i] === 3 && data[4 * i + 1] === 28 && data[4 * i + 2] === 82) {
                    return [Math.floor(i / width) / height, (i % width) / width];
                }
            }
            return null;
        }"""
    )
