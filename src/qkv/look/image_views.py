"""Create attention views of images with a model of transformers: alone, or with texts of which they are a part.

The tokens are the patches of the images, or those of a text, whose image tokens are the patches.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from qkv.core.extras import require_packages
from qkv.core.progress import Progress, track
from qkv.core.typing import Bool, Float, Num
from qkv.encoders.pretrained import without_progress_bars
from qkv.errors import DataError, OptionError
from qkv.look.axis import Axis, Patches
from qkv.look.model_views import model as model_views
from qkv.look.predictions import Targets
from qkv.look.recorded_layers import call_module
from qkv.look.text_model import model_folder, token_axis
from qkv.look.text_roles import content_words
from qkv.look.token_text import shortened
from qkv.look.views import ALL_HEADS, Opening, View

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from transformers import ProcessorMixin


def image_views(
    folder: str | os.PathLike[str],
    paths: Sequence[str | os.PathLike[str]],
    texts: Sequence[str] = (),
    *,
    progress: Progress | None = None,
) -> list[View]:
    """Run a vision transformer on images, or a model of texts and images on each text with its image.

    The tokens of a vision transformer are the patches of the images; of a model of texts and images without texts, such
    as CLIP, the part for images runs. With texts, the tokens are those of the processor of the model; in a text without
    its image token, the image comes first. Nothing is downloaded, and no code in the folder is run.

    Args:
        folder: a folder of a model with its processor, such as ViT, or with texts LLaVA, Idefics or Gemma 3.
        paths: files of images; with texts, one for each text, or one for all.
        texts: the texts.
        progress: called after each image or text.

    Raises:
        DataError: the folder contains no such model with its processor, or a file is no image.
        OptionError: the numbers of images and texts differ.
        MissingPackageError: transformers, torch or Pillow is not installed.
    """
    require_packages("attention maps of images need", "look", "transformers", "torch", "PIL")
    if texts and len(paths) not in (1, len(texts)):
        raise OptionError(
            f"paths must be as many as texts, or one, got {len(paths)} images for {len(texts)} texts. Pass one image "
            "for each text, in the same order (--image on the command line)."
        )
    pictures = [open_image(Path(path)) for path in paths] * (len(texts) // len(paths) if texts else 1)
    names = [shortened(text, 80) for text in texts] or [Path(path).name for path in paths]
    processor, module = _load(model_folder(folder), bool(texts))
    model = Path(folder).resolve().name
    views: list[View] = []
    for i, picture in enumerate(track(pictures, "reading", progress)):
        if texts:
            encoded = processor(images=picture, text=text_with_image(processor, texts[i]), return_tensors="pt")
            found = _views(module, processor, encoded, picture, names[i])
        else:
            values = processor(images=picture, return_tensors="pt")["pixel_values"]
            part = cast("torch.nn.Module", getattr(module, "vision_model", module))
            seen = seen_picture(values[0].float().numpy(), processor)
            found = model_views(part, {"pixel_values": values}, name=names[i], picture=seen)
        views += [replace(view, model=model) for view in found]
    return views


def open_image(path: Path) -> Image:
    """Return the image of a file in red, green and blue."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except FileNotFoundError:
        raise DataError(f"the image must be an existing file, got {str(path)!r}. Check the path.") from None
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(
            f"the image must be in a format that Pillow reads, got {str(path)!r}, but reading failed: {error}. Save it "
            "as PNG or JPEG."
        ) from None


def _load(folder: Path, texts: bool) -> tuple[ProcessorMixin, torch.nn.Module]:
    """Load a vision model, or a model of texts and images, with its processor."""
    from transformers import AutoImageProcessor, AutoModel, AutoModelForImageTextToText, AutoProcessor

    options: dict[str, bool] = {"local_files_only": True, "trust_remote_code": False}
    noun, remedy = "a vision model and its image processor", ""
    if texts:
        noun, remedy = "a model of texts and images with its processor", ", or omit the texts for a vision transformer"
    read: Any = (AutoProcessor if texts else AutoImageProcessor).from_pretrained
    load: Any = (AutoModelForImageTextToText if texts else AutoModel).from_pretrained
    try:
        with without_progress_bars():
            processor = read(str(folder), backend="pil", **options)
            module = load(str(folder), use_safetensors=True, **options).eval()
        if texts and not hasattr(processor, "tokenizer"):
            raise TypeError("its processor has no tokenizer")
    except (OSError, ValueError, KeyError, ImportError, TypeError) as error:
        first = str(error).strip().split("\n")[0].rstrip(". ")
        raise DataError(
            f"folder must contain {noun}, got {str(folder)!r}, but loading it failed: {first}. Save both there with "
            f"save_pretrained{remedy}."
        ) from None
    return processor, module


