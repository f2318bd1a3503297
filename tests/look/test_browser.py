"""The page in Chromium: its pixels, its requests, and its use by keyboard."""

import dataclasses
import json
from urllib.parse import urlsplit

import numpy as np
import pytest

from qkv.look.axis import Axis
from qkv.look.html_export import export_html
from qkv.look.page import Page
from qkv.look.server import ServedPage, serve_in_thread
from qkv.look.views import HeadRole, View

from .chromium import DARKEST, PAPER, axe_violations, needs_chromium, redrawn, resize, spot
from .colours import cell_colours

pytestmark = needs_chromium

WORDS = ["[CLS]", "un", "##happi", "##ness", "is", "<b>bold</b>", "[SEP]"]
SIDE = Axis(
    tuple(WORDS),
    ("[CLS]", "un", "happi", "ness", "is", "<b>bold</b>", "[SEP]"),
    (-1, 0, 0, 0, 1, 2, -1),
    (True, False, False, False, False, False, True),
)


def known(words=None):
    """Two layers of two heads with different maps: identity, previous token, first token, uniform."""
    side = SIDE if words is None else Axis.from_words(words)
    n = len(side.tokens)
    previous = np.eye(n, k=-1)
    previous[0, 0] = 1
    first = np.zeros((n, n))
    first[:, 0] = 1
    weights = np.stack([np.stack([np.eye(n), previous]), np.stack([first, np.full((n, n), 1 / n)])])
    view = View.from_weights(weights, side, name="known")
    view.roles[0, 1] = (HeadRole("previous", 1.0, 0.2),)
    return view


@pytest.fixture(scope="module")
def served():
    page = Page.from_views([known(), known(["a", "b", "c"])], "known maps")
    with serve_in_thread(ServedPage(page=page)) as address:
        yield address


@pytest.fixture(scope="module")
def steps():
    """Steps of generation, and tokens with marks."""
    side = Axis(("<s>", "␣cus", "tom", "␣dog"), ("<s>", "cus", "tom", "dog"), (-1, 0, 0, 1), (True,) + (False,) * 3)
    marked = View.from_weights(np.full((1, 1, 4, 4), 0.25), side)
    with serve_in_thread(ServedPage(page=Page.from_views([cross(), marked], "steps"))) as address:
        yield address


def test_the_pixels_of_a_known_map_are_its_weights(opened, served):
    page = opened(served)
    diagonal = [[DARKEST if row == column else PAPER for column in range(7)] for row in range(7)]
    assert cell_colours(page, 7, 7).tolist() == diagonal
    assert spot(page, 3, 3) == DARKEST
    redrawn(page, lambda: page.get_by_role("gridcell", name="layer 1, head 0").click())
    assert cell_colours(page, 7, 7)[:, [0, 3]].tolist() == [[DARKEST, PAPER]] * 7


def test_the_page_requests_its_own_server_only_and_at_first_one_map_and_two_scripts(opened, served):
    asked = []
    opened(f"{served}#view=0", asked)
    addresses = [urlsplit(answer.url) for answer in asked if answer.url.startswith("http")]
    assert {address.netloc for address in addresses} == {urlsplit(served).netloc}
    paths = [address.path.split("/", 2)[2] for address in addresses]
    assert [path for path in paths if path.startswith("map/")] == ["map/0/0/0"]
    assert [path for path in paths if path.endswith(".js")] == ["web/served.js", "web/heads.js"]


def test_the_page_can_be_used_by_keyboard_only(opened, served):
    page = opened(f"{served}#view=0")
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                """() => {
                    const at = document.activeElement;
                    return at.getAttribute("aria-label") || at.getAttribute("role")
                        || at.closest("label")?.textContent || at.tagName;
                }"""
            )
        )
        if page.evaluate("document.activeElement.tagName") == "CANVAS":
            break
    assert {"Find a word", "Save as PNG", "Save as HTML"} <= set(reached)
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert "“##ness” (3) → “un” (1): 0" in page.locator("output").first.text_content()
    page.keyboard.press("Tab")  # the words
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent") == "is"
    assert "“is” (4)" in page.locator("output").first.text_content()
    page.keyboard.press("Tab")  # the table
    assert page.evaluate("document.activeElement.closest('table') !== null")
    page.keyboard.press("ArrowDown")
    second = page.evaluate("document.activeElement.textContent")
    page.keyboard.press("Enter")
    assert f"→ “{second}”" in page.locator("output").first.text_content()
    assert page.evaluate("document.activeElement.textContent") == second
    page.keyboard.press("Tab")  # the heads
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("[data-shown='0,0,1']")
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("[data-shown='0,1,1']")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "layer 1, head 1"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("[data-shown='0,0,0']")
    page.keyboard.press("Tab")  # the head of the role
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("the previous token")


