"""What a new user meets in Chromium: the first head, the roles, lines between words, pins, and phones."""

import numpy as np
import pytest

from qkv.look.page import Page
from qkv.look.server import ServedPage, serve_in_thread
from qkv.look.text_roles import mark_roles
from qkv.look.views import View

from .chromium import DARKEST, axe_violations, needs_chromium, part, redrawn, resize, visit
from .colours import cell_colours
from .test_browser import known

pytestmark = needs_chromium
WORDS = "the dog saw that he was late for his own dinner".split()  # noqa: SIM905
N = len(WORDS)


def sentence(name="sentence"):
    """Heads that attend to the first token, the previous token, and from pronouns to the dog."""
    uniform = np.full((N, N), 1 / N)
    first, previous = np.zeros((N, N)), np.eye(N, k=-1)
    first[:, 0] = previous[0, 0] = 1
    pronoun = uniform.copy()
    pronoun[[4, 8]] = 0
    pronoun[[4, 8], 1] = 1
    weights = np.stack([[first, uniform], [0.9 * previous + 0.1 * uniform, pronoun]])
    return mark_roles(View.from_weights(weights, WORDS, name=name))


@pytest.fixture(scope="module")
def served():
    with serve_in_thread(ServedPage(page=Page.from_views([sentence(), known()], "first"))) as address:
        yield address


def table(page):
    return page.locator(".top").first.locator("tbody th").all_text_contents()


def test_the_page_opens_on_the_clearest_role_and_a_content_word(opened, served):
    page = opened(served)
    assert page.locator(".qkv-look").get_attribute("data-shown") == "0,1,1"
    assert page.locator("caption").first.text_content() == "“his” attends to"
    assert table(page)[0] == "dog"
    lead = page.locator(".lead").text_content()
    assert lead.endswith("Point at a row; click a word to pin it.")
    assert page.locator(".badge").first.text_content().startswith("attends from pronouns to one other word: 1.00")
    # A link still opens what it names.
    visit(page, "layer=0&head=1&query=2")
    assert page.locator(".qkv-look").get_attribute("data-shown") == "0,0,1"
    assert "“saw” (2)" in page.locator("output").first.text_content()


def test_which_head_attends_to_the_previous_word_is_listed(opened, served):
    page = opened(f"{served}#view=0")
    roles = page.get_by_role("region", name="heads by role")
    listed = [one.text_content() for one in roles.get_by_role("listitem").all()]
    assert any("the previous token" in one and "layer 1, head 0" in one for one in listed)
    assert any("the first token" in one and "layer 0, head 0" in one for one in listed)
    # The head of the pronouns is shown for a pronoun.
    redrawn(page, roles.get_by_role("button", name="from pronouns").click)
    page.get_by_text("“he” (4) → “dog” (1): 1.00").wait_for()
    assert page.locator("caption").first.text_content() == "“he” attends to"
    redrawn(page, roles.get_by_role("button", name="the previous token: select layer 1, head 0").click)
    assert page.locator(".qkv-look").get_attribute("data-shown") == "0,1,0"
    assert cell_colours(page, N, N)[range(1, N), range(N - 1)].tolist() == [DARKEST] * (N - 1)
    marks = [cell.locator(".mark").all_text_contents() for cell in page.get_by_role("gridcell").all()]
    assert marks == [["⇤"], ["≈"], ["←"], ["◆"]]


