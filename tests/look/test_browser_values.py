"""Numbers that exported pages print, compared with the weights of `attend` in float64."""

import re

import numpy as np
import pytest

from qkv import look
from qkv.look.axis import Axis
from qkv.look.head_call import HeadCall
from qkv.look.html_export import export_html
from qkv.look.page import Page
from qkv.look.tiled_map import TiledMap
from qkv.look.tiled_views import arrays_view
from qkv.look.token_groups import find_phrase, group_tokens, merge
from qkv.look.views import LayerMaps, View
from qkv.masks import Causal

from .chromium import needs_chromium, visit

pytestmark = needs_chromium
TOKENS = ["the", "dog", "##gy", "saw", "the", "river", "the", "dog", "##gy", "was", "happy"]
WORDS = (0, 1, 1, 2, 3, 4, 5, 6, 6, 7, 8)
AXIS = Axis(tuple(TOKENS), tuple(token.removeprefix("##") for token in TOKENS), WORDS, (False,) * len(TOKENS))
HEADS = 4


def drawn(seed, vectors):
    """Return a view of drawn queries and keys, stored as vectors or as rounded weights, and its exact weights."""
    rng = np.random.default_rng(seed)
    maps = [TiledMap.from_arrays(*rng.normal(size=(2, len(TOKENS), 8)) * 1.7, mask=Causal()) for _ in range(HEADS)]
    exact = np.stack([one.weights((0, len(TOKENS)), (0, len(TOKENS))) for one in maps])
    calls = tuple(HeadCall(one.call, one.log_sum_exp) for one in maps) if vectors else None
    layer = LayerMaps.from_weights("layer 0", exact, None, np.tri(len(TOKENS), dtype=bool), calls=calls)
    return View(f"text {seed}", "drawn", "self", AXIS, None, (layer,)), exact


def assert_printed(text, exact):
    """Assert that a number is printed with digits that are certain, or is marked as about the exact number."""
    number = float(text.removeprefix("≈ ").replace("−", "-"))
    mantissa, _, exponent = text.removeprefix("≈ ").partition("e")
    last = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    # The number errs by half a unit at most where two digits are printed, and its rounding adds as much.
    rough = 1.001 * last if mantissa.lstrip("0.").isdigit() and len(mantissa.lstrip("0.")) > 1 else 10 * abs(exact)
    assert abs(number - exact) <= (rough if text.startswith("≈") else 0.501 * last), (text, exact)


def cells(page):
    return page.locator(".questions tbody tr").evaluate_all(
        "all => all.map(row => [...row.cells].map(c => c.innerText))"
    )


@pytest.mark.parametrize("kind", ["rounded weights", "vectors", "small"])
def test_ranked_heads_have_weights_with_certain_digits(opened, tmp_path, kind):
    views = [drawn(seed, kind != "rounded weights") for seed in range(2)]
    path = export_html(Page.from_views([view for view, _ in views]), tmp_path / "a.html", small=kind == "small")
    shown = opened(f"{path.as_uri()}#layer=0&open=search&ask=doggy→the")
    shown.wait_for_selector(".questions tbody")
    listed = cells(shown)
    assert len(listed) == HEADS
    targets = [sum(find_phrase(AXIS, "the"), ())]
    for name, *numbers in listed:
        head = int(name.rsplit(" ", 1)[1])
        found = [
            merge(exact[head], [group], targets)[0, 0] for _, exact in views for group in find_phrase(AXIS, "doggy")
        ]
        for text, number in zip(numbers, [np.mean(found), min(found), max(found)], strict=False):
            assert_printed(text, number)
    digits = [re.sub(r"^[≈ 0.]+|e.*|\.", "", text) for _, *numbers in listed for text in numbers[:3]]
    assert len({len(text) for text in digits}) == 1, listed


def test_digits_of_a_sum_are_certain_in_the_list_in_the_headline_and_in_the_figure(opened, tmp_path):
    exact = np.zeros((1, 3, 4, 4))
    exact[:] = [[0.2, 0.3, 0.4, 0.1]] * 4
    exact[0, :, 0, 2:] = [[0.0581, 0.05686], [0.3333, 0.00151], [0.0003, 0.00015]]  # 0.11496, 0.33481, 0.00045
    path = export_html(Page.from_views(View.from_weights(exact, list("abcd"))), tmp_path / "a.html")
    shown = opened(f"{path.as_uri()}#layer=0&head=0&query=0&key=2&pin=1&frame=0-0,2-3&open=search&ask=%230→%232–3")
    shown.wait_for_selector(".questions tbody")
    # The list has two digits, because three are not certain in its first number, and 0.115 may be 0.11 or 0.12.
    assert [row[1] for row in cells(shown)] == ["≈ 0.33", "≈ 0.11", "0.00045"]
    assert shown.locator(".readout").first.text_content().endswith("frame: 0.115")
    with shown.expect_download() as waiting:
        shown.get_by_label("Save as SVG").click()
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", waiting.value.path().read_text("utf-8"))
    assert "Framed: “a” → “c d”: 0.115." in " ".join(texts)