def test_the_table_lists_the_weights_of_the_map(opened, served):
    page = opened(served)
    page.get_by_role("option", name="is", exact=True).click()
    caption = page.locator("caption").first.text_content()
    first = page.locator("tbody tr").first
    assert caption == "“is” attends to"
    assert first.locator("th, td").all_text_contents() == ["is", "4", "1.00"]


def test_whole_words_preserve_row_sums_and_special_tokens_can_be_hidden(opened, served):
    page = opened(f"{served}#view=0")
    redrawn(page, lambda: page.get_by_role("gridcell", name="layer 1, head 1").click())
    page.locator("select.unit").select_option("words")
    page.wait_for_function("() => document.querySelectorAll('.token').length === 5")
    words = page.locator(".token").all_text_contents()
    assert words == ["[CLS]", "unhappiness", "is", "<b>bold</b>", "[SEP]"]
    page.get_by_role("option", name="is", exact=True).click()
    rows = page.locator("tbody tr").all()
    table = {
        row.locator("th").text_content(): float(row.locator("td").last.text_content().removeprefix("≈ "))
        for row in rows
    }
    assert table["unhappiness"] == pytest.approx(3 / 7, abs=6e-3)
    assert sum(table.values()) == pytest.approx(1, abs=2e-2)
    page.get_by_label("Hide special tokens").check()
    page.wait_for_function("() => document.querySelectorAll('.token').length === 3")


def test_merged_and_hidden_tokens_keep_the_selected_pair_and_its_positions(opened, served):
    page = opened(f"{served}#layer=0&head=1&query=5&key=4&hide=1")
    readout = page.locator("output").first

    def pair():
        return readout.text_content().rpartition(":")[0]

    assert pair() == "“<b>bold</b>” (5) → “is” (4)"
    positions = page.locator("tbody tr td:nth-child(2)").all_text_contents()
    names = page.locator("tbody th").all_text_contents()
    assert dict(zip(names, positions, strict=True))["<b>bold</b>"] == "5"
    assert len(names) == 5  # without [CLS] and [SEP]
    unit = page.locator("select.unit")
    hide = page.get_by_label("Hide special tokens")
    for change in (lambda: unit.select_option("words"), hide.click, lambda: unit.select_option("tokens")):
        redrawn(page, change)
        assert pair() == "“<b>bold</b>” (5) → “is” (4)"
    page.get_by_role("option", name="[CLS]", exact=True).click()
    redrawn(page, page.get_by_label("Hide special tokens").click)
    # The nearest token is shown while the selected one is hidden, which is pinned again afterwards.
    assert pair().startswith("“un” (1)")
    assert page.get_by_role("button", name="“un” is pinned").is_visible()
    redrawn(page, page.get_by_label("Hide special tokens").click)
    assert pair().startswith("“[CLS]” (0)")


def test_a_page_without_the_choice_of_words_says_why(opened, served):
    reason = opened(served).get_by_text("no words: ")
    assert reason.count() == 0
    with serve_in_thread(ServedPage(page=Page.from_views(known(["a", "b"])))) as address:
        reason = opened(address).get_by_text("no words: ")
        assert reason.all_text_contents() == ["no words: each is one token"]


def test_markup_in_a_token_is_shown_as_text(opened, served):
    page = opened(served)
    assert page.locator(".token b").count() == 0
    assert page.get_by_role("option", name="<b>bold</b>").count() == 1


def test_a_link_restores_the_view(opened, served):
    page = opened(served)
    page.get_by_role("gridcell", name="layer 1, head 1").click()
    page.wait_for_selector("[data-shown='0,1,1']")
    page.get_by_role("option", name="is", exact=True).click()
    page.get_by_label("Scale").select_option("log")
    page.wait_for_function("() => location.hash.includes('scale=log')")
    again = opened(page.url)
    assert again.locator(".qkv-look").get_attribute("data-shown") == "0,1,1"
    assert "“is” (4)" in again.locator("output").first.text_content()
    assert again.get_by_label("Scale").input_value() == "log"


@pytest.mark.parametrize("wrong", ["view=99&layer=-1&head=x&query=1e99&scale=evil&compare=7", "%", "view=0.5"])
def test_an_invalid_link_shows_the_first_head(opened, served, wrong):
    page = opened(f"{served}#{wrong}")
    assert page.locator(".qkv-look").get_attribute("data-shown") == "0,0,0"


@pytest.mark.parametrize("link", ["compare=-1", "compare=7", "compare=x"])
def test_a_link_that_compares_with_nothing_shows_one_map(opened, served, link):
    page = opened(f"{served}#{link}")
    assert page.get_by_label("Compare with").input_value() == "-1"
    assert [canvas.is_visible() for canvas in page.locator("canvas.map").all()] == [True, False]


