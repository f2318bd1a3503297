"""Places of the image tokens of a text in the image, as the processors of transformers lay them out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from qkv.core.typing import Bool

if TYPE_CHECKING:
    import torch

__all__ = ["ImagePatches", "find_patches"]


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

    Args:
        image: which tokens of the text are image tokens.
        config: the configuration of the model.
        encoded: the output of the processor for a text with one image.

    Example:
        >>> find_patches(np.array([False, True, True, True, True, False]), None, {}).patches
        (-1, 0, 1, 2, 3, -1)
    """
    vision = getattr(config, "vision_config", None)
    places = np.flatnonzero(image)
    if not len(places):
        return None
    if "image_grid_thw" in encoded:
        merged = int(getattr(vision, "spatial_merge_size", 1))
        _, rows, columns = (int(n) for n in encoded["image_grid_thw"][0])
        patch = getattr(vision, "patch_size", 1)
        side = merged * int(patch if isinstance(patch, int) else patch[0])
        return _place(image, places, (rows // merged, columns // merged), 0, side)
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    last = runs[-1]
    if math.isqrt(len(last)) ** 2 == len(last):
        return _place(image, last, (math.isqrt(len(last)),) * 2, -1 if len(runs) > 1 else 0)
    size, patch = getattr(vision, "image_size", None), getattr(vision, "patch_size", None)
    if len(runs) == 1 and isinstance(size, int) and isinstance(patch, int) and (size // patch) ** 2 < len(last):
        return _place(image, last[: (size // patch) ** 2], (size // patch,) * 2, 0)
    return None


def _place(
    image: Bool[np.ndarray, " tokens"], places: np.ndarray, grid: tuple[int, int], tile: int, side: int = 1
) -> ImagePatches | None:
    if grid[0] * grid[1] != len(places):
        return None
    patches = np.full(len(image), -1)
    patches[places] = np.arange(len(places))
    return ImagePatches(tuple(patches.tolist()), grid, tile, side)