def test_a_pinned_word_stays_until_it_is_released(opened, served):
    page = opened(served)
    box = page.locator("canvas.map").first.bounding_box()
    width, height = box["width"] - 102, box["height"] - 84

    def hover(row, column):
        page.mouse.move(box["x"] + 92 + (column + 0.5) / N * width, box["y"] + 8 + (row + 0.5) / N * height)

    caption = page.locator("caption").first
    hover(2, 2)
    assert caption.text_content() == "“saw” attends to"
    page.get_by_role("option", name="he", exact=True).click()
    assert caption.text_content() == "“he” attends to"
    hover(6, 3)
    assert caption.text_content() == "“he” attends to"
    assert "“late” (6) → “that” (3)" in page.locator("output").first.text_content()
    release = page.get_by_role("button", name="“he” is pinned")
    release.click()
    assert not release.is_visible()
    hover(7, 3)
    assert caption.text_content() == "“for” attends to"
    page.get_by_role("option", name="he", exact=True).click()
    page.keyboard.press("Escape")
    hover(2, 2)
    assert caption.text_content() == "“saw” attends to"
    page.mouse.click(box["x"] + 70, box["y"] + 8 + 4.5 / N * height)  # the label of a row
    assert caption.text_content() == "“he” attends to"
    page.mouse.click(box["x"] + 92 + 1.5 / N * width, box["y"] + box["height"] - 60)  # the label of a column
    assert caption.text_content() == "“he” attends to"
    assert "“he” (4) → “dog” (1)" in page.locator("output").first.text_content()


def test_lines_are_drawn_between_words_and_select_them(opened, served):
    page = opened(f"{served}#layer=1&head=1&query=4&key=1")
    lines = page.locator("canvas.lines").first
    page.wait_for_function("() => document.querySelector('canvas.lines').dataset.drawn > 0")
    colours = """([row, column]) => {
        const canvas = document.querySelector("canvas.lines");
        const [pen, ratio] = [canvas.getContext("2d"), canvas.width / canvas.clientWidth];
        const middle = canvas.width / 2, y = (6 + ((row + column) / 2 + 0.5) * 20) * ratio;
        const pixels = pen.getImageData(middle - 2, y - 2, 4, 4).data;
        return Math.min(...pixels.filter((_, i) => i % 4 === 0).map((red, i) => pixels[4 * i + 3] ? red : 255));
    }"""
    assert page.evaluate(colours, [4, 1]) < 60  # the line of the pronoun to the dog
    box = lines.bounding_box()
    page.mouse.click(box["x"] + 20, box["y"] + 6 + 20 * 8.5)
    assert "“his” (8)" in page.locator("output").first.text_content()
    page.mouse.click(box["x"] + box["width"] - 20, box["y"] + 6 + 20 * 9.5)
    assert "“his” (8) → “own” (9)" in page.locator("output").first.text_content()


def test_lines_of_several_heads_have_a_threshold_and_are_saved_as_they_are_shown(opened, served):
    page = opened(f"{served}#view=0&layer=1&head=1&query=4&key=1")
    page.locator("select.view").select_option("lines")
    heads = page.get_by_role("list", name="heads of the lines").get_by_role("listitem")
    # The clearest heads of three roles, with the weight of the selected pair in each.
    heads.nth(2).wait_for()
    texts = ["layer 1, head 1: 1.00", "layer 1, head 0: 0.00909", "layer 0, head 0: 0"]
    assert [head.text_content().strip(" ×") for head in heads.all()] == texts
    # Two lines of the pronouns and eleven of each other head are above twice the weight of uniform attention.
    hint = page.locator(".between .hint").first.text_content()
    assert "24 lines: weights of at least 0.182. Thicker" in hint
    assert "begins with the best heads of three roles and the selected head" in hint
    with page.expect_download() as waiting:
        page.get_by_label("Save as SVG").click()
    drawing = waiting.value.path().read_text()
    # Each head has dashes of its own, so that heads can be told apart in grey; those of the first are whole lines.
    whole, dashed, dotted = (drawing.count(f'fill="rgb({colour})"') for colour in ("0 114 178", "196 73 0", "0 121 90"))
    assert (whole, dashed % 11, dotted % 11) == (2, 0, 0)
    assert 11 < dashed < dotted
    assert "Select a head" not in drawing
    assert [f">{name.split(':')[0]}<" in drawing for name in texts] == [True] * 3
    # A line selects its pair, a head in the grid is added, and a button removes one.
    box = page.locator("canvas.lines").first.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 26 + (8.5 + 1.5) / 2 * 26 - 3)
    assert "“his” (8) → “dog” (1)" in page.locator("output").first.text_content()
    page.get_by_role("gridcell", name="layer 0, head 1").click()
    heads.nth(3).wait_for()
    page.get_by_role("button", name="remove layer 1, head 0").click()
    page.wait_for_function("() => document.querySelectorAll('.between .badges li').length === 3")
    assert axe_violations(page, dark=False) == []
    # A copied link shows the lines again.
    page.wait_for_function("() => location.hash.includes('how=lines')")
    shown = [head.text_content() for head in heads.all()]
    page.reload()
    heads.nth(2).wait_for()
    assert [head.text_content() for head in heads.all()] == shown


