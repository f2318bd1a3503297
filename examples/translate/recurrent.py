"""A GRU encoder and decoder, with attention of any score or without.

    encoder     hⱼ = [forward GRU; backward GRU](x)ⱼ                 one annotation per source subword
    attention   cᵢ = Σⱼ weightᵢⱼ hⱼ,  weightᵢ = softmaxⱼ score(sᵢ₋₁, hⱼ)
    decoder     sᵢ = GRU([yᵢ₋₁; cᵢ], sᵢ₋₁),  s₀ = tanh(W [forward end; backward end])
    output      yᵢ ~ softmax(E tanh(U [sᵢ; yᵢ₋₁; cᵢ]))

Source: Bahdanau, Cho, Bengio (2015), Neural machine translation by jointly learning to align and translate,
https://arxiv.org/abs/1409.0473, in its order: the state before step i is the query, and the result is an input
of step i. Two things differ: tanh replaces maxout, and E is the embedding of the target side
(Press, Wolf, 2017, https://arxiv.org/abs/1608.05859). With the score "none" the context of every step is
the final state of both GRUs, as in Cho et al. (2014), https://arxiv.org/abs/1406.1078; the rest is the same.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from examples.translate.scores import SCORES
from qkv import masks, readouts
from qkv import nn as parts

__all__ = ["Recurrent"]


class Memory(NamedTuple):
    """Output of the encoder: annotations `(batch, length, width)`, lengths, and final states `(batch, width)`."""

    annotations: Tensor
    lengths: Tensor
    ends: Tensor


class Recurrent(nn.Module):
    """GRU encoder, attention and GRU decoder.

    Args:
        sources, targets: sizes of the vocabularies.
        width: width of embeddings, annotations and states; even.
        score: a name of `scores.SCORES`, or "none" for a model without attention.
        dropout: dropout of embeddings and before the output.
    """

    def __init__(self, sources: int, targets: int, width: int, score: str, dropout: float) -> None:
        super().__init__()
        self.source = nn.Embedding(sources, width, padding_idx=0)
        self.target = nn.Embedding(targets, width, padding_idx=0)
        self.encoder = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.first = nn.Linear(width, width)
        self.attention = None if score == "none" else parts.Attention(score=SCORES[score](width, width))
        self.decoder = nn.GRUCell(2 * width, width)
        self.reader = nn.Linear(3 * width, width)
        self.bias = nn.Parameter(torch.zeros(targets))
        self.dropout = nn.Dropout(dropout)
        for embedding in (self.source, self.target):
            # Shared with the output layer: the initial logits must be small.
            nn.init.normal_(embedding.weight, std=width**-0.5)

    def encode(self, source: Tensor, lengths: Tensor) -> Memory:
        """Read the source sentences `(batch, source length)`."""
        read = pack_padded_sequence(
            self.dropout(self.source(source)), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        annotations, ends = self.encoder(read)
        annotations, _ = pad_packed_sequence(annotations, batch_first=True, total_length=source.shape[1])
        return Memory(annotations, lengths, torch.cat([ends[0], ends[1]], -1))

    def begin(self, memory: Memory) -> Tensor:
        """Return the state before the first step."""
        return torch.tanh(self.first(memory.ends))

    def step(self, memory: Memory, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of the next subword `(batch, targets)`, and the state after the step."""
        said = self.dropout(self.target(token))
        context = self._context(memory, state)
        state = self.decoder(torch.cat([said, context], -1), state)
        return self._logits(state, said, context), state

    def pick(self, memory: Memory, state: Tensor, rows: Tensor) -> tuple[Memory, Tensor]:
        """Return memory and state of the given batch elements, in the given order."""
        return Memory(*(each[rows] for each in memory)), state[rows]

    def forward(self, source: Tensor, lengths: Tensor, given: Tensor) -> Tensor:
        """Return logits `(batch, length, targets)` of every next subword, given the previous ones."""
        memory = self.encode(source, lengths)
        said = self.dropout(self.target(given))
        state = self.begin(memory)
        states, contexts = [], []
        for each in said.unbind(1):
            context = self._context(memory, state)
            state = self.decoder(torch.cat([each, context], -1), state)
            states.append(state)
            contexts.append(context)
        return self._logits(torch.stack(states, 1), said, torch.stack(contexts, 1))

    def align(self, source: Tensor, lengths: Tensor, given: Tensor) -> Tensor | None:
        """Return the weights `(batch, length, source length)` of every step; None without attention."""
        if self.attention is None:
            return None
        memory = self.encode(source, lengths)
        state, rows = self.begin(memory), []
        for each in self.target(given).unbind(1):
            seen = self._attend(memory, state, (readouts.Dense(),))
            rows.append(seen.readouts[0])
            state = self.decoder(torch.cat([each, seen.output[:, 0]], -1), state)
        return torch.cat(rows, 1)

    def _context(self, memory: Memory, state: Tensor) -> Tensor:
        return memory.ends if self.attention is None else self._attend(memory, state)[:, 0]

    def _attend(self, memory: Memory, state: Tensor, asked: tuple = ()):  # type: ignore[no-untyped-def]
        keys = memory.annotations
        return self.attention(state[:, None], keys, keys, mask=masks.Lengths(memory.lengths), readouts=asked)

    def _logits(self, state: Tensor, said: Tensor, context: Tensor) -> Tensor:
        read = torch.tanh(self.reader(torch.cat([state, said, context], -1)))
        return nn.functional.linear(self.dropout(read), self.target.weight, self.bias)
