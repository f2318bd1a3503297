"""A small Transformer with any score in all its attention modules.

    memory = encoder(embedding(source) √width + positions)
    y ~ softmax(E decoder(embedding(said) √width + positions, memory))

Source: Vaswani et al. (2017), Attention is all you need, https://arxiv.org/abs/1706.03762. The layers are
pre-norm (Xiong et al., 2020, https://arxiv.org/abs/2002.04745), and E is the embedding of the target side.
Alignments are the mean over the heads of the last decoder layer but one, which aligns best (Garg et al., 2019,
section 4, https://arxiv.org/abs/1909.02074).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from examples.translate.scores import SCORES
from qkv import masks, readouts
from qkv import nn as parts

__all__ = ["Transformer"]


class Memory(NamedTuple):
    """Output of the encoder: projected keys and values for each decoder layer, and lengths."""

    layers: list[parts.KeyValue]
    lengths: Tensor


class Transformer(nn.Module):
    """Encoder and decoder.

    Args:
        sources, targets: sizes of the vocabularies.
        width: width of embeddings and layers.
        score: a name of `scores.SCORES`; each head has parameters of its own.
        dropout: dropout of embeddings and in every layer, but not of attention weights.
        layers: number of layers of the encoder, and of the decoder.
        heads: number of heads of each attention module.
    """

    def __init__(
        self, sources: int, targets: int, width: int, score: str, dropout: float, layers: int, heads: int
    ) -> None:
        super().__init__()
        self.scale = math.sqrt(width)
        self.source = nn.Embedding(sources, width, padding_idx=0)
        self.target = nn.Embedding(targets, width, padding_idx=0)
        self.positions = parts.positions.Sinusoidal(width)
        options = {"dropout": dropout, "attention_dropout": 0.0, "score": SCORES[score]}
        self.encoder = parts.Encoder(layers, width, heads, 2 * width, **options)
        self.decoder = parts.Decoder(layers, width, heads, 2 * width, **options)
        self.bias = nn.Parameter(torch.zeros(targets))
        self.dropout = nn.Dropout(dropout)
        self.aligning = f"decoder.layers.{max(0, layers - 2)}.cross"
        for embedding in (self.source, self.target):
            # Shared with the output layer: the initial logits must be small.
            nn.init.normal_(embedding.weight, std=width**-0.5)

    def encode(self, source: Tensor, lengths: Tensor) -> Memory:
        """Read the source sentences `(batch, source length)`."""
        return Memory(self.decoder.project_memory(self._read(source, lengths)), lengths)

    def begin(self, memory: Memory) -> list[parts.KeyValueCache]:
        """Return empty caches."""
        return self.decoder.caches(chunk=16)

    def step(
        self, memory: Memory, state: list[parts.KeyValueCache], token: Tensor
    ) -> tuple[Tensor, list[parts.KeyValueCache]]:
        """Return logits of the next subword `(batch, targets)`, and the extended caches."""
        said = self._placed(self.target, token[:, None], len(state[0]))
        there = masks.Lengths(memory.lengths)
        return self._logits(self.decoder(said, memory.layers, memory_mask=there, cache=state))[:, 0], state

    def pick(
        self, memory: Memory, state: list[parts.KeyValueCache], rows: Tensor
    ) -> tuple[Memory, list[parts.KeyValueCache]]:
        """Return memory and caches of the given batch elements, in the given order."""
        layers = [parts.KeyValue(each.key[rows], each.value[rows]) for each in memory.layers]
        return Memory(layers, memory.lengths[rows]), [cache.reorder(rows) for cache in state]

    def forward(self, source: Tensor, lengths: Tensor, given: Tensor) -> Tensor:
        """Return logits `(batch, length, targets)` of every next subword, given the previous ones."""
        read, said = self._read(source, lengths), self._placed(self.target, given)
        return self._logits(self.decoder(said, read, memory_mask=masks.Lengths(lengths)))

    def align(self, source: Tensor, lengths: Tensor, given: Tensor) -> Tensor:
        """Return the weights `(batch, length, source length)` of every step of `forward`."""
        wanted = {self.aligning: [readouts.Dense()]}
        [weights] = parts.observe(self, wanted, source, lengths, given).readouts[self.aligning]
        return weights.mean(1)

    def _read(self, source: Tensor, lengths: Tensor) -> Tensor:
        return self.encoder(self._placed(self.source, source), mask=masks.Lengths(lengths))

    def _placed(self, embedding: nn.Embedding, tokens: Tensor, first: int = 0) -> Tensor:
        return self.dropout(self.positions(embedding(tokens) * self.scale, first))

    def _logits(self, out: Tensor) -> Tensor:
        return nn.functional.linear(out, self.target.weight, self.bias)
