"""Models of texts and images: their image tokens stand for the right parts of the picture."""

import numpy as np
import pytest

from qkv.errors import DataError, OptionError
from qkv.look.axis import Axis, Patches
from qkv.look.html_export import export_html
from qkv.look.image_views import find_patches
from qkv.look.page import Page
from qkv.look.server import ServedPage, serve_in_thread
from qkv.look.views import View

from .chromium import needs_chromium

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
PIL = pytest.importorskip("PIL.Image")

SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT = {**SMALL, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 40}


def tokenizer(*special):
    from tokenizers import Tokenizer, models, pre_tokenizers

    names = ["<unk>", "<pad>", "<s>", *special, "what", "does", "the", "dog", "hold"]
    plain = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    marks = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "<s>"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, additional_special_tokens=list(special), **marks
    )


def llava():
    words = tokenizer("<image>")
    config = transformers.LlavaConfig(
        vision_config={"model_type": "clip_vision_model", **SMALL, "image_size": 12, "patch_size": 4},
        text_config={"model_type": "llama", **TEXT}, image_token_id=3, vision_feature_layer=-1, image_seq_length=9,
    )  # fmt: skip
    images = transformers.CLIPImageProcessorPil(size={"height": 12, "width": 12}, do_center_crop=False)
    processor = transformers.LlavaProcessor(
        images, words, patch_size=4, vision_feature_select_strategy="default", num_additional_image_tokens=1
    )
    return transformers.LlavaForConditionalGeneration(config), processor


def llava_next():
    words = tokenizer("<image>")
    config = transformers.LlavaNextConfig(
        vision_config={"model_type": "clip_vision_model", **SMALL, "image_size": 12, "patch_size": 4},
        text_config={"model_type": "llama", **TEXT}, image_token_id=3, vision_feature_layer=-1,
        image_grid_pinpoints=[[12, 24], [24, 12], [24, 24]],
    )  # fmt: skip
    images = transformers.LlavaNextImageProcessorPil(
        size={"shortest_edge": 12},
        crop_size={"height": 12, "width": 12},
        image_grid_pinpoints=[[12, 24], [24, 12], [24, 24]],
    )
    processor = transformers.LlavaNextProcessor(
        images, words, patch_size=4, vision_feature_select_strategy="default", num_additional_image_tokens=1
    )
    return transformers.LlavaNextForConditionalGeneration(config), processor


def paligemma():
    words = tokenizer("<image>")
    config = transformers.PaliGemmaConfig(
        vision_config={"model_type": "siglip_vision_model", **SMALL, "image_size": 12, "patch_size": 4},
        text_config={"model_type": "gemma", **TEXT}, image_token_id=3, projection_dim=16,
    )  # fmt: skip
    images = transformers.SiglipImageProcessorPil(size={"height": 12, "width": 12})
    images.image_seq_length = 9
    return transformers.PaliGemmaForConditionalGeneration(config), transformers.PaliGemmaProcessor(images, words)


def idefics3():
    marks = ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]
    words = tokenizer(*marks, *(f"<row_{i}_col_{j}>" for i in (1, 2) for j in (1, 2)))
    config = transformers.Idefics3Config(
        vision_config={**SMALL, "image_size": 16, "patch_size": 4}, text_config={"model_type": "llama", **TEXT},
        image_token_id=3, scale_factor=2,
    )  # fmt: skip
    images = transformers.Idefics3ImageProcessorPil(size={"longest_edge": 32}, max_image_size={"longest_edge": 16})
    processor = transformers.Idefics3Processor(images, words, image_seq_len=4)
    return transformers.Idefics3ForConditionalGeneration(config), processor


def gemma3():
    marks = ["<image>", "<start_of_image>", "<end_of_image>"]
    words = tokenizer(*marks)
    words.image_token, words.boi_token, words.eoi_token = marks
    words.image_token_id, words.boi_token_id, words.eoi_token_id = 3, 4, 5
    config = transformers.Gemma3Config(
        vision_config={"model_type": "siglip_vision_model", **SMALL, "image_size": 24, "patch_size": 4,
                       "vision_use_head": False},
        text_config={"model_type": "gemma3_text", **TEXT, "sliding_window": 8}, mm_tokens_per_image=9,
        image_token_index=3, boi_token_index=4, eoi_token_index=5,
    )  # fmt: skip
    images = transformers.Gemma3ImageProcessorPil(size={"height": 24, "width": 24})
    processor = transformers.Gemma3Processor(images, words, image_seq_length=9)
    model = transformers.Gemma3ForConditionalGeneration(config)
    with torch.no_grad():  # zeros without training
        model.model.multi_modal_projector.mm_input_projection_weight.normal_()
    return model, processor


