"""Two tokenizations of one text, sentences that open into tokens, and spans, in Chromium, compared with NumPy."""

import json
import random
import re
from types import SimpleNamespace

import numpy as np
import pytest

from qkv import look
from qkv.look.axis import Axis, Patches
from qkv.look.html_export import export_html
from qkv.look.page import QUESTIONS, Page
from qkv.look.server import ServedPage, serve_in_thread
from qkv.look.token_groups import align_axes, group_tokens

from .chromium import needs_chromium, redrawn, visit
from .test_token_groups import TEXT, pieces, sums, view_of, with_marks

pytestmark = needs_chromium

WORDS = with_marks(pieces(TEXT, {2, 9, 10, 12, 16, 20, 31, 36, 40, 43, 49, 52, 57, 62}), ["[CLS]"], ["[SEP]"])
LETTERS = pieces(TEXT, {4, 9, 10, 15, 20, 31, 36, 43, 47, 52, 57, 62, 66})


@pytest.fixture(scope="module")
def views():
    return [view_of(WORDS, 0, model="word pieces"), view_of(LETTERS, 1, model="bytes")]


@pytest.fixture(scope="module")
def address(views):
    with serve_in_thread(ServedPage(page=Page.from_views([view for view, _ in views]))) as served:
        yield served


def agrees(text, wanted):
    """Whether a printed number is the wanted one, rounded to its digits, of which ≈ makes the last one uncertain."""
    mantissa, _, exponent = text.removeprefix("≈ ").replace("−", "-").partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    return abs(float(f"{mantissa}e{exponent or 0}") - wanted) <= (1.01 if "≈" in text else 0.51) * unit


def number(page, nth=0, after=": "):
    """The number of a readout after some text."""
    text = page.locator(".readout").nth(nth).text_content()
    return text.rsplit(after, 1)[1].split(";")[0].split(" = ")[-1].split(" ≈ ")[-1]


def test_groups_are_aligned_as_in_python(opened, address):
    page = opened(address)
    draw = random.Random(0)
    tokens = ["un", "happy", "dog", "dogs", "The", "the", ".", "", "🙂"]

    def axis():
        names = tuple(draw.choice(tokens) for _ in range(draw.randrange(9)))
        words = tuple(sorted(draw.randrange(5) for _ in names))
        return with_marks(Axis(names, names, words, (False,) * len(names)), ["[CLS]"], ["</s>"] * draw.randrange(3))

    pairs = [[axis(), axis()] for _ in range(200)]
    pairs += [[pieces(TEXT, draw.sample(range(1, len(TEXT)), 9)) for _ in range(2)] for _ in range(100)]
    wanted = [align_axes(*pair, same) for pair in pairs for same in (True, False)]
    views = [
        [
            SimpleNamespace(queries=axis, keys=None, columns=axis, model=model)
            for axis, model in zip(pair, models, strict=True)
        ]
        for pair in pairs
        for models in ("aa", "ab")
    ]
    found = page.evaluate(
        """async (all) => {
            const { alignGroups } = await import('./web/align.js');
            return all.map((places) => {
                const found = alignGroups(places, places.map((tokens) => tokens.map((_, i) => [i])));
                return [found.pairs, found.others];
            });
        }""",
        [json.loads(QUESTIONS["aligned"][1](*both))[0] for both in views],
    )
    assert found == [[[list(map(list, pair)) for pair in one.pairs], list(map(list, one.others))] for one in wanted]
    assert sum(len(a) > 1 or len(b) > 1 for one in wanted for a, b in one.pairs) > 100


