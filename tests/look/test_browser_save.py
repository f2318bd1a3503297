"""Figures that the page saves: text, fonts, size, colours and legend of PDF, SVG and PNG."""

import base64
import io
import re
import struct
import xml.etree.ElementTree as ElementTree
import zlib

import numpy as np
import pytest

from qkv.cli.look import save_export
from qkv.look.html_export import export_html
from qkv.look.page import Page
from qkv.look.server import ServedPage, serve_in_thread
from qkv.look.views import View

from .chromium import needs_chromium, redrawn, visit

pytest.importorskip("matplotlib")
pytestmark = needs_chromium

WORDS = ["when", "he", "Ωμέγα", "<b>", "字", "said", "a$"]
SVG = "{http://www.w3.org/2000/svg}"


def view(name="seven & one", seed=0):
    weights = np.tril(np.random.default_rng(seed).random((2, 3, 7, 7)) + 0.01)
    return View.from_weights(weights / weights.sum(axis=-1, keepdims=True), WORDS, name=name)


@pytest.fixture(scope="module")
def served():
    with serve_in_thread(ServedPage(page=Page.from_views([view(), view("other", 1)]))) as address:
        yield address


def save(page, kind, content="map", width=None):
    page.locator(".save select").nth(0).select_option(content)
    if width is not None:
        page.get_by_label("Width in inches").fill(str(width))
    with page.expect_download() as waiting:
        page.get_by_label(f"Save as {kind}").click()
    return waiting.value.path().read_bytes()


def texts_of_svg(content):
    return [element.text for element in ElementTree.fromstring(content).iter(f"{SVG}text")]


def printed(page, content="map", width=None):
    """Return the PDF file that the browser writes of a figure, and the texts and images of its one page."""
    page.locator(".save select").nth(0).select_option(content)
    if width is not None:
        page.get_by_label("Width in inches").fill(str(width))
    page.get_by_label("Save as PDF").click()
    page.wait_for_function(
        "() => document.querySelector('iframe.printed')?.contentDocument.title.startsWith('attention')"
    )
    frame = page.locator("iframe.printed").element_handle().content_frame()
    rules = frame.evaluate("[...document.adoptedStyleSheets[0].cssRules].map((rule) => rule.cssText).join('')")
    svg = frame.evaluate("document.querySelector('svg').outerHTML")
    paper = page.context.new_page()
    paper.set_content(f"<style>{rules}</style>{svg}")
    pdf = paper.pdf(prefer_css_page_size=True)
    paper.close()
    assert len(re.findall(rb"/Type /Page\b", pdf)) == 1
    return pdf, frame.title(), svg


def images_of_svg(content):
    from matplotlib.image import imread

    found = ElementTree.fromstring(content).iter(f"{SVG}image")
    return [imread(io.BytesIO(base64.b64decode(one.get("href").split(",")[1]))) for one in found]