class SmolProcessor:
    """The processor of SmolVLM without its part for videos, which requires torchvision and num2words."""

    def __init__(self):
        marks = ["<image>", "<fake_token_around_image>", "<global-img>"]
        self.tokenizer = tokenizer(*marks, *(f"<row_{i}_col_{j}>" for i in (1, 2) for j in (1, 2)))
        self.image_processor = transformers.SmolVLMImageProcessorPil(
            size={"longest_edge": 32}, max_image_size={"longest_edge": 16}
        )
        self.image_token = "<image>"

    def __call__(self, images, text, return_tensors):
        from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

        pixels = self.image_processor(images=[[images]], return_row_col_info=True, return_tensors=return_tensors)
        (rows,), (columns,) = (np.asarray(pixels.pop(name)).tolist() for name in ("rows", "cols"))
        tokens = get_image_prompt_string(rows[0], columns[0], 4, "<fake_token_around_image>", "<image>", "<global-img>")
        whole = text.replace(self.image_token, tokens)
        return {**self.tokenizer(whole, return_tensors=return_tensors), **pixels}


def smolvlm():
    config = transformers.SmolVLMConfig(
        vision_config={**SMALL, "image_size": 16, "patch_size": 4}, text_config={"model_type": "llama", **TEXT},
        image_token_id=3, scale_factor=2,
    )  # fmt: skip
    return transformers.SmolVLMForConditionalGeneration(config), SmolProcessor()


class QwenProcessor:
    """The processor of Qwen2.5-VL, of which transformers builds the part for videos with torchvision only."""

    def __init__(self):
        self.tokenizer = tokenizer("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
        self.image_processor = transformers.Qwen2VLImageProcessorPil(
            patch_size=4, merge_size=2, size={"shortest_edge": 64, "longest_edge": 4096}
        )
        self.image_token = "<|image_pad|>"

    def __call__(self, images, text, return_tensors):
        pixels = self.image_processor(images=images, return_tensors=return_tensors)
        count = int(pixels["image_grid_thw"].prod()) // 4
        whole = text.replace(self.image_token, self.image_token * count)
        return {**self.tokenizer(whole, return_tensors=return_tensors), **pixels}


def qwen():
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    config = transformers.Qwen2_5_VLConfig(
        text_config={**TEXT, "rope_parameters": rope},
        vision_config={
            "hidden_size": 16, "out_hidden_size": 16, "depth": 2, "num_heads": 2, "intermediate_size": 16,
            "patch_size": 4, "spatial_merge_size": 2, "window_size": 16, "fullatt_block_indexes": [1],
        },
        image_token_id=4, video_token_id=6, vision_start_token_id=3, vision_end_token_id=5,
    )  # fmt: skip
    return transformers.Qwen2_5_VLForConditionalGeneration(config), QwenProcessor()


RARE = (llava_next, paligemma, gemma3, idefics3, smolvlm)
KINDS = [llava, *(pytest.param(kind, marks=pytest.mark.long) for kind in RARE), qwen]


def built(kind):
    torch.manual_seed(0)
    model, processor = kind()
    return model.eval(), processor


def noise():
    return PIL.fromarray(np.random.default_rng(0).integers(0, 255, (24, 40, 3), dtype=np.uint8))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_each_patch_is_the_token_whose_embedding_depends_on_its_pixels(kind):
    from qkv.look.image_views import _views, text_with_image

    model, processor = built(kind)
    text = text_with_image(processor, "the dog")
    encoded = processor(images=noise(), text=text, return_tensors="pt")
    (view, *_) = _views(model, processor, encoded, noise(), "dog")
    rows, columns = view.queries.patches.grid
    assert sorted(patch for patch in view.queries.patches.places if patch >= 0) == list(range(rows * columns))
    assert view.queries.tokens[-2:] == ("the", "dog")
    # The layers between pixels and text would mix the patches.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in ("vision", "visual")) and any(
                x in name for x in ("out_proj", "attn.proj", "fc2", "down_proj")
            ):
                parameter.mul_(0.01)
    language = model.get_decoder() if hasattr(model, "get_decoder") else model.model.language_model
    embeddings = []
    hook = language.register_forward_pre_hook(
        lambda _, args, kwargs: embeddings.append(kwargs["inputs_embeds"][0]), with_kwargs=True
    )

    def embed(picture):
        with torch.no_grad():
            model(**processor(images=picture, text=text, return_tensors="pt"))
        return embeddings.pop()

    before = embed(noise())
    for patch in (0, columns - 1, columns, rows * columns - 1):
        pixels = np.asarray(noise()).copy()
        row, column = divmod(patch, columns)
        middle = int((row + 0.5) / rows * 24), int((column + 0.5) / columns * 40)
        pixels[middle[0] - 2 : middle[0] + 2, middle[1] - 2 : middle[1] + 2] = (
            255 - pixels[middle[0] - 2 : middle[0] + 2, middle[1] - 2 : middle[1] + 2]
        )
        change = (embed(PIL.fromarray(pixels)) - before).norm(dim=-1).numpy()
        change[np.array(view.queries.patches.places) < 0] = 0
        assert view.queries.patches.places[int(change.argmax())] == patch
    hook.remove()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_the_weights_of_the_text_are_those_of_the_eager_model(kind):
    from qkv.look.image_views import _views, text_with_image

    model, processor = built(kind)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    encoded = processor(images=noise(), text=text_with_image(processor, "what does the dog hold"), return_tensors="pt")
    view, *images = _views(model, processor, encoded, noise(), "dog")
    model.set_attn_implementation("eager")
    with torch.no_grad():
        plain = model(**encoded, output_attentions=True)
    for layer, weights in enumerate(plain.attentions):
        shown = np.stack([view.weights(layer, head) for head in range(2)])
        assert np.allclose(shown, weights[0], rtol=6e-3, atol=1e-6)
    best = plain.logits[0].softmax(-1).max(-1)
    assert np.allclose(view.predictions.probabilities[:, 0], best.values, atol=1e-5)
    assert view.opening.query == len(view.queries.tokens) - 1
    assert view.queries.patches.places[view.opening.key] >= 0
    assert view.image.shape[2] == 3
    assert len(images) == (kind in (llava, paligemma, gemma3))
    # An ablated head changes the predictions, as in a text.
    effect = view.effect({(0, 0): 0.0})
    assert effect.loss is not None
    assert (effect.divergence > 0).any()


