"""Questions on the page in Chromium: differences, search, ablated heads, predictions, single pairs, links and find."""

import copy
import json
import re
from decimal import Decimal

import numpy as np
import pytest

from qkv import look
from qkv.look.axis import Axis
from qkv.look.difference import rank_differences
from qkv.look.html_export import export_html
from qkv.look.page import Page
from qkv.look.server import ServedPage, serve_in_thread
from qkv.look.text_views import text_views

from .chromium import needs_chromium, redrawn, spot, visit

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = [needs_chromium, pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")]

from .test_browser import no_serious_violation  # noqa: E402
from .test_generation import TEXT, reader  # noqa: E402

FIRST = Axis(
    ("Hans", "said", "un", "##happi", "##ly", "he", "left"),
    ("Hans", "said", "un", "happi", "ly", "he", "left"),
    (0, 1, 2, 2, 2, 3, 4),
    (False,) * 7,
)
SECOND = ["Hans", "said", "that", "he", "came"]


@pytest.fixture(scope="module")
def model():
    return reader("gpt2")


@pytest.fixture(scope="module")
def views(model):
    rng = np.random.default_rng(0)
    first, second, long = (rng.dirichlet(np.full(n, 0.3), (h, h, n)) for n, h in ((7, 2), (5, 2), (700, 1)))
    words = [f"w{i}" for i in range(698)] + ["needle", "end"]
    return [
        look.View.from_weights(first, FIRST, name="first"),
        look.View.from_weights(second, SECOND, name="second"),
        text_views(model, [TEXT])[0],
        look.View.from_weights(long, words, name="long"),
    ]


@pytest.fixture(scope="module")
def address(views):
    with serve_in_thread(ServedPage(page=Page.from_views(views, "questions"))) as served:
        yield served


def rows(page, table):
    """Return the texts of the cells of a table, row by row."""
    return page.locator(f"{table} tbody tr").evaluate_all(
        "all => all.map(row => [...row.children].map(c => c.innerText.trim()))"
    )


def numbers_of(sum_of_weights):
    """Return the two weights and the difference of a readout, which add up and have the same decimals."""
    texts = re.fullmatch(r".*: (\S+) − \(?([^ )]+)\)? [=≈] (\S+)", sum_of_weights).groups()
    first, second, result = numbers = [Decimal(text.replace("−", "-")) for text in texts]
    assert first - second == result, sum_of_weights
    assert len({number.as_tuple().exponent for number in numbers}) == 1, sum_of_weights
    return [float(number) for number in numbers]


def test_weights_of_any_size_and_their_difference_add_up(opened, address):
    page = opened(f"{address}#view=0")
    rng = np.random.default_rng(1)
    pairs = np.round(rng.random((400, 2)), 3) * 10.0 ** rng.integers(-9, 5, (400, 1)) * rng.choice([-1, 1, 1], (400, 2))
    pairs[:200] *= 10.0 ** rng.integers(-3, 1, (200, 2))
    pairs[::9, 1], pairs[::27, 0] = 0, 0
    errors = np.abs(pairs) * rng.choice([0, 0.002, 0.05], (400, 2))
    said = page.evaluate(
        """async ([pairs, errors]) => {
            const { describeDifference } = await import('./web/difference.js');
            const map = (weight, error) => ({ weights: [weight], keys: ["k"], error: () => error });
            return pairs.map(([a, b], i) => {
                const [first, second] = [map(a, errors[i][0]), map(b, errors[i][1])];
                return describeDifference({ first, second }, 0, 0).sum;
            });
        }""",
        [pairs.tolist(), errors.tolist()],
    )
    for pair, error, text in zip(pairs, errors, said, strict=True):
        unit = max(10.0 ** np.floor(np.log10(np.abs(pair).max() or 1) - 2 + 1e-6), 20 * error.max())
        numbers = numbers_of(f": {text}")
        assert numbers[:2] == pytest.approx(pair.tolist(), abs=unit), text
        assert numbers[2] == pytest.approx(pair[0] - pair[1], abs=2 * unit), text
        # Both ends of a certain weight are rounded to the printed number. Whole numbers may end with zeros.
        last = 10.0 ** Decimal(text.split(" ")[0].replace("−", "-")).as_tuple().exponent
        for number, exact, far in zip(numbers, pair, error, strict=False):
            assert abs(number - exact) + far <= 0.5001 * last or "=" not in text or "." not in text
    assert "masked" not in said


def test_the_numbers_of_a_list_have_the_same_digits(opened, address):
    page = opened(f"{address}#view=0&layer=0")
    lists = [
        [[0.1945, 0.0005], [0.195, 0.0005], [0.512, 0]],
        [[0.736, 0.004], [0.0012, 0]],
        [[0.9, 0.009], [0.1, 0.001]],
        [[0.5, 0], [1e-5, 0]],
        [[0.11501, 0.00004], [0.115, 0], [0.3345, 0.0006]],  # three certain digits are not two
        [[0.000149, 0.000002]],
    ]
    said = page.evaluate(
        """async (lists) => {
            const { formatWeights } = await import('./web/codes.js');
            return lists.map((all) => formatWeights(all.map(([weight, error]) => ({ weight, error }))));
        }""",
        lists,
    )
    assert said == [
        ["≈ 0.19", "≈ 0.20", "0.51"],
        ["≈ 0.74", "0.0012"],
        ["0.9", "0.1"],
        ["0.500", "1.00e-5"],
        ["≈ 0.12", "≈ 0.12", "≈ 0.33"],
        ["0.00015"],
    ]


def test_the_difference_of_two_texts_has_a_signed_scale_and_certain_digits(opened, address, views):
    page = opened(f"{address}#view=0&layer=1&head=0&compare=1&how=difference&query=1&key=0")
    found = look.difference(views[0], views[1])
    assert found.query_names == ("Hans", "said", "he", "left | came")
    assert page.locator(".detail:visible").count() == 1
    assert page.locator("h2").first.text_content() == "first · layer 1, head 0 minus second · layer 1, head 0"
    weights, error = found.weights[1][0], found.error[1][0]
    first, second = views[0].weights(1, 0)[1, 0], views[1].weights(1, 0)[1, 0]
    said = page.locator(".readout").first.text_content()
    assert said.startswith("“said” (1) → “Hans” (0): ")
    assert numbers_of(said) == pytest.approx([first, second, weights[1, 0]], abs=2 * error[1, 0] + 0.001)
    for row in range(4):
        for column in range(4):
            red, _, blue = spot(page, row, column, 4, 4)
            if abs(weights[row, column]) > 0.05:
                assert (blue > red) == (weights[row, column] > 0), (row, column)
    listed = rows(page, ".top")
    assert sorted(row[0] for row in listed) == sorted(found.key_names)
    printed = [float(row[2].removeprefix("≈ ").replace("−", "-")) for row in listed]
    assert sorted(printed, key=abs, reverse=True) == printed
    for (name, *_), number in zip(listed, printed, strict=True):
        assert number == pytest.approx(weights[1, found.key_names.index(name)], abs=0.01)
    assert "orange: in the second" in page.locator(".rule").first.text_content()
    # The heads that differ most, of which one is selected.
    page.get_by_role("button", name="Which heads differ most?").click()
    page.wait_for_selector(".differing button")
    best = [f"layer {one.layer}, head {one.head}: " for one in found.heads()]
    texts = page.locator(".differing button").all_text_contents()
    assert (
        page.locator(".differing .quiet").text_content() == "share of the attention that moves, mean over all tokens: "
    )
    for text, one in zip(texts, found.heads(), strict=True):
        number = text.rsplit(": ", 1)[1]
        last = 10.0 ** Decimal(number.removeprefix("≈ ")).as_tuple().exponent
        assert abs(float(number.removeprefix("≈ ")) - one.distance) <= 0.51 * last
        assert last < max(0.02, 5 * one.error)  # as many digits as are certain
    assert [text[: len(start)] for text, start in zip(texts, best, strict=True)] == best
    # The single weights that differ most, of which one is selected in both maps.
    pair = rank_differences(views[0], views[1], 1)[1][0]
    redrawn(page, lambda: page.locator(".differing-pairs button").first.click())
    assert page.locator("h2").first.text_content().startswith(f"first · layer {pair.layer}, head {pair.head} minus")
    aligned = found.queries.groups(0).index((pair.query,)), found.keys.groups(0).index((pair.key,))
    start = f"“{found.query_names[aligned[0]]}” ({pair.query}) → “{found.key_names[aligned[1]]}” ({pair.key}): "
    page.wait_for_function("start => document.querySelector('.readout').textContent.startsWith(start)", arg=start)
    # They stay listed when both maps are shown, and not for another text.
    for shown in ("map", "difference"):
        page.locator("select.view").select_option(shown)
        assert page.locator(".differing button").all_text_contents() == texts
    redrawn(page, lambda: page.locator(".differing button").first.click())
    top = found.heads()[0]
    assert page.locator("h2").first.text_content().startswith(f"first · layer {top.layer}, head {top.head} minus")
    # Its colours follow the difference itself, as the legend states.
    assert json.loads(page.locator("canvas.map").first.get_attribute("data-range"))["scale"] == "linear"
    assert "between them by the magnitude" in page.locator(".rule").first.text_content()
    # The largest difference is selected.
    largest = np.nan_to_num(np.abs(found.weights[top.layer][top.head]))
    row, column = np.unravel_index(largest.argmax(), largest.shape)
    page.wait_for_function(
        "start => document.querySelector('.readout').textContent.startsWith(start)", arg=f"“{found.query_names[row]}” ("
    )
    assert f"→ “{found.key_names[column]}” (" in page.locator(".readout").first.text_content()


def test_two_heads_and_the_means_of_two_layers_of_one_text_are_compared(opened, address, views):
    page = opened(f"{address}#view=0&layer=0&head=1&compare=0&other=1,0&query=2&key=3")
    numbers = [page.locator(".readout").nth(i).text_content().rsplit(" ", 1)[1] for i in range(2)]
    assert [float(number) for number in numbers] == [views[0].weights(*head)[2, 3] for head in ((0, 1), (1, 0))]
    page.locator("select.view").select_option("difference")
    page.wait_for_function("() => document.querySelector('.readout').textContent.includes('= ')")
    heads = page.locator(".readout").first.text_content()
    page.locator("select.view").select_option("difference mean")
    page.wait_for_function("() => document.querySelector('h2').textContent.includes('minus layer 1, mean')")
    page.wait_for_function("heads => document.querySelector('.readout').textContent !== heads", arg=heads)
    wanted = look.difference(views[0], heads=((0, None), (1, None)))
    said = page.locator(".readout").first.text_content().rsplit(" ", 1)[1]
    assert float(said.replace("−", "-")) == pytest.approx(wanted.weights[0][0][2, 3], abs=0.05)


def test_heads_are_searched_over_all_texts_as_in_python(opened, address, views):
    page = opened(f"{address}#view=2&open=search")
    page.get_by_label("word that attends").fill("HE")
    page.get_by_label("word that is attended to").fill("hans")
    page.get_by_role("button", name="Rank the heads").click()
    page.wait_for_selector(".questions tbody")
    found = look.search(views, "he", "Hans")
    assert [len(match.places) for match in found] == [2] * 4
    said = rows(page, ".questions")
    assert [row[0] for row in said] == [f"layer {match.layer}, head {match.head}" for match in found]
    mean = page.locator(".questions caption").text_content().rsplit("mean over all heads: ", 1)[1]
    assert float(mean) == pytest.approx(np.mean([match.weight for match in found]), rel=6e-3)
    for row, match in zip(said, found, strict=True):
        weights = [match.weight, match.places[1].weight, match.places[0].weight]
        assert [float(number.removeprefix("≈ ")) for number in row[1:4]] == pytest.approx(weights, abs=0.0051)
        assert row[4] == f"first in {sum(place.rank == 1 for place in match.places)} of 2"
    redrawn(page, lambda: page.locator(".questions tbody button").first.click())
    best = found[0].places[0]
    page.wait_for_selector(f"[data-shown='{best.view},{found[0].layer},{found[0].head}']")
    readout = page.locator(".readout").first
    page.wait_for_function("() => document.querySelector('.readout').textContent.startsWith('“he”')")
    assert f"→ “Hans” ({best.key[0]}): {best.weight:.3g}" in readout.text_content()
    # The link asks the same question, in an exported file, too.
    assert "ask=HE" in page.url
    page.get_by_label("word that attends").fill("nobody")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.questions').textContent.includes('No text contains both')")


def test_all_heads_are_listed_on_request_and_a_pin_stays(opened, views):
    rng = np.random.default_rng(4)
    many = [look.View.from_weights(rng.dirichlet(np.full(5, 0.3), (5, 4, 5)), SECOND, name=name) for name in "ab"]
    many[1] = look.View.from_weights(np.broadcast_to(np.eye(5)[:, ::-1], (5, 4, 5, 5)), SECOND, name="b")
    with serve_in_thread(ServedPage(page=Page.from_views(many))) as served:
        page = opened(f"{served}#view=0&layer=0&head=0&query=1&key=4&pin=1&open=search&ask=he→said")
        page.wait_for_selector(".questions tbody tr")
        assert "the first 12 of 20 heads, 2 places" in page.locator(".questions caption").text_content()
        page.get_by_role("button", name="List all 20 heads").click()
        assert "all 20 heads" in page.locator(".questions caption").text_content()
        assert [row[0] for row in rows(page, ".questions")] == [
            f"layer {match.layer}, head {match.head}" for match in look.search(many, "he", "said")
        ]
        # The shown text stays, even if the weight is larger in the other one. So does the pinned token; the pair is
        # framed.
        last = page.locator(".questions tbody button").last
        layer, head = map(int, re.findall(r"\d+", last.text_content()))
        redrawn(page, last.click)
        page.wait_for_selector(f"[data-shown='0,{layer},{head}']")
        weights = many[0].weights(layer, head)
        written = f"“said” (1) → “came” (4): {weights[1, 4]:#.3g}; frame: {weights[3, 1]:#.3g}"
        assert page.locator(".readout").first.text_content() == written.replace("e-0", "e-")
        redrawn(page, lambda: page.keyboard.press("Escape") or page.get_by_role("button", name="release").first.click())
        redrawn(page, page.locator(".questions tbody button").first.click)
        assert page.locator(".readout").first.text_content().startswith("“he” (3) → “said” (1): ")
        visit(page, "view=1&open=search&ask=%233→%231")
        page.wait_for_selector(".questions tbody tr")
        assert page.locator(".questions th").nth(2).text_content() == "rank among the words (1: the largest)"


def test_an_exported_file_searches_heads_and_shows_predictions(opened, views, tmp_path):
    target = export_html(Page.from_views(views[:3]), tmp_path / "all.html")
    page = opened(f"{target.as_uri()}#view=2&layer=0&head=0&query=1&key=0&open=search&ask=he→Hans")
    page.wait_for_selector(".questions tbody")
    assert [row[0] for row in rows(page, ".questions")] == [
        f"layer {match.layer}, head {match.head}" for match in look.search(views, "he", "Hans")
    ]
    assert page.locator(".questions summary:visible").count() == 2
    # The question that needs the running model is not offered; the weight is explained from the queries and keys.
    page.locator(".questions summary", has_text="Why this weight?").click()
    page.wait_for_selector("[data-question=pair] tbody")
    exact = views[2].pair(0, 0, 1, 0)
    for dimension, *numbers in rows(page, "[data-question=pair]"):
        wanted = [part[int(dimension)] for part in (exact.query, exact.key, exact.product)]
        assert [float(number.replace("−", "-")) for number in numbers] == pytest.approx(wanted, rel=6e-3, abs=1e-4)
    assert rows(page, ".predicted")[0][0] == views[2].predictions.tokens[1][0]
    page.get_by_label("× norm of the value").check()
    page.wait_for_function("() => document.querySelector('h2').textContent.includes('norm of the value')")
    view = views[2]
    wanted = view.weights(0, 0)[1, 0] * view.layers[0].value_norms[0, 0]
    assert float(page.locator(".readout").first.text_content().rsplit(": ", 1)[1].replace("≈", "")) == pytest.approx(
        wanted, rel=0.06
    )
    # Maps over several heads have no values.
    page.get_by_label(re.compile("^Head")).select_option(label="all heads, mean")
    page.wait_for_function("() => document.querySelector('h2').textContent.endsWith('all heads, mean')")


def test_an_ablated_head_changes_the_page_as_it_changes_pytorch(opened, address, model, views):
    changed = copy.deepcopy(model.model)
    changed.set_attn_implementation("eager")
    with torch.no_grad():
        ids = model.tokenizer(TEXT, return_tensors="pt")["input_ids"]
        before = changed(input_ids=ids).logits[0]
        changed.transformer.h[1].attn.c_proj.weight.data[:8] *= 0.0
        after = changed(input_ids=ids).logits[0]
    page = opened(f"{address}#view=2&layer=1&head=0&query=2&open=effect,pair")
    page.get_by_role("button", name="Ablate layer 1, head 0").click()
    page.wait_for_selector(".questions tr.target, .questions [data-question=effect] tbody")
    losses = [torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:]).item() for logits in (before, after)]
    said = page.locator("[data-question=effect] p", has_text="Loss").text_content().split(": ")[1].split(" nats")[0]
    assert [float(number) for number in said.split(" → ")] == pytest.approx(losses, rel=6e-3)
    shares = [logits[2].softmax(-1) for logits in (before, after)]
    for token, *numbers in rows(page, "[data-question=effect]"):
        at = model.tokenizer.convert_tokens_to_ids(token)
        assert [float(number) for number in numbers] == pytest.approx(
            [float(one[at]) for one in shares], rel=6e-3, abs=1e-6
        )
    page.wait_for_function("() => location.hash.includes('change=1.0.0')")
    # Beside the map: the predictions of the unchanged model.
    token, number = rows(page, ".predicted")[0]
    assert (token, float(number)) == (
        views[2].predictions.tokens[2][0],
        pytest.approx(float(shares[0].max()), rel=6e-3),
    )
    # Query and key of the pair.
    wanted = views[2].pair(1, 0, 2, 0)
    page.wait_for_selector("[data-question=pair] tbody")
    listed = rows(page, "[data-question=pair]")
    assert [int(row[0]) for row in listed] == np.argsort(-np.abs(wanted.product), kind="stable").tolist()[:8]
    for dimension, *numbers in listed:
        exact = [part[int(dimension)] for part in (wanted.query, wanted.key, wanted.product)]
        assert [float(number.replace("−", "-")) for number in numbers] == pytest.approx(exact, rel=6e-3, abs=1e-6)
    assert f"weight {views[2].weights(1, 0)[2, 0]:.3g}" in page.locator("[data-question=pair] p").first.text_content()
    # A change is undone.
    page.get_by_role("button", name="undo layer 1, head 0").click()
    page.wait_for_function("() => !location.hash.includes('change=')")


