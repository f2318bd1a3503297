"""The model: a text encoder, attention from phrases over captions to pictures, and an image encoder."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from qkv import nn
from qkv.masks import Lengths
from qkv.readouts import Readout

__all__ = ["WordsToPictures"]


class WordsToPictures(torch.nn.Module):
    """Attention with phrases as queries, captions as keys and pictures as values.

    Args:
        words: number of words, including padding.
        pixels: number of pixels of a picture.
        width: width of all vectors in between.

    Shapes:
        wordings `(n, longest)` -> vectors `(n, width)`; pictures `(k, pixels)` -> `(k, width)`
    """

    def __init__(self, words: int, pixels: int = 64, width: int = 32) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(words, width)
        self.reader = nn.LatentAttention(1, width, hidden=width)
        self.looking = nn.CrossAttention(
            width, value_width=pixels, maps=["shared", "value", "output"], query_key_norm="rms"
        )
        self.eye = torch.nn.Sequential(torch.nn.Linear(pixels, 64), torch.nn.GELU(), torch.nn.Linear(64, width))
        self.sharpness = torch.nn.Parameter(torch.tensor(2.0))

    def read(self, words: Tensor, lengths: Tensor) -> Tensor:
        """Return one vector for each wording."""
        read: Tensor = self.reader(self.words(words), mask=Lengths(lengths[:, None]))
        return read[:, 0]

    def look(self, asked: Tensor, captions: Tensor, pictures: Tensor, readouts: Sequence[Readout] = ()) -> Any:
        """Return the weighted mean of the pictures for each phrase, `(asked, width)`."""
        return self.looking(asked[None], captions[None], pictures[None], readouts=readouts)

    def compare(self, answers: Tensor, pictures: Tensor) -> Tensor:
        """Return the cosine of each output with each embedded picture, `(answers, pictures)`."""
        seen = torch.nn.functional.normalize(self.eye(pictures), dim=-1)
        return torch.nn.functional.normalize(answers, dim=-1) @ seen.T