def test_two_tokenizations_are_compared_by_the_groups_that_both_have(opened, address, views):
    (one, first), (other, second) = views
    page = opened(f"{address}#view=0&layer=1&head=2&compare=1&how=difference&query=1&key=5")
    found = look.difference(one, other)
    rows = [found.queries.groups(side) for side in (0, 1)]
    wanted = sums(first[1, 2], rows[0], rows[0]) - sums(second[1, 2], rows[1], rows[1])
    row, column = (next(i for i, group in enumerate(rows[0]) if token in group) for token in (1, 5))
    assert len(rows[0][row]) > 1
    names = page.locator(".token").all_text_contents()
    assert tuple(names[: len(rows[0])]) == found.query_names
    assert page.locator(".readout").first.text_content().startswith(f"“{names[row]}” (1) → “{names[column]}” (")
    assert float(number(page).replace("−", "-")) == pytest.approx(wanted[row, column], abs=0.01)
    for at in (0, 4, len(names) - 1):
        page.locator(".tokens").first.get_by_role("option").nth(at).click()
        listed = {
            cells[0]: float(cells[2].removeprefix("≈ ").replace("−", "-"))
            for cells in (one.locator("th, td").all_text_contents() for one in page.locator(".top tbody tr").all())
        }
        strongest = np.argsort(-np.abs(wanted[at]))[:3]
        for i in strongest:
            assert listed[found.key_names[i]] == pytest.approx(wanted[at, i], abs=0.01)
        page.keyboard.press("Escape")
    title = page.locator("h2").first.text_content()
    assert title == "one text · word pieces, layer 1, head 2 minus bytes, layer 1, head 2"
    listed = page.locator(".unaligned p").all_text_contents()
    assert listed == ["word pieces: “[CLS]” “[SEP]”"]
    page.get_by_role("button", name="Which heads differ most?").click()
    page.wait_for_selector(".differing button")
    best = found.heads()[0]
    assert f"layer {best.layer}, head {best.head}: " in page.locator(".differing button").first.text_content()
    # Words are groups of their own where both tokenizations have them.
    redrawn(page, lambda: page.locator("select.unit").select_option("sentences"))
    sentences = [group_tokens(axis, "sentences") for axis in (WORDS, LETTERS)]
    parts = [sums(maps[1, 2], groups, groups) for maps, groups in ((first, sentences[0][1:-1]), (second, sentences[1]))]
    page.locator(".tokens").first.get_by_role("option").nth(2).click()
    assert page.locator(".readout").first.text_content().startswith(f"“{WORDS.name(sentences[0][3])}” (")
    differences = {
        cells[0]: float(cells[2].removeprefix("≈ ").replace("−", "-"))
        for cells in (row.locator("th, td").all_text_contents() for row in page.locator(".top tbody tr").all())
    }
    names = [WORDS.name(group) for group in sentences[0][1:-1]]
    assert differences == pytest.approx(dict(zip(names, (parts[0] - parts[1])[2], strict=True)), abs=0.01)
    page.locator("canvas.map").first.focus()
    redrawn(page, lambda: page.keyboard.press("p"))
    assert page.locator("h2").first.inner_text() == "word pieces, layer 1, head 2 minus bytes, layer 1, head 2"


def test_a_selection_moves_to_the_aligned_tokens_of_the_other_model(opened, address, views):
    page = opened(f"{address}#view=0&layer=0&head=1&compare=1&query=3&key=1")
    pairs = align_axes(WORDS, LETTERS).pairs

    def shown(nth):
        text = page.locator(".readout").nth(nth).text_content()
        return tuple(int(part.split(")")[0]) for part in text.split(" (")[1:])

    def counterpart(token):
        return next(b[0] for a, b in pairs if token in a)

    assert shown(0) == (3, 1)
    assert shown(1) == (counterpart(3), counterpart(1))
    titles = page.locator("h2").all_text_contents()
    assert titles == ["one text · word pieces, layer 0, head 1", "one text · bytes, layer 0, head 1"]
    for token in (6, 9, 12):
        page.locator(".tokens").first.get_by_role("option").nth(token).click()
        assert shown(1)[0] == counterpart(token)
        assert agrees(number(page, 1), views[1][1][0, 1][shown(1)])
    # The end token has no counterpart, and the other selection stays.
    before = shown(1)
    page.locator(".tokens").first.get_by_role("option").last.click()
    page.mouse.move(0, 0)  # away from the words, which a longer headline has moved
    assert shown(0)[0] == len(WORDS.tokens) - 1
    assert shown(1) == before