def test_lines_of_a_long_text_show_the_words_around_the_query(opened):
    words = [f"w{i}" for i in range(300)]
    view = View.from_weights(np.eye(300, k=-1)[None, None], words)
    with serve_in_thread(ServedPage(page=Page.from_views(view))) as address:
        page = opened(f"{address}#query=150")
        assert page.get_by_text("40 of 300 tokens, around the selected one.").is_visible()
        box = page.locator("canvas.lines").first.bounding_box()
        page.mouse.click(box["x"] + 20, box["y"] + 10)
        assert "“w130” (130)" in page.locator("output").first.text_content()


def phone(browser, address):
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("[data-painted]")
    page.wait_for_function("() => document.querySelector('canvas.map').dataset.drawn > 0")
    page.locator("canvas.map").first.scroll_into_view_if_needed()
    return context, page


def test_fingers_zoom_and_pan_the_map_of_a_phone(browser):
    view = View.from_weights(np.eye(100, k=-1)[None, None], [f"w{i}" for i in range(100)])
    with serve_in_thread(ServedPage(page=Page.from_views(view))) as address:
        context, page = phone(browser, address)
        touch = context.new_cdp_session(page)
        box = page.locator("canvas.map").first.bounding_box()
        x, y = box["x"] + 92 + (box["width"] - 102) / 2, box["y"] + 8 + (box["height"] - 84) / 2

        def send(kind, *points):
            fingers = [{"x": a, "y": b, "id": i} for i, (a, b) in enumerate(points)]
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": fingers})

        assert page.locator("canvas.map").first.evaluate("e => e.style.touchAction") == "pan-x pan-y"
        send("touchStart", (x - 20, y), (x + 20, y))
        for step in range(1, 11):
            send("touchMove", (x - 20 - 4 * step, y), (x + 20 + 4 * step, y))
        send("touchEnd")
        page.wait_for_function("() => document.querySelector('canvas.map').dataset.part.split(',')[2] < 60")
        top, left, rows, columns = part(page)
        assert 25 <= rows <= 45
        # The lines need no scroll bar of their own.
        assert page.locator(".between").first.evaluate("lines => lines.scrollHeight <= lines.clientHeight")
        assert columns == rows
        assert abs(top + rows / 2 - 50) < 8  # the middle stays in the middle
        assert page.locator("canvas.map").first.evaluate("e => e.style.touchAction") == "none"
        send("touchStart", (x, y))
        for step in range(1, 6):
            send("touchMove", (x - 8 * step, y))
        send("touchEnd")
        page.wait_for_function(f"() => document.querySelector('canvas.map').dataset.part.split(',')[1] > {left}")
        assert part(page)[0] == top
        context.close()


def test_a_phone_shows_the_map_on_its_first_screen_and_remembers_that_settings_are_open(browser, served):
    context, page = phone(browser, served)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    box = page.locator("canvas.map").first.bounding_box()
    assert page.evaluate("scrollY") == 0
    assert box["y"] + box["height"] <= 844
    assert not page.get_by_label("Colour limit").is_visible()
    page.get_by_text("Settings and saving").tap()
    page.get_by_label("Colour limit").wait_for()
    page.wait_for_function("() => Object.values(localStorage).includes('open')")
    page.reload()
    page.get_by_label("Colour limit").wait_for()
    context.close()


