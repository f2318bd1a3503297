"""Embeddings of an ambiguous word before and after attention: python -m examples.sense

The example compares vectors of one word in many sentences: the input of the model, where they differ only by the
position of the word; the output of each layer; and the output of each layer's attention alone. The predicted
sense is the one whose mean vector over the other sentences has the largest cosine. There are two baselines: the
most frequent sense, and the vector before attention, which depends on the position of the word only.
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
        word: the ambiguous word.
        count: number of sentences.
        chance: accuracy of the most frequent sense.
        before: accuracy from the input vectors of the model.
        attended: accuracy from the output of each layer's attention.
        after: accuracy from the output of each layer.
        toward: mean difference of the cosines with the mean vectors of the correct and the other sense, leaving
            the sentence itself out: before attention, and after each layer.
    """

    word: str
    count: int
    chance: float
    before: float
    attended: tuple[float, ...]
    after: tuple[float, ...]
    toward: tuple[float, ...]


def vectors(model: Any, tokenizer: Any, word: str, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the vectors of a word: `(sentences, 1 + layers, width)` before and after each layer, and
    `(sentences, layers, width)` from the attention of each layer.
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
    """Return the accuracy of classification by the nearest mean of the other sentences, and the mean margin.

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