def test_two_texts_open_on_their_comparison(opened, served):
    page = opened(served)
    assert page.get_by_label("Compare with").input_value() == "1"
    page.wait_for_function("() => document.querySelectorAll('canvas.map')[1].dataset.drawn > 0")
    titles = page.locator("h2").all_text_contents()
    assert len(titles) == 2
    boxes = [canvas.bounding_box() for canvas in page.locator("canvas.map").all()]
    assert boxes[0]["y"] == pytest.approx(boxes[1]["y"], abs=1)
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]


def test_a_role_is_shown_as_a_badge_with_score_and_baseline(opened, served):
    page = opened(served)
    page.get_by_role("gridcell", name="layer 0, head 1: previous").click()
    assert page.locator(".badge").first.text_content() == (
        "attends to the previous token: 1.00 (baseline 0.20) in this text"
    )
    explained = "Baseline: the score of a head that attends to all tokens equally."
    assert page.locator(".badge").first.get_attribute("title") == explained
    cell = page.get_by_role("gridcell", name="layer 0, head 1")
    assert cell.get_attribute("title") == "layer 0, head 1: previous"


def test_searching_finds_and_selects_a_word(opened, served):
    page = opened(served)
    page.get_by_label("Find a word").fill("NESS")
    assert page.locator(".status").text_content() == "1 found"
    page.get_by_label("Find a word").press("Enter")
    assert "“##ness” (3)" in page.locator("output").first.text_content()


@pytest.mark.parametrize("kind", ["PNG", "SVG", "JSON", "HTML"])
def test_the_map_is_saved_as_png_svg_and_json(opened, served, kind):
    page = opened(f"{served}#view=0")
    with page.expect_download() as waiting:
        page.get_by_label(f"Save as {kind}").click()
    path = waiting.value.path()
    content = path.read_bytes()
    assert waiting.value.suggested_filename.endswith(kind.lower())
    if kind == "PNG":
        assert content[:8] == b"\x89PNG\r\n\x1a\n"
    elif kind == "SVG":
        import xml.dom.minidom

        assert "&lt;b&gt;bold" in content.decode()
        assert xml.dom.minidom.parseString(content).documentElement.tagName == "svg"
    elif kind == "JSON":
        saved = json.loads(content)
        assert saved["queries"] == WORDS
        assert np.allclose(saved["weights"], np.eye(7))
    else:
        assert content.startswith(b"<!doctype html>")


def test_zooming_shows_a_part_and_0_resets_the_zoom(opened, served):
    page = opened(served)
    canvas = page.locator("canvas.map").first
    canvas.focus()
    redrawn(page, lambda: page.keyboard.press("+"))
    assert spot(page, 0, 0, 4, 4) == DARKEST
    assert spot(page, 1, 0, 4, 4) == PAPER
    redrawn(page, lambda: page.keyboard.press("0"))
    assert spot(page, 6, 6) == DARKEST


def test_dark_mode_is_dark(opened, served):
    page = opened(served)
    redrawn(page, lambda: page.get_by_label("Dark").check())
    assert spot(page, 3, 0) == [21, 24, 29]
    colour = page.locator(".qkv-look").evaluate("e => getComputedStyle(e).backgroundColor")
    assert colour == "rgb(21, 24, 29)"


def test_the_progress_is_shown_in_the_theme_of_the_page(browser):
    for scheme, paper in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(21, 24, 29)")):
        context = browser.new_context(color_scheme=scheme)
        page = context.new_page()
        with serve_in_thread(ServedPage(task="loading the model")) as address:
            page.goto(address)
            page.wait_for_selector("progress")
            said = page.evaluate(
                """() => {
                    const style = (name) => getComputedStyle(document.querySelector(name));
                    const said = document.body.innerText.trim();
                    return [said, style("body").backgroundColor, style("#look").paddingLeft];
                }"""
            )
        context.close()
        assert said == ["loading the model …", paper, "24px"]


def test_twelve_heads_of_a_layer_fit_the_width_of_a_phone(opened):
    view = View.from_weights(np.broadcast_to(np.eye(5), (2, 12, 5, 5)), list("abcde"))
    with serve_in_thread(ServedPage(page=Page.from_views(view))) as address:
        page = opened(address)
        resize(page, 420, 800)
        inside = page.locator(".overview").evaluate("e => e.scrollWidth <= e.clientWidth")
        last = page.get_by_role("gridcell", name="layer 0, head 11").bounding_box()
        assert inside
        assert last["x"] + last["width"] <= 420
        assert last["width"] >= 24  # the minimum size of a touch target