@pytest.mark.filterwarnings("ignore")
def test_a_folder_is_read_with_its_processor_and_its_images(tmp_path):
    from qkv.look.image_views import image_views

    model, processor = built(llava)
    model.save_pretrained(tmp_path / "small")
    processor.save_pretrained(tmp_path / "small")
    noise().save(tmp_path / "noise.png")
    pictures = [tmp_path / "noise.png"]
    views = image_views(tmp_path / "small", pictures, ["the dog", "does <image> hold"])
    assert [view.name for view in views] == [
        "the dog",
        "the dog (image)",
        "does <image> hold",
        "does <image> hold (image)",
    ]
    assert views[0].queries.tokens[:2] == ("0,0", "0,1")
    assert views[2].queries.tokens[:2] == ("does", "0,0")
    assert views[0].model == "small"
    with pytest.raises(OptionError, match="2 images for 3 texts"):
        image_views(tmp_path / "small", pictures * 2, ["a", "b", "c"])
    transformers.BertConfig(**SMALL).save_pretrained(tmp_path / "bert")
    with pytest.raises(DataError, match="texts and images"):
        image_views(tmp_path / "bert", pictures, ["the dog"])


def test_runs_that_are_no_square_have_no_places():
    assert find_patches(np.array([True] * 5), None, {}) is None
    assert find_patches(np.array([False]), None, {}) is None


@needs_chromium
def test_the_picture_shows_the_weights_of_tokens_in_the_middle_of_a_text(opened, tmp_path):
    tokens = ("see", "0,0", "0,1", "1,0", "1,1", "dog")
    patches = Patches((2, 2), (-1, 0, 1, 2, 3, -1), np.full((8, 8, 3), 200, np.uint8))
    axis = Axis(tokens, tokens, tuple(range(6)), (False,) * 6, patches=patches)
    weights = np.full((1, 1, 6, 6), 1e-3)
    weights[..., 3] = 0.995  # patch 1,0
    view = View.from_weights(weights, axis, name="dog")
    brightness = """() => {
        const canvas = document.querySelector("canvas.picture");
        const pen = canvas.getContext("2d");
        const at = (x, y) => pen.getImageData(x * canvas.width, y * canvas.height, 1, 1).data[0];
        return [at(0.25, 0.25), at(0.75, 0.25), at(0.25, 0.75), at(0.75, 0.75)];
    }"""
    export_html(Page.from_views(view), tmp_path / "dog.html")
    with serve_in_thread(ServedPage(page=Page.from_views(view))) as address:
        for page in (opened(f"{address}#query=5&key=3"), opened(f"{(tmp_path / 'dog.html').as_uri()}#query=5&key=3")):
            page.wait_for_function("() => Number(document.querySelector('canvas.picture').dataset.drawn) > 0")
            shown = page.evaluate(brightness)
            assert shown[2] == 200
            assert max(shown[0], shown[1], shown[3]) < 60
            page.locator("canvas.picture").first.click(position={"x": 5, "y": 5})
            assert "0,0" in page.locator(".readout").first.text_content()
