"""Translations and attention weights of a trained model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from examples.translate.batches import padded
from examples.translate.search import translate
from examples.translate.vocabulary import BEGIN

__all__ = ["Aligned", "Reader"]


@dataclass(frozen=True)
class Aligned:
    """A translation and its attention weights.

    Attributes:
        translation: the text.
        read, said: subwords of the source and of the translation.
        weights: `(said, read)`; each row sums to 1. None without attention.
    """

    translation: str
    read: list[str]
    said: list[str]
    weights: Any


class Reader:
    """The trained model of a folder.

    Args:
        folder: folder of a finished or interrupted run of `train`.
    """

    def __init__(self, folder: Path) -> None:
        from examples.translate.training import open_model

        self.model, self.source, self.target, self.options, _ = open_model(folder)

    def translate(self, sentences: Sequence[str], beam: int = 4) -> list[str]:
        """Return the translation of each sentence."""
        found = translate(self.model, self.source.encode(sentences), beam)
        return self.target.decode([each.numbers for each in found])

    @torch.inference_mode()
    def aligned(self, sentence: str, beam: int = 4) -> Aligned:
        """Return the translation of one sentence and the weights of every step, read by `Dense`."""
        [numbers] = self.source.encode([sentence])
        [found] = translate(self.model, [numbers], beam)
        said = list(found.numbers)
        source, lengths = padded([numbers])
        weights = self.model.align(source, lengths, torch.tensor([[BEGIN, *said[:-1]]]))
        [text] = self.target.decode([said])
        return Aligned(
            text, self.source.pieces(numbers), self.target.pieces(said), None if weights is None else weights[0].numpy()
        )
