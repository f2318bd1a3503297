"""Embeddings of an ambiguous word before and after attention: python -m examples.sense

For every sentence the vector of the one word is taken at its place: as it enters the model, where the word
has the same vector in all sentences but for its position; after each layer; and what the layer's attention
alone gives. The sense is guessed from the other sentences: that whose mean vector is nearest by cosine. There
are two baselines: a coin, and the vector before attention, which knows where the word stands and no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from examples.sense.sentences import SENSES

__all__ = ["Measured", "guessed", "measure", "vectors"]


@dataclass(frozen=True)
class Measured:
    """Accuracy of the predicted senses.

    Attributes:
        word: of several senses.
        count: sentences.
        chance: of the most frequent sense.
        before: from the vector that enters the model.
        attended: from what the attention of each layer gives.
        after: from the vector after each layer.
        toward: how much nearer (cosine) the vector is to the mean of its own sense than to that of the other,
            itself left out, mean over the sentences: before attention, and after each layer.
    """

    word: str
    count: int
    chance: float
    before: float
    attended: tuple[float, ...]
    after: tuple[float, ...]
    toward: tuple[float, ...]


def vectors(model: Any, tokenizer: Any, word: str, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """The word's vectors: `(sentences, 1 + layers, width)` before and after each layer, and
    `(sentences, layers, width)` what each layer's attention gives.
    """
    import torch

    given = tokenizer(sentences, return_tensors="pt", padding=True)
    at = (given["input_ids"] == tokenizer.convert_tokens_to_ids(word)).int().argmax(dim=1)
    attended: list[torch.Tensor] = []
    hooks = [
        layer.attention.self.register_forward_hook(lambda module, inputs, output: attended.append(output[0]))
        for layer in model.encoder.layer
    ]
    try:
        with torch.no_grad():
            states = model(**given, output_hidden_states=True).hidden_states
    finally:
        for hook in hooks:
            hook.remove()
    rows = torch.arange(len(sentences))
    return tuple(torch.stack([x[rows, at] for x in each], 1).numpy() for each in (states, attended))  # type: ignore[return-value]


def guessed(x: np.ndarray, senses: np.ndarray) -> tuple[float, float]:
    """Return the accuracy of the nearest class mean of the other sentences, and the mean margin.

    Args:
        x: `(sentences, width)`.
        senses: 0 or 1 for each sentence.
    """
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    right, margins = [], []
    for n in range(len(x)):
        others = np.arange(len(x)) != n
        means = np.stack([x[others & (senses == sense)].mean(axis=0) for sense in (0, 1)])
        near = means @ x[n] / np.linalg.norm(means, axis=1)
        margins.append(near[senses[n]] - near[1 - senses[n]])
        right.append(margins[-1] > 0)
    return float(np.mean(right)), float(np.mean(margins))


def measure(model: Any, tokenizer: Any, word: str) -> Measured:
    """Predict the sense of a word in all its sentences."""
    lists = SENSES[word]
    senses = np.repeat([0, 1], [len(sentences) for sentences in lists.values()])
    states, attended = vectors(model, tokenizer, word, [s for each in lists.values() for s in each])
    found = [guessed(states[:, n], senses) for n in range(states.shape[1])]
    return Measured(
        word,
        len(senses),
        float(max(np.mean(senses), 1 - np.mean(senses))),
        found[0][0],
        tuple(guessed(attended[:, n], senses)[0] for n in range(attended.shape[1])),
        tuple(right for right, _ in found[1:]),
        tuple(nearer for _, nearer in found),
    )