def test_a_link_restores_the_state(opened, address):
    link = "view=0&layer=1&head=1&compare=1&how=difference&query=2&key=1&unit=words&find=he&scale=linear&open=search"
    page = opened(f"{address}#{link}&ask=he→Hans")
    page.wait_for_selector(".questions tbody")

    def state():
        return page.evaluate(
            """() => {
                const all = (name) => [...document.querySelectorAll(name)].filter(e => e.checkVisibility());
                return [all('select, input').map(e => e.type === 'checkbox' ? e.checked : e.value),
                    all('h2, .readout, td, caption').map(e => e.textContent), all('details').map(e => e.open)];
            }"""
        )

    page.get_by_label("Hide special tokens").check()
    page.locator("canvas.map").first.focus()
    page.keyboard.press("ArrowDown")
    page.get_by_role("button", name="Copy link").click()
    wanted, link = state(), page.url.split("#")[1]
    visit(page, link)
    page.wait_for_selector(".questions tbody")
    assert state() == wanted


def test_links_and_saved_files_keep_the_pins_of_both_maps(opened, address, tmp_path):
    page = opened(f"{address}#view=0&layer=1&head=1&compare=1&hide=1")
    page.wait_for_selector(".detail:nth-child(2) .token")
    first, second = page.locator(".detail").all()
    second.get_by_role("option", name="said", exact=True).click()
    first.get_by_role("option", name="he", exact=True).click()
    second.get_by_role("option", name="that", exact=True).click()

    def state():
        page.wait_for_selector(".detail:nth-child(2) .pin:visible")
        return page.locator("h2, .readout, .pin, caption").all_text_contents()

    assert [text for text in state() if "pinned" in text] == ["“he” is pinned · release", "“that” is pinned · release"]
    page.get_by_role("button", name="Copy link").click()
    page.wait_for_function("() => document.querySelector('.status').textContent")
    said = page.locator(".status")
    assert "on this machine while qkv runs; for colleagues, save the page as HTML." in said.text_content()
    # The message is visible without scrolling.
    box = said.bounding_box()
    assert 0 <= box["y"] <= page.viewport_size["height"] - box["height"]
    wanted, link = state(), page.url.split("#")[1]
    visit(page, link)
    assert state() == wanted
    with page.expect_download() as waiting:
        page.get_by_label("Save as HTML").click()
    assert "“What changes without this head?”" in said.text_content()
    target = tmp_path / "attention.html"
    waiting.value.save_as(target)
    page = opened(target.as_uri())
    assert state() == wanted
    missing = page.locator(".missing").text_content()
    assert "“What changes without this head?”" in missing
    assert "“Why this weight?”" not in missing
    # A released pin is not restored.
    page.get_by_role("button", name="“he” is pinned").click()
    page.wait_for_function("() => !location.hash.includes('pin=1')")