def test_a_map_is_saved_as_pdf_with_truetype_text_its_cells_and_a_colour_bar(opened, served):
    page = opened(f"{served}#view=0&layer=1&head=2&query=5&key=1&pin=1")
    pdf, title, svg = printed(page)
    assert title == "attention-1-2"
    assert b"/Type3" not in pdf
    assert b"/CIDFontType2" in pdf
    assert re.search(rb"/MediaBox \[0 0 (\S+)", pdf)[1] == b"252"  # 3.5 inches
    texts = texts_of_svg(svg)
    for word in ["seven & one · layer 1, head 2", "query (attends)", "key (attended)", "weight", "masked"]:
        assert word in texts
    # Each token stands at a row and at a column.
    assert all(texts.count(word) == 2 for word in WORDS)
    legend = " ".join(texts)
    assert "Colour: faint below " in legend
    assert f"Framed: “said” → “he”: {view().weights(1, 2)[5, 1]:#.3g}." in legend
    assert min(float(size) for size in re.findall(r'font-size="([\d.]+)"', svg)) >= 7.5
    cells, bar = (np.rint(255 * image[..., :3]).astype(int) for image in images_of_svg(svg))
    cells = cells[len(cells) // 14 :: len(cells) // 7, len(cells) // 14 :: len(cells) // 7]
    assert cells.shape == (7, 7, 3)
    shown = view().weights(1, 2)
    grey = (cells == 222).all(axis=-1)
    assert grey.tolist() == (~np.tri(7, dtype=bool)).tolist()
    assert [bar[0, 0].tolist(), bar[-1, 0].tolist()] == [[3, 28, 82], [255, 255, 255]]
    darkness = 765 - cells.sum(axis=-1)
    order = np.argsort(shown[~grey], kind="stable")
    assert (np.diff(darkness[~grey][order]) >= -1).all()


@pytest.mark.parametrize(
    ("content", "width"), [("map", 3.5), pytest.param("grid", 7.2, marks=pytest.mark.long), ("grid", 2.0)]
)
def test_svg_and_png_have_the_width_the_labels_and_the_legend(opened, served, content, width):
    page = opened(f"{served}#view=0")
    svg = save(page, "SVG", content, width).decode()
    root = ElementTree.fromstring(svg)
    assert root.get("width") == f"{width:g}in"
    texts = texts_of_svg(svg)
    assert {"weight", "masked"} <= set(texts)
    assert "faint below" in " ".join(texts)
    if content == "map":
        assert all(texts.count(word) == 2 for word in WORDS)
        assert "key (attended)" in texts
    else:
        assert {"layer 0", "layer 1", "head", "0", "2"} <= set(texts)
        assert len(list(root.iter(f"{SVG}image"))) == 2 * 3 + 1
    # No text is cut off at the edges, as the browser measures it.
    margin = page.evaluate(
        """svg => {
            const root = new DOMParser().parseFromString(svg, "image/svg+xml").documentElement;
            document.body.append(root);
            const box = root.getBoundingClientRect();
            const boxes = [...root.querySelectorAll("text")].map((text) => text.getBoundingClientRect());
            root.remove();
            return Math.min(...boxes.flatMap((one) =>
                [one.left - box.left, box.right - one.right, one.top - box.top, box.bottom - one.bottom]));
        }""",
        svg,
    )
    assert margin > -0.5
    png = save(page, "PNG", content, width)
    across, _ = struct.unpack(">II", png[16:24])
    assert across == pytest.approx(width * 300, abs=1)
    assert png[37:41] == b"pHYs"
    assert struct.unpack(">IIB", png[41:50]) == (11811, 11811, 1)  # 300 pixels per inch
    assert zlib.crc32(png[37:50]) == struct.unpack(">I", png[50:54])[0]


def test_a_long_title_of_a_figure_is_broken_into_lines_and_not_shortened(opened):
    name = "the translator of German news texts, trained for twenty epochs, sentence seventeen"
    with serve_in_thread(ServedPage(page=Page.from_views([view(name)]))) as address:
        page = opened(address)
        for content in ("map", "grid"):
            assert name in " ".join(texts_of_svg(save(page, "SVG", content, 3.5)))


def test_maps_side_by_side_are_one_figure(opened, served):
    page = opened(served)
    page.get_by_label("Compare with").select_option("1")
    page.wait_for_function("() => document.querySelectorAll('canvas.map')[1].dataset.drawn > 0")
    texts = texts_of_svg(save(page, "SVG", "map", 7.2))
    assert texts.count("he") == 4
    assert texts.count("key (attended)") == 2
    assert texts.count("weight") == 1
    narrow = list(ElementTree.fromstring(save(page, "SVG", "map", 3.5)).iter(f"{SVG}text"))
    assert len({one.get("y") for one in narrow if one.text == "key (attended)"}) == 1
    ticks = sorted(float(one.get("y")) for one in narrow if re.fullmatch(r"[\d.]+", one.text))
    assert len(ticks) >= 3
    assert min(np.diff(ticks)) > 7  # points between the labels of the colour bar


def test_a_difference_is_saved_with_both_maps_in_its_title_legend_and_file_name(opened, served):
    page = opened(f"{served}#view=0&layer=0&head=1&compare=1&other=1,2&how=difference")
    with page.expect_download() as waiting:
        page.get_by_label("Save as SVG").click()
    assert waiting.value.suggested_filename == "attention-0-1-minus-text-2-1-2.svg"
    texts = texts_of_svg(waiting.value.path().read_bytes())
    # One column is too narrow for both, so the title has two lines.
    assert {"seven & one · layer 0, head 1", "minus other · layer 1, head 2", "difference"} <= set(texts)
    assert "weight" not in texts
    signs = "Blue: larger in the first map; orange: in the second."
    assert f"{signs} Orange cells from a tenth of the range on have a dash." in " ".join(texts)
    shapes = ElementTree.fromstring(waiting.value.path().read_bytes()).iter(f"{SVG}polygon")
    first, second = (one.weights(*head) for one, head in ((view(), (0, 1)), (view("other", 1), (1, 2))))
    ticks = [float(text.replace("−", "-")) for text in texts if re.fullmatch(r"−?0\.\d+", text)]
    assert sum(len(one.get("points").split()) == 2 for one in shapes) == (first - second < -0.1 * max(ticks)).sum() > 3
    wide = texts_of_svg(save(page, "SVG", "map", 7.2))
    assert "seven & one · layer 0, head 1 minus other · layer 1, head 2" in wide
    page.locator("select.view").select_option("map")
    page.wait_for_function("() => document.querySelectorAll('canvas.map')[1].dataset.drawn > 0")
    assert printed(page)[1] == "attention-0-1"


@pytest.mark.parametrize("shown", ["map", "lines", "two maps", "presentation"])
def test_the_browser_prints_the_figure_alone_on_one_page(opened, served, shown):
    page = opened(served if shown == "two maps" else f"{served}#view=0")
    if shown == "lines":
        page.locator("select.view").select_option("lines")
        page.wait_for_selector(".overlaid .lines")
    elif shown == "presentation":
        redrawn(page, lambda: page.keyboard.press("p"))
    for landscape in (False, True):
        assert len(re.findall(rb"/Type /Page\b", page.pdf(landscape=landscape))) == 1
    assert page.locator(".printed").count() == 0
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    visible = page.locator(".qkv-look > :visible").all()
    assert [one.get_attribute("class") for one in visible] == ["printed"]
    texts = page.locator(".printed text").all_text_contents()
    assert texts.count("字") == (4 if shown == "two maps" else 2)


def test_a_width_out_of_range_is_refused(opened, served):
    page = opened(served)
    page.get_by_label("Width in inches").fill("0.2")
    page.get_by_label("Save as PDF").click()
    page.wait_for_function("() => document.querySelector('.status').textContent.includes('between 1.5 and 50 inches')")


def test_an_exported_file_saves_pdf_without_a_server(opened, tmp_path):
    target = export_html(Page.from_views(view()), tmp_path / "page.html")
    page = opened(target.as_uri())
    svg = printed(page, "grid", 7.2)[2]
    assert "layer 1" in texts_of_svg(svg)
    assert len(images_of_svg(svg)) == 7
    visit(page, "dark=1")
    assert 'fill="#15181d"' in printed(page)[2]


def test_the_cells_of_a_saved_svg_have_sharp_edges_in_viewers_that_blend_pixels(opened, served):
    cells = images_of_svg(save(opened(f"{served}#view=0"), "SVG"))[0]
    side = cells.shape[0] // 7
    assert cells.shape[:2] == (7 * side, 7 * side)
    assert side > 100
    assert np.array_equal(cells, np.kron(cells[::side, ::side], np.ones((side, side, 1))))
    assert len(np.unique(cells[::side, ::side].reshape(-1, 4), axis=0)) > 10


HEBREW = ["ראה", "כלב", "שמח"]


def test_pairs_of_words_from_right_to_left_are_read_from_left_to_right(opened):
    weights = np.tri(3)[None, None] / np.arange(1, 4)[:, None]
    with serve_in_thread(ServedPage(page=Page.from_views([View.from_weights(weights, HEBREW)]))) as address:
        page = opened(f"{address}#query=2&key=0")
        # The places of the query and of the key in the sentence.
        left, right = page.locator("output").first.evaluate(
            """(output, words) => words.map((word) => {
                const node = document.createTreeWalker(output, NodeFilter.SHOW_TEXT).nextNode();
                const range = document.createRange(), start = node.data.indexOf(word);
                range.setStart(node, start);
                range.setEnd(node, start + word.length);
                return range.getBoundingClientRect().x;
            })""",
            [HEBREW[2], HEBREW[0]],
        )
        assert left < right
        assert set(HEBREW) <= set(texts_of_svg(printed(page)[2]))


def test_a_fragment_is_shown_by_a_page_whose_policy_forbids_everything(window, tmp_path):
    view = View.from_weights(np.eye(3)[None, None], ["a", "b", "c"], name="three words of a long text" * 9)
    path = tmp_path / "part.html"
    assert save_export(Page.from_views([view, view]), str(path), None, None, "single", fragment=True) == [path]
    page, refused = window.new_page(), []
    page.on("console", lambda said: refused.append(said.text))
    policy = "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'\">"
    page.goto("about:blank")
    page.set_content(f"{policy}<p>Text</p>{path.read_text()}")
    shown = page.get_by_role("img", name="Attention map of three words of")
    assert shown.count() == 2
    box = shown.first.bounding_box()
    assert (box["width"], box["height"]) == (600, 400)
    texts = shown.first.locator("text")
    ends = texts.evaluate_all("all => Math.max(...all.map((one) => one.getBoundingClientRect().right))")
    assert ends <= box["x"] + 600
    assert texts.first.text_content().endswith("… · layer 0, head 0")
    assert "  " not in shown.first.get_attribute("aria-label")
    assert {"0", "0.463", "1.00"} <= set(texts.all_text_contents())  # of the colour bar
    assert refused == []
    page.close()
