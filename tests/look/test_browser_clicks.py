"""Random clicks, keys, scrolling and typing cause no error and no violation of the content policy."""

import random

import numpy as np
import pytest

from qkv.look.axis import Axis
from qkv.look.page import Page
from qkv.look.server import ServedPage, serve_in_thread
from qkv.look.tiled_views import arrays_view
from qkv.look.views import View

from .chromium import needs_chromium
from .test_browser import cross, known
from .test_browser_first import sentence
from .test_image_views import painted

pytest.importorskip("torch")
pytestmark = needs_chromium

KEYS = (
    *("Tab", "Shift+Tab", "ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Shift+ArrowDown", "Enter"),
    *("Space", "Home", "End", "+", "-", "0", "a", "Escape", "Backspace", "PageDown"),
)
ACTS = ["click", "click", "click", "key", "key", "key", "wheel", "drag", "choose", "type", "size"]
TYPED = ["happi", "<b>", "12", "\\", "%", "(", "\u202e", "x" * 300]


@pytest.fixture(scope="module")
def served():
    """Short and long maps, generated tokens, tokens with markup, a single token, and another shape to compare with."""
    rng = np.random.default_rng(0)
    evil = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "", "\u202eabc", "w" * 5000, "😀"]
    middle = [f"w{i}" for i in range(300)]
    pair = Axis(tuple("abcd"), tuple("abcd"), (0, 1, 2, 3), (False,) * 4, segments=(0, 0, 1, 1))
    rows = rng.normal(size=(2, 3000, 8)).astype(np.float32)
    everything = Page.from_views(
        [
            known(),
            View.from_weights(rng.dirichlet(np.ones(6), (3, 5, 6)), evil, name="<script>alert(2)</script>"),
            cross(),
            arrays_view(rows, rows, name="<img src=x onerror=alert(3)>.npy"),
            View.from_weights(np.ones((1, 1, 1, 1)), ["alone"], name="one"),
            View.from_weights(rng.dirichlet(np.full(300, 0.1), (2, 2, 300)), middle, name="middle"),
            painted(),
            sentence(),
            View.from_weights(rng.dirichlet(np.ones(4), (1, 2, 4)), pair, name="pair"),
        ],
        "random clicks",
    )
    with serve_in_thread(ServedPage(page=everything)) as address:
        yield address


def act(page, rng):
    """Perform one random action of a user, and return its description."""
    what = rng.choice(ACTS)
    size = page.viewport_size
    x, y = rng.uniform(0, size["width"]), rng.uniform(0, size["height"])
    if what == "click":
        page.mouse.click(x, y)
    elif what == "key":
        page.keyboard.press(rng.choice(KEYS))
    elif what == "wheel":
        page.mouse.move(x, y)
        page.mouse.wheel(0, rng.choice([-400, -100, 100, 400]))
    elif what == "drag":
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(rng.uniform(-50, size["width"]), rng.uniform(-50, size["height"]), steps=3)
        page.mouse.up()
    elif what == "choose":
        page.evaluate(
            """([which, value]) => {
                const all = [...document.querySelectorAll("select, input[type=checkbox], input[type=range]")];
                const one = all[Math.floor(which * all.length)];
                if (one.tagName === "SELECT") one.selectedIndex = Math.floor(value * one.options.length);
                else if (one.type === "checkbox") one.checked = value < 0.5;
                else one.value = String(Math.floor(value * 10));
                one.dispatchEvent(new Event("input", {bubbles: true}));
                one.dispatchEvent(new Event("change", {bubbles: true}));
            }""",
            [rng.random(), rng.random()],
        )
    elif what == "type":
        field = page.get_by_label("Find a word")
        # A click on a page that follows a new width may miss.
        page.evaluate("document.querySelector('.settings').open = true")
        if field.is_visible():  # a presentation hides it
            field.fill(rng.choice(TYPED))
            page.keyboard.press("Enter")
    else:
        page.set_viewport_size({"width": rng.randint(200, 1600), "height": rng.randint(200, 1200)})
    return what


@pytest.mark.parametrize("count", [40, pytest.param(4000, marks=pytest.mark.long)])
def test_random_clicks_find_no_error_of_the_page(opened, served, count):
    # `opened` fails the test for every error of the page and of its console, including violations of the policy.
    rng = random.Random(3)
    done = []
    page = opened(served)
    # After selected text is dragged out of the window, Playwright's mouse gets no more events.
    page.evaluate("addEventListener('dragstart', (event) => event.preventDefault())")
    page.evaluate("heard = 0; addEventListener('pointerdown', () => heard++, true)")
    while len(done) < count:
        done.append(act(page, rng))
        assert page.url.startswith(served), done[-5:]
        assert page.locator(".qkv-look").count() == 1, done[-5:]
    page.wait_for_load_state("networkidle")
    assert page.evaluate("heard") > 0.8 * sum(what in ("click", "drag") for what in done)
    assert "could not be loaded" not in page.locator(".status").text_content()
    # The page still reacts.
    page.set_viewport_size({"width": 1400, "height": 1000})
    if page.locator(".leave").is_visible():  # of a presentation, which hides the controls
        page.locator(".leave").click()
    page.locator("select").first.select_option("0")
    page.get_by_label("Compare with").select_option("-1")  # texts without a common token have no difference
    page.get_by_role("gridcell", name="layer 1, head 0").click()
    page.wait_for_selector("[data-shown='0,1,0']")
    page.close()  # before the server ends
    assert {"click", "key", "choose"} <= set(done)


def test_tokens_names_and_titles_are_never_executed(opened, served):
    page = opened(f"{served}#view=1")
    said = []
    page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    assert "<script>alert(2)</script>" in page.locator("h2").first.text_content()
    page.locator("select.unit").select_option("words")
    page.get_by_label("Find a word").fill("<img")
    for kind in ("SVG", "JSON"):
        with page.expect_download() as waiting:
            page.get_by_label(f"Save as {kind}").click()
        assert "<script>" not in waiting.value.path().read_text("utf-8") or kind == "JSON"
    assert page.evaluate("document.querySelectorAll('script').length") == 1
    assert page.evaluate("document.querySelectorAll('.qkv-look img').length") == 0
    assert said == []


def test_a_picture_that_the_page_shows_stays_available(opened, served):
    page = opened(served)
    page.evaluate(
        """() => {
            lost = []; revoked = 0;
            const revoke = URL.revokeObjectURL;
            URL.revokeObjectURL = (url) => {
                revoked++;
                const shown = [...document.querySelectorAll(".cell")].map((cell) => cell.style.backgroundImage);
                if (shown.some((one) => one.includes(url))) lost.push(url);
                revoke.call(URL, url);
            };
        }"""
    )
    for count, scale in enumerate(("linear", "log", "row"), 1):
        page.get_by_label("Scale").select_option(scale)
        page.wait_for_function(f"() => revoked >= {count}")
    assert page.evaluate("lost") == []
    page.close()


def test_a_long_text_is_compared_by_its_heads_without_means(opened, served):
    page = opened(served)
    page.get_by_label("Compare with").select_option("1")
    page.locator("select.view").select_option("map mean")
    page.get_by_label("Compare with").select_option("3")  # 3,000 tokens, loaded as tiles
    assert page.locator("select.view").locator("option").all_text_contents() == ["side by side"]
    page.get_by_role("gridcell", name="layer 1, head 1").click()
    page.wait_for_load_state("networkidle")
    assert "could not be loaded" not in page.locator(".status").text_content()
    page.close()
