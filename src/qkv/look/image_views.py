"""Create attention views of images with a vision transformer of transformers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from qkv.core.extras import require_packages
from qkv.core.progress import Progress, track
from qkv.core.typing import Float, Num
from qkv.encoders.pretrained import without_progress_bars
from qkv.errors import DataError
from qkv.look.model_views import model as model_views
from qkv.look.text_model import model_folder
from qkv.look.views import View

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

__all__ = ["image_views", "open_image", "seen_picture"]


def image_views(
    folder: str | os.PathLike[str], paths: Sequence[str | os.PathLike[str]], *, progress: Progress | None = None
) -> list[View]:
    """Run a vision transformer on images, and return attention views whose tokens are the patches of the images.

    Of a model of texts and images, such as CLIP, the part for images runs. Nothing is downloaded, and no code in the
    folder is run.

    Args:
        folder: a folder of a model with its image processor, written by `save_pretrained`.
        paths: files of images, in a format that Pillow reads.
        progress: called after each image.

    Raises:
        DataError: the folder contains no model with an image processor, or a file is no image.
        MissingPackageError: transformers, torch or Pillow is not installed.
    """
    require_packages("attention maps of images need", "look", "transformers", "torch", "PIL")
    pictures = [(Path(path), open_image(Path(path))) for path in paths]
    processor, module = _load_vision_model(model_folder(folder))
    name = Path(folder).resolve().name
    views: list[View] = []
    for path, picture in track(pictures, "reading", progress):
        values = processor(images=picture, return_tensors="pt")["pixel_values"]
        seen = seen_picture(values[0].float().numpy(), processor)
        found = model_views(module, {"pixel_values": values}, name=path.name, picture=seen)
        views += [replace(view, model=name) for view in found]
    return views


def open_image(path: Path) -> Image:
    """Return the image of a file in red, green and blue.

    Raises:
        DataError: the file does not exist, or Pillow cannot read it.
    """
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


class _Processor(Protocol):
    """Interface of the image processors of transformers, of which `image_mean` and `image_std` may be missing."""

    image_mean: Sequence[float]
    image_std: Sequence[float]

    def __call__(self, *, images: Image, return_tensors: str) -> dict[str, torch.Tensor]: ...


def _load_vision_model(folder: Path) -> tuple[_Processor, torch.nn.Module]:
    from transformers import AutoImageProcessor, AutoModel

    options: dict[str, bool] = {"local_files_only": True, "trust_remote_code": False}
    try:
        with without_progress_bars():
            load = cast("Callable[..., _Processor]", AutoImageProcessor.from_pretrained)
            processor = load(str(folder), backend="pil", **options)
            module = AutoModel.from_pretrained(str(folder), use_safetensors=True, **options).eval()
    except (OSError, ValueError, KeyError, ImportError) as error:
        first = str(error).strip().split("\n")[0].rstrip(". ")
        raise DataError(
            f"folder must contain a vision model and its image processor, got {str(folder)!r}, but loading it failed: "
            f"{first}. Save both there with save_pretrained."
        ) from None
    return processor, getattr(module, "vision_model", module)


def seen_picture(values: Float[np.ndarray, "3 height width"], processor: object) -> Num[np.ndarray, "height width 3"]:
    """Return the image that a model sees, without the normalization of its processor."""
    mean, deviation = (
        np.reshape(getattr(processor, name, None) or default, (-1, 1, 1))
        for name, default in (("image_mean", 0.0), ("image_std", 1.0))
    )
    shown = values * deviation + mean if getattr(processor, "do_normalize", True) else values
    return np.ascontiguousarray(np.rint(np.clip(shown, 0, 1) * 255).astype(np.uint8).transpose(1, 2, 0))
