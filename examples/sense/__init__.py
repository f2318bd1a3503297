"""Embeddings of an ambiguous word before and after attention: python -m examples.sense [FILE [SENTENCE ...]]

The example compares vectors of one word in many sentences: the input of the model, where they differ only by the
position of the word; the output of each layer; and the output of each layer's attention alone. The predicted
sense is the one whose mean vector over the other sentences has the largest cosine. There are two baselines: the
most frequent sense, and the vector before attention, which depends on the position of the word only.

FILE has any number of senses: two columns, `sense` and `sentence`, separated by tabs, with the word between asterisks
(`examples/sense/spring.tsv` has four senses). The senses of further sentences are predicted from all sentences of FILE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from examples.sense.examples import Examples
from qkv.encoders import ContextualVectors

__all__ = ["Measured", "attention_outputs", "guessed", "held_out", "means", "measure", "predict"]


@dataclass(frozen=True)
class Measured:
    """Accuracy of the predicted senses.

    Attributes:
        count: number of sentences.
        chance: accuracy of the most frequent sense.
        before: accuracy from the input vectors of the model.
        attended: accuracy from the output of each layer's attention.
        after: accuracy from the output of each layer.
        toward: mean difference of the cosines with the mean vector of the correct sense and with the nearest other
            one, leaving the sentence itself out: before attention, and after each layer.
        few: accuracy after the last layer on the other sentences, from 1, 2, 4 … example sentences of each sense.
    """

    count: int
    chance: float
    before: float
    attended: tuple[float, ...]
    after: tuple[float, ...]
    toward: tuple[float, ...]
    few: dict[int, float]


def attention_outputs(model: Any, tokenizer: Any, examples: Examples) -> np.ndarray:
    """Return the output of the attention of each layer for the word of each sentence, `(sentences, layers, width)`."""
    import torch

    given = tokenizer(examples.sentences, return_tensors="pt", padding=True, return_offsets_mapping=True)
    start, stop = given.pop("offset_mapping").unbind(-1)
    ranges = torch.tensor(examples.spans)
    inside = ((start < ranges[:, 1:]) & (stop > ranges[:, :1])).float()
    outputs: list[torch.Tensor] = []
    hooks = [
        layer.attention.self.register_forward_hook(lambda module, inputs, output: outputs.append(output[0]))
        for layer in model.encoder.layer
    ]
    try:
        with torch.no_grad():
            model(**given)
    finally:
        for hook in hooks:
            hook.remove()
    sums = torch.einsum("st,lstw->slw", inside, torch.stack(outputs))
    return np.asarray(sums / inside.sum(dim=1)[:, None, None])


def means(x: np.ndarray, labels: np.ndarray, senses: int) -> np.ndarray:
    """Return the mean of the vectors of each sense after scaling each vector to unit length, `(senses, width)`.

    Args:
        x: `(sentences, width)`.
        labels: sense of each sentence, from 0 to `senses` - 1.
        senses: number of senses.
    """
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    return np.stack([x[labels == sense].mean(axis=0) for sense in range(senses)])


def predict(x: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return the cosine of each vector with the mean vector of each sense, `(sentences, senses)`."""
    return np.asarray(
        (x / np.linalg.norm(x, axis=1, keepdims=True)) @ (centres / np.linalg.norm(centres, axis=1, keepdims=True)).T
    )


def guessed(x: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Return the accuracy of classification by the nearest mean of the other sentences, and the mean margin.

    Args:
        x: `(sentences, width)`.
        labels: sense of each sentence, from 0.
    """
    senses, margins = int(labels.max()) + 1, []
    for n in range(len(x)):
        others = np.arange(len(x)) != n
        near = predict(x[n : n + 1], means(x[others], labels[others], senses))[0]
        margins.append(near[labels[n]] - np.delete(near, labels[n]).max())
    return float(np.mean(np.array(margins) > 0)), float(np.mean(margins))


def held_out(x: np.ndarray, labels: np.ndarray, examples: int, draws: int = 100) -> float:
    """Return the mean accuracy on the other sentences if the means are those of a few examples of each sense.

    Args:
        x: `(sentences, width)`.
        labels: sense of each sentence, from 0.
        examples: number of example sentences of each sense, drawn at random without replacement.
        draws: number of times that examples are drawn.
    """
    draw, senses, rates = np.random.default_rng(0), int(labels.max()) + 1, []
    for _ in range(draws):
        known = np.zeros(len(x), bool)
        for sense in range(senses):
            known[draw.choice(np.flatnonzero(labels == sense), examples, replace=False)] = True
        near = predict(x[~known], means(x[known], labels[known], senses))
        rates.append(np.mean(near.argmax(axis=1) == labels[~known]))
    return float(np.mean(rates))


def measure(words: ContextualVectors, model: Any, tokenizer: Any, examples: Examples) -> Measured:
    """Predict the sense of the word in each sentence from the other sentences."""
    labels = examples.labels
    states = words.encode_layers(examples.sentences, examples.spans)
    attended = attention_outputs(model, tokenizer, examples)
    found = [guessed(states[:, n], labels) for n in range(states.shape[1])]
    smallest = int(np.bincount(labels).min())
    counts: Sequence[int] = [count for count in (1, 2, 4, 8, 16) if count < smallest]
    return Measured(
        len(labels),
        float(np.bincount(labels).max() / len(labels)),
        found[0][0],
        tuple(guessed(attended[:, n], labels)[0] for n in range(attended.shape[1])),
        tuple(right for right, _ in found[1:]),
        tuple(nearer for _, nearer in found),
        {count: held_out(states[:, -1], labels, count) for count in counts},
    )