def test_sentences_open_into_tokens_with_the_sums_of_their_weights(opened, address, views, tmp_path):
    weights = views[0][1][0, 2]
    page = opened(f"{address}#view=0&layer=0&head=2&unit=sentences&query=1&key=14")
    sentences = group_tokens(WORDS, "sentences")

    def check(page, groups, count=3):
        names = [WORDS.tokens[group[0]] if len(group) == 1 else WORDS.name(group) for group in groups]
        assert page.locator(".tokens").first.get_by_role("option").count() == len(groups)
        wanted = sums(weights, groups, groups)
        for row in range(0, len(groups), max(1, len(groups) // count)):
            page.locator(".tokens").first.get_by_role("option").nth(row).click()
            listed = [one.locator("th, td").all_text_contents() for one in page.locator(".top tbody tr").all()]
            for name, position, value in listed:
                column = next(i for i, group in enumerate(groups) if group[0] == int(position))
                assert name.strip() == names[column].strip() or len(groups[column]) == 1
                assert agrees(value, wanted[row, column])
            page.keyboard.press("Escape")

    check(page, sentences)
    page.locator(".tokens").first.get_by_role("option").nth(2).click()
    page.locator(".tokens").first.get_by_role("option").nth(2).click()
    redrawn(page, lambda: page.get_by_role("button", name="Open these sentences").click())
    opened_sentence = [group for group in sentences if page_opens(page, group)]
    assert opened_sentence
    groups = [one for group in sentences for one in ([(i,) for i in group] if group in opened_sentence else [group])]
    check(page, groups)
    # The link restores what is open, also in an exported file.
    page.wait_for_function("() => location.hash.includes('opened=q')")
    visit(page, page.url.split("#")[1])
    check(page, groups, 1)
    path = export_html(Page.from_views(views[0][0]), tmp_path / "page.html")
    check(opened(f"file://{path}#{page.url.split('#')[1]}"), groups, 1)
    page.locator("canvas.map").first.focus()
    for _ in range(2 * len(groups)):
        if page.get_by_role("button", name="Close these sentences").count():
            break
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Escape")
    redrawn(page, lambda: page.keyboard.press("Enter"))
    assert page.locator(".tokens").first.get_by_role("option").count() <= len(groups)


def page_opens(page, group):
    """Whether the link of a page opens the sentence of some tokens."""
    page.wait_for_function("() => location.hash.includes('opened=')")
    fields = dict(field.split("=") for field in page.url.split("#")[1].split("&"))
    return f"q{WORDS.sentences[group[0]]}" in fields["opened"].split(".")


def test_a_frame_is_one_number_in_each_head_and_ranks_the_heads(opened, address, views):
    weights = views[0][1]
    page = opened(f"{address}#view=0&layer=1&head=0&query=0&key=0")
    count = len(WORDS.tokens)
    box = page.locator("canvas.map").first.bounding_box()

    def place(row, column):
        return (
            box["x"] + 92 + (column + 0.5) / count * (box["width"] - 102),
            box["y"] + 8 + (row + 0.5) / count * (box["height"] - 84),
        )

    page.keyboard.down("Shift")
    page.mouse.move(*place(8, 9))
    page.mouse.down()
    page.mouse.move(*place(6, 10))
    page.mouse.move(*place(5, 12))
    page.mouse.up()
    page.keyboard.up("Shift")
    query, key = tuple(range(5, 9)), tuple(range(9, 13))
    wanted = {(i, j): sums(weights[i, j], [query], [key])[0, 0] for i in range(2) for j in range(3)}
    page.wait_for_selector("[data-question=search] tbody tr")
    assert agrees(number(page, after="frame: "), wanted[1, 0])
    caption = page.locator("[data-question=search] caption").text_content()
    assert f"“{WORDS.name(query)}” attends to “{WORDS.name(key)}”" in caption
    assert float(caption.rsplit(": ", 1)[1]) == pytest.approx(np.mean(list(wanted.values())), rel=0.01)
    rows = page.locator("[data-question=search] tbody tr").all()
    found = {row.locator("button").text_content(): float(row.locator("td").first.text_content()) for row in rows}
    assert found == pytest.approx({f"layer {i}, head {j}": value for (i, j), value in wanted.items()}, abs=0.005)
    # Another head has its own number in the same frame, which a link restores.
    redrawn(page, lambda: rows[0].locator("button").click())
    best = max(wanted, key=wanted.get)
    assert page.locator("h2").first.text_content() == f"one text · word pieces, layer {best[0]}, head {best[1]}"
    assert agrees(number(page, after="frame: "), wanted[best])
    page.wait_for_function("place => location.hash.includes(place)", arg=f"layer={best[0]}&head={best[1]}")
    visit(page, page.url.split("#")[1])
    assert agrees(number(page, after="frame: "), wanted[best])
    # The figure has the frame and its number, too.
    with page.expect_download() as waiting:
        page.get_by_label("Save as SVG").click()
    svg = waiting.value.path().read_text("utf-8")
    said = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg)).split("Framed: ")[1]
    assert agrees(said.split(": ")[1].split(". ")[0].removesuffix("."), wanted[best])
    marked = re.findall(r'<polygon points="([^"]*)" fill="none" stroke="#c2410c"', svg)
    cell = [np.ptp([float(point.split(",")[axis]) for point in marked[0].split()]) / 4 for axis in (0, 1)]
    whole = re.search(r'<image x="\S+" y="\S+" width="(\S+)" height="(\S+)"', svg)
    assert cell == pytest.approx([float(side) / count for side in whole.groups()], abs=0.02)
    page.locator("canvas.map").first.focus()
    page.keyboard.press("Escape")
    assert "frame" not in page.locator(".readout").first.text_content()