def seen_picture(values: Float[np.ndarray, "3 height width"], processor: object) -> Num[np.ndarray, "height width 3"]:
    """Return the image that a model sees, without the normalization of its processor."""
    mean, deviation = (
        np.reshape(getattr(processor, name, None) or default, (-1, 1, 1))
        for name, default in (("image_mean", 0.0), ("image_std", 1.0))
    )
    shown = values * deviation + mean if getattr(processor, "do_normalize", True) else values
    return np.ascontiguousarray(np.rint(np.clip(shown, 0, 1) * 255).astype(np.uint8).transpose(1, 2, 0))


class ImagePatches(NamedTuple):
    """Places of the tokens of one image.

    Attributes:
        patches: for each token of the text, its patch, counted row by row; −1 for other tokens.
        grid: numbers of rows and columns of patches.
        tile: index of the tile of the processor's output that shows the whole image.
        side: number of pixels of a side of the image that a token covers, if the processor returns no image.
    """

    patches: tuple[int, ...]
    grid: tuple[int, int]
    tile: int = 0
    side: int = 1


def find_patches(
    image: Bool[np.ndarray, " tokens"], config: object, encoded: Mapping[str, torch.Tensor]
) -> ImagePatches | None:
    """Return the places of the image tokens in the image, or None if their layout is unknown.

        Qwen2-VL, Qwen2.5-VL, Qwen3-VL …       rows and columns from `image_grid_thw`, in cells of merged patches
        LLaVA, PaliGemma, Gemma 3 …            one run of n × n tokens
        Idefics 3, SmolVLM with tiles          several runs of n × n tokens; the last is the whole image
        LLaVA-NeXT, LLaVA-OneVision            one run that begins with the n × n tokens of the whole image

    Example:
        >>> find_patches(np.array([False, True, True, True, True, False]), None, {}).patches
        (-1, 0, 1, 2, 3, -1)
    """
    vision = getattr(config, "vision_config", None)
    places, tile, side = np.flatnonzero(image), 0, 1
    if not len(places):
        return None
    size, patch = (getattr(vision, name, None) for name in ("image_size", "patch_size"))
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    if "image_grid_thw" in encoded:
        merged = int(getattr(vision, "spatial_merge_size", 1))
        rows, columns = (int(n) // merged for n in encoded["image_grid_thw"][0][1:])
        side = merged * int(patch[0] if isinstance(patch, (tuple, list)) else patch or 1)
    elif math.isqrt(len(runs[-1])) ** 2 == len(runs[-1]):
        places, tile = runs[-1], -1 if len(runs) > 1 else 0
        rows = columns = math.isqrt(len(places))
    elif len(runs) == 1 and isinstance(size, int) and isinstance(patch, int) and (size // patch) ** 2 < len(places):
        rows = columns = size // patch
        places = places[: rows * columns]
    else:
        return None
    if rows * columns != len(places):
        return None
    patches = np.full(len(image), -1)
    patches[places] = np.arange(len(places))
    return ImagePatches(tuple(patches.tolist()), (rows, columns), tile, side)


def text_with_image(processor: ProcessorMixin, text: str) -> str:
    """Return a text with the image token of a processor: before the text, if the text has none."""
    token = getattr(processor, "image_token", None)
    token = getattr(token, "content", token)
    if not isinstance(token, str) or token in text:
        return text
    marks = ["<|vision_start|>", "<|vision_end|>"]
    known = set(processor.tokenizer.get_vocab())
    return f"{marks[0]}{token}{marks[1]}{text}" if known.issuperset(marks) else f"{token}{text}"


def _views(
    module: torch.nn.Module, processor: ProcessorMixin, encoded: Mapping[str, torch.Tensor], picture: Image, name: str
) -> list[View]:
    """Return the view of the text with the image, and that of the image alone if its patches are known."""
    import torch

    numbers, inputs = encoded["input_ids"][0], dict(encoded)
    image = (numbers == _image_token(module, processor)).cpu().numpy()
    found = find_patches(image, getattr(module, "config", None), encoded)
    axis = token_axis(processor.tokenizer, {"input_ids": encoded["input_ids"]})
    seen = None if found is None else _seen(encoded, found, processor, picture)
    axis = axis if found is None else _with_patches(axis, found, seen)
    views: list[View] = []
    for view in model_views(module, inputs, queries=axis, name=name, picture=seen):
        if len(view.queries.tokens) != len(axis.tokens):
            if view.queries.patches is not None:
                views.append(replace(view, name=f"{name} (image)"))
            continue
        with torch.no_grad():
            output = call_module(module, inputs)
        if getattr(output, "logits", None) is not None and view.live is not None:
            # Tokens of the image are no targets.
            targets = np.append(np.where(image[1:], -1, numbers[1:].cpu().numpy()), -1)
            live = replace(view.live, targets=Targets("next", targets, processor.tokenizer))
            view = replace(view, live=live, predictions=live.predict(output))
        views.insert(0, replace(view, opening=_opening(view)))
    return views


def _image_token(module: torch.nn.Module, processor: object) -> int:
    config = getattr(module, "config", None)
    for owner, attribute in ((config, "image_token_id"), (config, "image_token_index"), (processor, "image_token_id")):
        number = getattr(owner, attribute, None)
        if isinstance(number, int):
            return number
    raise DataError(
        f"the model must state its image token, got {type(module).__name__} without image_token_id. "
        "Use a model whose image becomes tokens of the text."
    )


def _with_patches(axis: Axis, found: ImagePatches, pixels: Num[np.ndarray, "height width 3"] | None) -> Axis:
    """Return the tokens of a text, of which those of the image are named by row and column of their patch."""
    columns = found.grid[1]
    last = max(axis.words, default=-1) + 1
    rows = []
    for *own, patch in zip(axis.tokens, axis.pieces, axis.words, axis.special, found.patches, strict=True):
        name = f"{patch // columns},{patch % columns}"
        rows.append(own if patch < 0 else [name, name, last + patch, False])
    tokens, pieces, words, special = zip(*rows, strict=True)
    return Axis(tokens, pieces, words, special, patches=Patches(found.grid, found.patches, pixels))


def _seen(
    encoded: Mapping[str, torch.Tensor], found: ImagePatches, processor: ProcessorMixin, picture: Image
) -> Num[np.ndarray, "height width 3"]:
    """Return the image as the model sees it: without normalization, resized and cropped by the processor."""
    values = encoded["pixel_values"].float().cpu().numpy()
    if values.ndim < 4:
        # The processor has cut the image into patches, of which each token covers several.
        rows, columns = found.grid
        return np.asarray(picture.resize((columns * found.side, rows * found.side)), np.uint8)
    values = values.reshape(-1, *values.shape[-3:])
    return seen_picture(values[found.tile], processor.image_processor)


def _opening(view: View) -> Opening | None:
    """Return the head in which the last content word gives the largest weight to a patch."""
    axis = view.queries
    places = np.array(axis.patches.places if axis.patches else [-1] * len(axis.tokens))
    patches = np.flatnonzero(places >= 0)
    words = [word for word in content_words(axis) if places[word[-1]] < 0]
    query = words[-1][-1] if words else len(axis.tokens) - 1
    patches = patches[patches <= query]
    if not len(patches):
        return view.opening
    own = [(i, len(layer.heads)) for i, layer in enumerate(view.layers) if layer.name != ALL_HEADS]
    heads = [(i, head) for i, count in own for head in range(count)]
    layer, head = max(heads, key=lambda at: view.weights(*at)[query, patches].max())
    return Opening(layer, head, query, int(patches[view.weights(layer, head)[query, patches].argmax()]))
