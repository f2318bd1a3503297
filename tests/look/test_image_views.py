"""Vision transformers: their image processor, and the weights on the image in Chromium."""

import json

import numpy as np
import pytest

from qkv.errors import DataError
from qkv.look.axis import Axis
from qkv.look.html_export import export_html
from qkv.look.page import Page
from qkv.look.server import ServedPage, serve_in_thread
from qkv.look.views import View

from .chromium import needs_chromium

RGB = np.zeros((12, 8, 3), np.uint8)
RGB[..., 0] = np.arange(12)[:, None] * 20
RGB[..., 1] = np.arange(8) * 30


def painted():
    """A view of 3 × 2 patches after a class token; the tokens attend to patch 3, but patch 0 attends to patch 5."""
    weights = np.full((1, 1, 7, 7), 1e-4)
    weights[0, 0, :, 4] = 1 - 6e-4
    weights[0, 0, 1] = [0, 0, 0, 0, 0, 0, 1]
    return View.from_weights(weights, Axis.from_patches(3, 2, 1, RGB), name="image")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2, image_size=12, patch_size=4,
        initializer_range=0.5,
    )  # fmt: skip
    place = tmp_path_factory.mktemp("models") / "vit"
    transformers.ViTModel(config).save_pretrained(place)
    processor = {
        "image_processor_type": "ViTImageProcessor", "do_normalize": True, "do_rescale": True, "do_resize": True,
        "image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.2, 0.3], "rescale_factor": 1 / 255,
        "resample": 0, "size": {"height": 12, "width": 12},
    }  # fmt: skip
    (place / "preprocessor_config.json").write_text(json.dumps(processor))
    return place


def test_the_image_is_the_one_that_the_model_sees(folder, tmp_path):
    from PIL import Image

    from qkv.look.image_views import image_views

    pixels = np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "noise.png")
    (view,) = image_views(folder, [tmp_path / "noise.png"])
    assert (view.name, view.model, view.queries.patches.grid) == ("noise.png", "vit", (3, 3))
    assert np.array_equal(view.image, pixels)
    assert [layer.name for layer in view.layers] == ["layer 0", "layer 1", "all heads"]


def test_files_that_are_no_images_are_refused(folder, tmp_path):
    from qkv.look.image_views import image_views

    (tmp_path / "no.png").write_text("no image")
    with pytest.raises(DataError, match="must be in a format that Pillow reads"):
        image_views(folder, [tmp_path / "no.png"])
    with pytest.raises(DataError, match="must be an existing file"):
        image_views(folder, [tmp_path / "missing.png"])
    with pytest.raises(DataError, match=r"config\.json"):
        image_views(tmp_path, [])


LIGHT = """(patch) => {
    const canvas = document.querySelector("canvas.picture");
    const x = ((patch % 2) + 0.5) / 2 * canvas.width, y = (Math.floor(patch / 2) + 0.5) / 3 * canvas.height;
    return [...canvas.getContext("2d").getImageData(x, y, 1, 1).data].slice(0, 3);
}"""


def assert_bright(page, bright):
    """Check that one patch has the colours of the image, and that the others are darker."""
    page.wait_for_timeout(50)  # the image is drawn in the next frame
    for patch in range(6):
        colour = np.array(page.evaluate(LIGHT, patch), float)
        # The centre of a patch is the corner of four pixels.
        row, column = 4 * (patch // 2), 4 * (patch % 2)
        wanted = RGB[row + 1 : row + 3, column + 1 : column + 3].reshape(-1, 3).astype(float)
        share = 1 if patch == bright else 0.22
        low, high = share * wanted.min(axis=0) - 3, share * wanted.max(axis=0) + (3 if patch == bright else 12)
        assert ((colour >= low) & (colour <= high)).all(), (patch, colour, low, high)


@needs_chromium
@pytest.mark.parametrize("exported", [False, True])
def test_the_weights_are_drawn_on_the_image(opened, tmp_path, exported):
    views = Page.from_views(painted())
    with serve_in_thread(ServedPage(page=views)) as address:
        page = opened(export_html(views, tmp_path / "image.html").as_uri() if exported else address)
        page.wait_for_function("() => document.querySelector('canvas.picture').dataset.drawn > 0")
        assert page.locator(".lead").text_content().startswith("Bright patches")
        assert not page.locator("canvas.lines").first.is_visible()
        assert_bright(page, 3)
        # A patch that is clicked becomes the query.
        box = page.locator("canvas.picture").first.bounding_box()
        page.mouse.click(box["x"] + 0.25 * box["width"], box["y"] + box["height"] / 6)
        assert page.locator("output").first.text_content().startswith("“0,0” (1)")
        assert_bright(page, 5)
        # Without special tokens, the patches are the same.
        page.get_by_label("Hide special tokens").check()
        page.wait_for_function("() => document.querySelectorAll('.tokens')[0].children.length === 6")
        page.mouse.click(box["x"] + 0.75 * box["width"], box["y"] + box["height"] / 6)
        assert page.locator("output").first.text_content().startswith("“0,1” (2)")
        assert_bright(page, 3)


@needs_chromium
def test_an_image_as_keys_only(opened):
    """Pooling by attention: one query, and the patches as keys."""
    weights = np.full((1, 1, 1, 6), 0.01)
    weights[..., 2] = 0.95
    view = View.from_weights(weights, ["query"], Axis.from_patches(3, 2, pixels=RGB))
    with serve_in_thread(ServedPage(page=Page.from_views(view))) as address:
        page = opened(address)
        page.wait_for_function("() => document.querySelector('canvas.picture').dataset.drawn > 0")
        assert_bright(page, 2)
        box = page.locator("canvas.picture").first.bounding_box()
        page.mouse.click(box["x"] + 0.75 * box["width"], box["y"] + box["height"] / 6)
        assert "“query” (0) → “0,1” (1)" in page.locator("output").first.text_content()