def test_a_region_of_an_image_is_searched_by_its_corners_or_drawn_on_it(opened):
    names = ("[CLS]", *(f"{row},{column}" for row in range(3) for column in range(4)), "dog")
    patches = Patches((3, 4), (-1, *range(12), -1), np.full((30, 40, 3), 128, np.uint8))
    axis = Axis(names, names, (-1, *range(13)), (True, *[False] * 13), patches=patches)
    view, weights = view_of(axis, 2)
    with serve_in_thread(ServedPage(page=Page.from_views(view))) as served:
        page = opened(f"{served}#open=search&ask=dog→1,1–2,2")
        page.wait_for_selector("[data-question=search] tbody tr")
        rows = page.locator("[data-question=search] tbody tr").all()
        found = [float(row.locator("td").first.text_content().removeprefix("≈ ")) for row in rows]
        page.goto(f"{served}#query=13&key=0")
        page.get_by_role("option", name="dog").click()
        canvas = page.locator("canvas.picture").first
        box = canvas.bounding_box()
        page.keyboard.down("Shift")
        for act, row, column in ((page.mouse.down, 1, 1), (page.mouse.up, 2, 2)):
            page.mouse.move(box["x"] + (column + 0.5) / 4 * box["width"], box["y"] + (row + 0.5) / 3 * box["height"])
            act()
        page.keyboard.up("Shift")
        page.wait_for_selector("[data-question=search] tbody tr")
        fields = [page.get_by_label(f"word that {which}").input_value() for which in ("attends", "is attended to")]
        assert fields == ["#13", "1,1–2,2"]
        rows = page.locator("[data-question=search] tbody tr").all()
        assert [float(row.locator("td").first.text_content().removeprefix("≈ ")) for row in rows] == found
    wanted = weights[:, :, 13, [6, 7, 10, 11]].sum(axis=-1)
    assert found == pytest.approx(sorted(wanted.ravel(), reverse=True), abs=0.005)