@pytest.mark.parametrize("small", [False, True])
def test_vectors_of_a_pair_are_printed_with_certain_digits(opened, tmp_path, small):
    view, exact = drawn(5, True)
    shown = opened(export_html(Page.from_views(view), tmp_path / "a.html", small=small).as_uri())
    for query, key in ((8, 3), (10, 0), (5, 5)):
        visit(shown, f"layer=0&head=1&query={query}&key={key}&open=pair")
        shown.wait_for_selector(".questions tbody")
        pair, said = view.pair(0, 1, query, key), shown.locator("[data-question=pair] p").text_content()
        assert_printed(said.split("logit ")[1].split(" =")[0], pair.logit)
        assert_printed(said.split("; weight ")[1].removesuffix("."), exact[1, query, key])
        vectors = pair.query, pair.key, pair.product
        for label, vector in zip(shown.locator(".strip .quiet").all_text_contents(), vectors, strict=True):
            assert_printed(label.split("±")[1], np.abs(vector).max())
        for dimension, *numbers in cells(shown):
            for text, vector in zip(numbers, vectors, strict=True):
                assert_printed(text, vector[int(dimension)])


def test_lines_of_several_heads_name_weights_with_certain_digits(opened, tmp_path):
    view, exact = drawn(3, True)
    path = export_html(Page.from_views(view), tmp_path / "a.html", small=True)
    shown = opened(path.as_uri())
    shown.evaluate("location.hash = 'layer=0&head=0&query=8&key=5&how=lines&lined=0.0_0.1_0.2_0.3&pin=1'")
    shown.wait_for_selector(".between .badge")
    labels = shown.locator(".between .badge span:nth-child(2)").all_text_contents()
    assert len(labels) == HEADS
    for head, label in enumerate(labels):
        assert_printed(label.rsplit(": ", 1)[1].strip(), exact[head, 8, 5])


def test_differences_say_whether_their_last_digit_is_certain(opened, tmp_path):
    views = [drawn(seed, False) for seed in range(2)]
    page = Page.from_views([look.View.from_weights(exact[None], AXIS, name=view.name) for view, exact in views])
    shown = opened(export_html(page, tmp_path / "a.html").as_uri())
    signs = set()
    for query, key in np.argwhere(np.tri(len(TOKENS)))[::7].tolist():
        place = f"view=0&layer=0&head=0&query={query}&key={key}&compare=1&how=difference&mean=1"
        shown.evaluate("place => { location.hash = place; }", place)
        start = f"({query}) → "
        shown.wait_for_function(
            "([from, to]) => { const said = document.querySelector('.readout').textContent; "
            "return said.includes(from) && said.includes(to) && said.includes(' − '); }",
            arg=[start, f" ({key}): "],
        )
        said = shown.locator(".readout").first.text_content().rsplit(": ", 1)[1]
        first, second, sign = said.split(" ")[0], said.split(" ")[2], said.split(" ")[3]
        signs.add(sign)
        for text, (_, exact) in zip((first, second), views, strict=True):
            far = 0.501 if sign == "=" else 1.001
            decimals = len(text.partition("e")[0].partition(".")[2]) - int(text.partition("e")[2] or 0)
            assert abs(float(text) - exact[:, query, key].mean()) <= far * 10.0**-decimals, (said, query, key)
    assert signs == {"=", "≈"}


def test_a_weight_that_is_rounded_twice_is_not_certain(opened, tmp_path):
    weights = np.array([[[[0.06431, 0.5], [0, 0]]], [[[0.005247, 0.5], [0, 0]]]])
    page = Page.from_views(
        [View.from_weights(one[None], ["a", "b"], name=f"text {i}") for i, one in enumerate(weights)]
    )
    path = export_html(page, tmp_path / "a.html").as_uri()
    shown = opened(f"{path}#view=0&layer=0&head=0&query=0&key=0&compare=1&how=difference&pin=1")
    # 0.005247 is 0.00525 in the file, which is rounded to 0.0053.
    assert shown.locator(".readout").first.text_content() == "“a” (0) → “a” (0): 0.0643 − 0.0053 ≈ 0.0590"


def test_the_largest_weights_of_a_long_text_have_certain_digits(opened, tmp_path):
    query, key = np.random.default_rng(0).normal(size=(2, 300, 8)).astype(np.float32) * 1.8
    view = arrays_view(query, key)
    exact = view.head(0, 0).weights((250, 251), (0, 300))[0]
    path = export_html(Page.from_views(view), tmp_path / "a.html", small=True)
    shown = opened(f"{path.as_uri()}#layer=0&head=0&query=250&key=3&pin=1")
    shown.wait_for_selector(".top tbody tr")
    rows = shown.locator(".top tbody tr").evaluate_all("all => all.map(row => [...row.cells].map(c => c.innerText))")
    assert len(rows) == 10
    for _, position, text in rows:
        assert_printed(text, exact[int(position)])


@pytest.mark.parametrize("small", [False, True])
def test_the_legend_names_the_largest_weight_with_certain_digits(opened, tmp_path, small):
    views = [drawn(seed, small) for seed in range(3)]
    path = export_html(Page.from_views([view for view, _ in views]), tmp_path / "a.html", small=small)
    shown = opened(path.as_uri())
    for number, (_, exact) in enumerate(views):
        for unit in ("tokens", "words"):
            visit(shown, f"view={number}&layer=0&head=2&unit={unit}")
            groups = group_tokens(AXIS, unit)
            text = shown.locator(".rule").first.text_content().rsplit("shown ", 1)[1].removesuffix(".")
            assert_printed(text, merge(exact[2], groups, groups).max())