def test_find_covers_the_whole_text_and_words_of_several_tokens(opened, address):
    page = opened(f"{address}#view=3&query=3")
    field = page.get_by_label("Find a word")
    field.fill("needle")
    assert page.locator(".status").text_content().startswith("1 found")
    assert page.locator(".token[data-at='698']").count() == 0
    field.press("Enter")
    page.wait_for_selector(".token.hit[data-at='698'][aria-selected]")
    assert page.locator(".status").text_content() == "1 of 1"
    visit(page, "view=0&query=0")
    field.fill("unhappily he")
    assert page.locator(".detail .token.hit").all_text_contents() == ["un", "##happi", "##ly", "he"]
    field.fill("a")
    found = page.locator(".status").text_content()
    assert found.startswith("3 found")  # Hans, said, unhappily
    field.press("Shift+Enter")
    page.wait_for_selector(".token[aria-selected]:has-text('##happi')")


def test_axe_finds_no_serious_violation_in_open_questions(opened, address):
    page = opened(
        f"{address}#view=2&layer=1&head=0&query=2&open=search,effect,pair&ask=a→b&change=1.0.0&compare=2&other=0,1"
    )
    page.wait_for_selector("[data-question=effect] tbody")
    page.wait_for_selector("[data-question=pair] tbody")
    no_serious_violation(page)


def test_changed_heads_stay_visible_and_the_search_names_the_selected_words(opened, address):
    page = opened(f"{address}#view=0&layer=1&head=0&query=5&key=0&pin=1&open=search")
    page.wait_for_function("() => document.querySelector('[aria-label=\"word that attends\"]').value === 'he'")
    assert page.get_by_label("word that is attended to").input_value() == "Hans"
    visit(page, "view=2&layer=1&head=0&query=2&change=1.0.0")
    active = page.get_by_role("group", name="changed heads")
    assert active.get_by_role("combobox", name="layer 1, head 0").input_value() == "0"
    active.get_by_role("button").click()
    assert not active.is_visible()
