"""A small vision transformer of handwritten digits, which the gallery trains within seconds."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from qkv import nn
from qkv.core.extras import require_packages
from qkv.core.typing import Float, Int
from qkv.look.model_views import model, patch_axis
from qkv.look.views import View

__all__ = ["DigitTransformer", "digit_view", "train_digits"]

_SIDE, _PATCH, _WIDTH = 8, 2, 32
"""Pixels of a side of the pictures of scikit-learn and of a patch, and width of the layers."""
_TRAINED = 1500
"""Number of the 1,797 pictures that the model is trained on."""


class DigitTransformer(torch.nn.Module):
    """Vision transformer with two layers of four heads, a class token, and patches of 2 × 2 pixels.

        logits = W encoder([class, E patch_1, …, E patch_16] + positions)_class

    Source: Dosovitskiy et al. (2021), An image is worth 16x16 words, https://arxiv.org/abs/2010.11929.

    Shapes:
        pictures `(n, 64)` -> logits `(n, 10)`
    """

    def __init__(self) -> None:
        super().__init__()
        count = (_SIDE // _PATCH) ** 2
        self.embedding = torch.nn.Linear(_PATCH**2, _WIDTH)
        self.class_token = torch.nn.Parameter(torch.zeros(1, 1, _WIDTH))
        self.positions = torch.nn.Parameter(torch.randn(1, count + 1, _WIDTH))
        self.encoder = nn.Encoder(2, _WIDTH, 4, 2 * _WIDTH)
        self.output = torch.nn.Linear(_WIDTH, 10)

    def forward(self, pictures: Float[Tensor, "n 64"]) -> Float[Tensor, "n 10"]:
        """Return the logits of the ten digits."""
        side = _SIDE // _PATCH
        patches = pictures.reshape(-1, side, _PATCH, side, _PATCH).transpose(2, 3).reshape(-1, side**2, _PATCH**2)
        tokens = torch.cat([self.class_token.expand(len(patches), 1, -1), self.embedding(patches)], dim=1)
        logits: Tensor = self.output(self.encoder(tokens + self.positions)[:, 0])
        return logits


def train_digits(steps: int = 250) -> tuple[DigitTransformer, Float[Tensor, "rest 64"], Int[Tensor, " rest"]]:
    """Return the model trained on 1,500 pictures of scikit-learn's digits, and the other pictures with their digits.

    The result depends on the machine only by rounding. 250 steps take about 4 s of CPU time.

    Raises:
        MissingPackageError: scikit-learn is not installed.
    """
    require_packages("the pictures of digits need", "sklearn", "sklearn")
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(return_X_y=True)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(pixels), generator=generator)
    pictures, labels = torch.tensor(pixels / 16, dtype=torch.float32)[order], torch.tensor(digits)[order]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = DigitTransformer()
    optimizer = torch.optim.AdamW(module.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps)
    for _ in range(steps):
        drawn = torch.randint(_TRAINED, (48,), generator=generator)
        loss = torch.nn.functional.cross_entropy(module(pictures[drawn]), labels[drawn])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return module.eval(), pictures[_TRAINED:], labels[_TRAINED:]


def digit_view(module: DigitTransformer, picture: Float[Tensor, " 64"], name: str) -> View:
    """Return the view of one picture, in which ink is white on black, so that bright patches show it."""
    side = _SIDE // _PATCH
    grey = np.rint(picture.numpy().reshape(_SIDE, _SIDE) * 255).astype(np.uint8)
    shown = np.repeat(grey[..., None], 3, axis=2)
    (view,) = model(module, picture[None], queries=patch_axis(side, side, 1), name=name, picture=shown)
    return view