def test_a_head_blends_into_the_next_one_unless_motion_is_reduced(opened, served):
    page = opened(f"{served}#view=0&layer=0&head=0&query=1")
    reds = """(name) => new Promise((done) => {
        const canvas = document.querySelector("canvas.map"), ratio = canvas.width / canvas.clientWidth, seen = [];
        const look = () => {
            const [x, y] = [97 * ratio, (canvas.clientHeight - 80) * ratio];
            seen.push(canvas.getContext("2d").getImageData(x, y, 1, 1).data[0]);
            seen.at(-1) === 255 ? done(seen) : requestAnimationFrame(look);
        };
        document.querySelector(`[role=gridcell][aria-label^="${name}"]`).click();
        look();
    })"""
    page.evaluate("clock = 0; performance.now = () => (clock += 20)")  # of the page, which a busy machine does not skip
    for motion, blends in (("reduce", False), ("no-preference", True)):
        page.emulate_media(reduced_motion=motion)
        redrawn(page, lambda: page.get_by_role("gridcell", name="layer 0, head 0").click())
        seen = page.evaluate(reds, "layer 1, head 0")
        assert seen[0] == DARKEST[0]
        assert any(DARKEST[0] < red < 250 for red in seen) == blends


def test_a_presentation_steps_through_the_heads_with_a_role_until_escape(opened, served):
    page = opened(f"{served}#view=0")
    shown = page.locator(".qkv-look")
    page.keyboard.press("p")
    assert not page.get_by_label("Compare with").is_visible()
    page.wait_for_function("() => document.fullscreenElement")
    above, below = (page.locator(part).first.bounding_box() for part in (".tokens", "canvas.map"))
    assert above["y"] + above["height"] <= below["y"]
    seen = []
    for key in ("ArrowRight", "ArrowRight", "PageUp"):
        before = shown.get_attribute("data-shown")
        page.keyboard.press(key)
        page.wait_for_selector(f".qkv-look:not([data-shown='{before}'])")
        seen.append(shown.get_attribute("data-shown"))
    roles = {"0,1,1", "0,1,0", "0,0,0", "0,0,1"}
    assert set(seen) <= roles
    assert seen[0] == seen[2] != seen[1]
    assert axe_violations(page, dark=False) == []
    page.keyboard.press("Escape")
    assert page.get_by_label("Compare with").is_visible()
    page.wait_for_function("() => !document.fullscreenElement")
    # Browsers leave the whole screen without an event of the key. Without its functions, the page fills the window.
    page.keyboard.press("p")
    page.wait_for_function("() => document.fullscreenElement")
    page.evaluate("document.exitFullscreen()")
    page.get_by_label("Compare with").wait_for()
    page.evaluate("() => { document.querySelector('.qkv-look').requestFullscreen = () => Promise.reject(Error()); }")
    page.keyboard.press("p")
    assert not page.get_by_label("Compare with").is_visible()


def test_both_texts_are_named_by_a_presented_difference_and_listed_by_what_differs(opened):
    names = ["When he saw his owner, the dog was happy", "When he saw his owner, the cat was angry"]
    with serve_in_thread(ServedPage(page=Page.from_views([sentence(name) for name in names]))) as address:
        page = opened(f"{address}#view=0&layer=0&head=0&compare=1&how=difference")
        options = page.locator(".controls select").first.locator("option").all_text_contents()
        assert options == ["… owner, the dog was happy", "… owner, the cat was angry"]
        page.keyboard.press("p")
        title = " minus ".join(f"{name} · layer 0, head 0" for name in names)
        assert page.locator("h2").first.inner_text() == title
        page.keyboard.press("Escape")
        redrawn(page, lambda: page.locator("select.view").select_option("map"))
        page.keyboard.press("p")
        assert page.locator("h2").first.inner_text() == "layer 0, head 0"


def test_a_token_is_selected_with_its_largest_weight(opened, served):
    page = opened(f"{served}#view=0&layer=1&head=1&query=0&key=9")
    said = page.locator(".readout").first
    page.get_by_role("option", name="he", exact=True).click()
    assert said.text_content() == "“he” (4) → “dog” (1): 1.00"
    page.get_by_role("option", name="his", exact=True).hover()
    assert said.text_content() == "“his” (8) → “dog” (1): 1.00"
    page.get_by_label("Find a word").fill("his")
    page.get_by_label("Find a word").press("Enter")
    page.mouse.move(0, 0)
    assert said.text_content() == "“his” (8) → “dog” (1): 1.00"
    # A pinned word stays when another head is selected by its role.
    redrawn(page, page.get_by_role("button", name="the previous token: select layer 1, head 0").click)
    redrawn(page, page.get_by_role("button", name="from pronouns").click)
    assert said.text_content() == "“his” (8) → “dog” (1): 1.00"


