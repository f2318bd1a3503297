"""The grid of all heads in Chromium: it follows the settings, and its rankings lead to the map; targets of fingers."""

import dataclasses

import numpy as np
import pytest

from qkv.look.axis import Axis
from qkv.look.html_export import export_html
from qkv.look.page import Page
from qkv.look.server import ServedPage, serve_in_thread
from qkv.look.text_roles import mark_roles
from qkv.look.views import View

from .chromium import DARKEST, PAPER, needs_chromium, redrawn, resize, visit, wait_until_drawn
from .colours import difference

pytestmark = needs_chromium
TOKENS = ("[CLS]", "the", "dog", "saw", "that", "he", "was", "late", "[SEP]")
AXIS = Axis(TOKENS, TOKENS, (-1, *range(7), -1), tuple(token[0] == "[" for token in TOKENS))
N = len(TOKENS)


def sentence(norms=None):
    """A head that attends to [CLS] with little weight on the previous token, and one from pronouns to the dog."""
    weights = np.full((1, 2, N, N), 0.001)
    weights[0, 0, :, 0] = 0.9
    weights[0, 0] += 0.09 * np.eye(N, k=-1)
    weights[0, 1] = 1 / N
    weights[0, 1, 5] = np.eye(N)[2]
    view = View.from_weights(weights, AXIS, name="sentence")
    layer = dataclasses.replace(view.layers[0], value_norms=norms)
    return mark_roles(dataclasses.replace(view, layers=(layer,)))


def thumbnail(page, head, row, column, count):
    """Return the colour of a pair in a small map of `count` × `count` pairs."""
    return page.evaluate(
        """async ([head, row, column, count]) => {
            const url = document.querySelectorAll(".overview .cell")[head].style.backgroundImage.slice(5, -2);
            const image = new Image();
            image.src = url;
            await image.decode();
            const canvas = new OffscreenCanvas(32, image.height);
            const pen = canvas.getContext("2d");
            pen.drawImage(image, 0, 0);
            const at = (place) => Math.floor(((place + 0.5) * 32) / count);
            return [...pen.getImageData(at(column), 32 * head + at(row), 1, 1).data].slice(0, 3);
        }""",
        [head, row, column, count],
    )


def repainted(page, act):
    """Call a function, and wait until the small maps have been painted again."""
    before = page.locator(".overview .cell").first.get_attribute("style")
    act()
    page.wait_for_function(
        "before => document.querySelector('.overview .cell').getAttribute('style') !== before", arg=before
    )


@pytest.mark.parametrize("exported", [False, True])
def test_the_grid_follows_hidden_tokens_and_norms_of_values(opened, tmp_path, exported):
    norms = np.ones((2, N))
    norms[0, 1] = 100
    made = Page.from_views(sentence(norms))
    with serve_in_thread(ServedPage(page=made)) as address:
        page = opened(export_html(made, tmp_path / "grid.html").as_uri() if exported else address)
        # The first token has most of the weight, so the previous token is faint.
        assert difference(np.array(thumbnail(page, 0, 4, 0, N)), PAPER) > 60
        assert difference(np.array(thumbnail(page, 0, 4, 3, N)), PAPER) < 6
        repainted(page, page.get_by_label("Hide special tokens").check)
        assert thumbnail(page, 1, 4, 1, N - 2) == DARKEST
        assert difference(np.array(thumbnail(page, 0, 3, 0, N - 2)), PAPER) < 5
        assert difference(np.array(thumbnail(page, 0, 3, 2, N - 2)), PAPER) > 0.5
        repainted(page, page.get_by_label("Hide special tokens").uncheck)
        repainted(page, page.get_by_label("× norm of the value").check)
        assert thumbnail(page, 0, 2, 1, N) == DARKEST  # 0.091 × 100
        page.close()


def test_the_grid_of_large_maps_says_that_it_shows_all_tokens(opened):
    count = 1500
    words = ("[CLS]", *(f"w{i}" for i in range(1, count)))
    axis = Axis(words, words, (-1, *range(1, count)), (True, *[False] * (count - 1)))
    view = View.from_weights(np.full((1, 2, count, count), 1 / count, np.float32), axis)
    with serve_in_thread(ServedPage(page=Page.from_views(view))) as address:
        page = opened(f"{address}#hide=1")
        legend = page.locator("nav .hint").first.text_content()
        assert "too large to follow the settings" in legend
        page.close()


def test_a_click_in_a_ranking_scrolls_to_the_map(opened):
    words = ["the", "dog", "saw", "that", "he", "was", "late", "today"]
    other = View.from_weights(np.broadcast_to(np.eye(8), (1, 2, 8, 8)), words)
    entries = {"roles": ".role", "search": ".questions tbody button", "difference": ".differing button"}
    with serve_in_thread(ServedPage(page=Page.from_views([sentence(), other]))) as address:
        page = opened(address)
        resize(page, 400, 500)
        for ranking, selector in entries.items():
            visit(page, f"open=search&ask=he→dog{'&compare=1&how=difference' if ranking == 'difference' else ''}")
            if ranking == "difference":
                page.get_by_role("button", name="Which heads differ most?").click()
            entry = page.locator(selector).first
            entry.scroll_into_view_if_needed()
            assert page.evaluate(VISIBLE) < 0.5, ranking
            redrawn(page, entry.click)
            page.wait_for_function(f"() => ({VISIBLE})() > 0.5")


VISIBLE = """() => {
    const { top, bottom, height } = document.querySelector("canvas.map").getBoundingClientRect();
    return (Math.min(bottom, innerHeight) - Math.max(top, 0)) / height;
}"""


def test_targets_on_a_phone_are_large_enough_and_nothing_scrolls_sideways(browser):
    with serve_in_thread(ServedPage(page=Page.from_views([sentence(np.ones((2, N))), sentence()]))) as address:
        context = browser.new_context(viewport={"width": 400, "height": 800}, has_touch=True, is_mobile=True)
        page = context.new_page()
        page.goto(address)
        wait_until_drawn(page)
        for link in ("open=search&ask=he→dog", "compare=1", "compare=1&how=difference"):
            visit(page, link)
            page.get_by_label("Colour limit").wait_for()
            assert page.evaluate("document.documentElement.scrollWidth") <= 400
            small = page.evaluate(
                """() => {
                    const target = (e) => (e.type === "checkbox" ? e.closest("label") : e);
                    const targets = ":is(button, a, select, input, summary, .token)";
                    return [...document.querySelectorAll(`.qkv-look ${targets}`)]
                    .filter((e) => e.checkVisibility() && e.getClientRects().length)
                    .map((e) => [e.outerHTML.slice(0, 80), target(e).getBoundingClientRect()])
                    .filter(([, box]) => box.width < 24 || box.height < 24).map(([text]) => text);
                }"""
            )
            assert small == []
        assert (
            page.locator(".lead")
            .text_content()
            .endswith("Tap a cell or a word to select it; two fingers zoom the map.")
        )
        context.close()