def test_a_sentence_and_its_map_need_no_scrolling(opened):
    words = "[CLS] when he saw his owner , the dog was happy [SEP]".split()  # noqa: SIM905
    view = View.from_weights(np.broadcast_to(np.eye(12), (6, 12, 12, 12)), words)
    with serve_in_thread(ServedPage(page=Page.from_views([view, view], "two"))) as address:
        page = opened(f"{address}#view=0")
        page.get_by_text("Settings and saving").click()
        resize(page, 1400, 900)
        assert page.evaluate("document.documentElement.scrollHeight") <= 900


def test_the_tooltip_of_a_list_is_the_selected_text(opened):
    texts = [f"When he saw his owner, the dog was very, very {mood}" for mood in ("happy", "sad")]
    views = [View.from_weights(np.eye(3)[None, None], ["a", "b", "c"], name=text) for text in texts]
    with serve_in_thread(ServedPage(page=Page.from_views(views, "moods"))) as address:
        page = opened(address)
        choice = page.get_by_label("Text")
        assert choice.get_attribute("title") == texts[0]
        with page.expect_response("**/thumbnails/1"):
            choice.select_option("1")
        assert choice.get_attribute("title") == texts[1]
        page.wait_for_selector("[data-shown='1,0,0']")  # before the server stops


def test_an_exported_file_works_from_the_disk_without_any_request(opened, tmp_path):
    target = export_html(Page.from_views([known(), known(["a", "b", "c"])], "known maps"), tmp_path / "maps.html")
    asked = []
    page = opened(target.as_uri(), asked)
    assert {answer.url.split(":")[0] for answer in asked} <= {"file", "data", "blob"}
    assert [answer.url for answer in asked if answer.url.startswith("file")] == [target.as_uri()]
    assert spot(page, 2, 2) == DARKEST
    redrawn(page, lambda: page.get_by_role("gridcell", name="layer 1, head 0").click())
    assert spot(page, 5, 0) == DARKEST
    page.get_by_label("Text").select_option("1")
    page.wait_for_selector("[data-shown='1,1,0']")


def test_twelve_by_twelve_heads_at_512_tokens_take_less_than_1000_nodes_and_a_megabyte(opened):
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.full(512, 0.05), (1, 1, 512)).astype(np.float32)
    view = View.from_weights(np.broadcast_to(weights, (1, 12, 512, 512)), [f"w{i}" for i in range(512)])
    view = dataclasses.replace(view, layers=12 * view.layers)
    asked = []
    with serve_in_thread(ServedPage(page=Page.from_views(view))) as address:
        page = opened(address, asked)
        assert page.get_by_role("gridcell").count() == 12 * 12
        assert page.evaluate("document.querySelectorAll('*').length") < 1000
        sent = [answer.request.sizes() for answer in asked if answer.url.startswith("http")]
        assert sum(one["responseBodySize"] for one in sent) <= 1_000_000


def test_axe_finds_no_serious_violation(opened, served):
    page = opened(served)
    page.get_by_label("Compare with").select_option("1")
    page.wait_for_function("() => document.querySelectorAll('canvas.map')[1].dataset.drawn > 0")
    no_serious_violation(page)


def test_axe_finds_no_serious_violation_in_steps_of_generation(opened, steps):
    no_serious_violation(opened(steps))


def no_serious_violation(page):
    for dark in (False, True):
        page.get_by_label("Dark").set_checked(dark)
        bad = [violation for violation in axe_violations(page, dark) if violation["impact"] in ("serious", "critical")]
        serious = [(each["id"], [node["html"] for node in each["nodes"]][:2]) for each in bad]
        assert serious == []


def cross():
    """Three generated tokens over four words: step i attends to word i + 1."""
    weights = np.zeros((1, 1, 3, 4))
    weights[0, 0, [0, 1, 2], [1, 2, 3]] = 1
    return View.from_weights(weights, ["le", "chat", "dort"], ["the", "cat", "sleeps", "."], name="translated")


def test_generated_tokens_are_selected_in_the_list_and_by_keys(opened, steps):
    page = opened(steps)
    page.get_by_role("listbox", name="queries").get_by_text("chat").click()
    assert page.locator("caption").first.text_content() == "“chat” attends to"
    assert page.locator("tbody tr").first.locator("th").text_content() == "sleeps"
    keys = page.get_by_role("listbox", name="keys")
    shades = keys.locator(".token").evaluate_all("all => all.map(e => e.style.backgroundColor)")
    assert shades.index("rgb(3, 28, 82)") == 2
    page.keyboard.press("ArrowRight")
    assert page.locator("caption").first.text_content() == "“dort” attends to"
    assert spot(page, 2, 3, 3, 4) == DARKEST


def test_whole_words_are_shown_without_the_marks_of_their_tokens(opened, steps):
    page = opened(f"{steps}#view=1&unit=words")
    assert page.locator(".tokens .token").all_text_contents() == ["<s>", "custom", "dog"]