def test_32_heads_of_32_layers_fit(opened):
    view = View.from_weights(np.broadcast_to(np.eye(4), (32, 32, 4, 4)), list("abcd"))
    with serve_in_thread(ServedPage(page=Page.from_views(view))) as address:
        page = opened(address)
        resize(page, 1440, 900)
        for width in (1440, 390):
            resize(page, width, 900)
            hidden = "e => [e.scrollWidth - e.clientWidth, e.scrollHeight - e.clientHeight]"
            assert page.locator(".overview").evaluate(hidden) == [0, 0]
            last = page.get_by_role("gridcell", name="layer 31, head 31").bounding_box()
            assert last["x"] + last["width"] <= min(width, 560)
            assert last["width"] >= 6


def test_maps_controls_and_tokens_have_space_at_four_widths(opened):
    text = "When he saw his owner, the dog was happy"
    views = [
        View.from_weights(np.broadcast_to(np.eye(N), (6, 12, N, N)), WORDS, name=name)
        for name in (text, text.replace("happy", "late"))
    ]
    hidden = "e => [e.scrollWidth - e.clientWidth, e.scrollHeight - e.clientHeight]"
    with serve_in_thread(ServedPage(page=Page.from_views(views))) as address:
        page = opened(f"{address}#view=0&compare=1&open=search,effect,pair&ask=dog→he")
        page.get_by_role("button", name="Which heads differ most?").click()
        page.wait_for_selector(".differing button")  # of which the list does not take the space of the maps
        sides = {}
        for width, height in ((1920, 1080), (1440, 900), (1280, 800), (1024, 768), (390, 844)):
            resize(page, width, height)
            boxes = [one.bounding_box() for one in page.locator("canvas.map").all()]
            sides[width] = boxes[0]["width"]
            assert (boxes[0]["y"] == boxes[1]["y"]) == (width > 390)  # side by side
            page.get_by_role("button", name="heads differ most").click(trial=True, timeout=9000)  # no map covers it
            for part_of_page in (".details", ".overview", ".questions .result", ".differing"):
                assert page.locator(part_of_page).first.evaluate(hidden) == [0, 0], (part_of_page, width)
            # The outline of the selected token is 2 pixels wide.
            token = page.locator(".token[aria-selected]").first.bounding_box()
            assert token["x"] - page.locator(".tokens").first.bounding_box()["x"] >= 2
        assert sides[1920] > sides[1440] >= 400
        assert min(sides[1280], sides[1024]) >= 400
        names = [page.get_by_label(label).bounding_box()["width"] for label in ("Text", "Compare with")]
        assert min(names) > 300  # so that the ends of the names differ
        # A window that fills the screen cannot be resized.
        page.evaluate(
            "() => { document.querySelector('.qkv-look').requestFullscreen = () => Promise.reject(Error()); }"
        )
        page.keyboard.press("p")
        for width, height in ((1920, 1080), (1440, 900), (1280, 900), (1024, 768)):
            resize(page, width, height)
            assert page.locator(".qkv-look").evaluate(hidden) == [0, 0], width


@pytest.mark.parametrize("theme", ["0", "1"])
def test_axe_finds_no_violation(opened, served, theme):
    page = opened(f"{served}#view=0&dark={theme}")
    for width in (1400, 390):
        resize(page, width, 900)
        violations = axe_violations(page, dark=theme == "1")
        assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in violations] == []


def test_rows_of_the_table_and_roles_are_reached_by_keyboard(opened, served):
    page = opened(served)
    page.get_by_role("button", name="the first token: select layer 0, head 0").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-shown='0,0,0']")
    page.locator(".top").first.locator("tbody button").first.focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    chosen = page.evaluate("document.activeElement.textContent")
    page.keyboard.press("Enter")
    assert f"→ “{chosen}”" in page.locator("output").first.text_content()
    assert page.evaluate("document.activeElement.textContent") == chosen
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.textContent") == table(page)[-1]
