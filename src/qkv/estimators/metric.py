"""What "similar" means: the features of a row become its key, and rows are compared by the distance of keys.

    none        k(x) = u                                      u: the numbers, and the codes as 0 and 1
    diagonal    k(x) = a ∘ u
    linear      k(x) = u A                 low_rank: A has `width` columns
    network     k(x) = e A + h B,          h = silu(… silu(e W + b) …),
                e = [s ∘ z, cos(2π z f + c) L, codes]         each number z by itself, then the codes

and, where there is a trend, t(x) = e C + h D besides. All arrays have a first axis of members, so that an
ensemble is one call. They are functions of plain tensors by name: nothing of PyTorch is kept by an estimator.

Source of the waves: Gorishniy, Rubachev and Babenko (2022), On embeddings for numerical features in tabular
deep learning, https://arxiv.org/abs/2203.05556; of keys from a network: Ye et al. (2025), Revisiting nearest
neighbor for tabular data, https://arxiv.org/abs/2407.03257.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["METRICS", "Metric"]

METRICS = ("none", "diagonal", "linear", "low_rank", "network")
_WAVES = 16
_WAVE_WIDTH = 3
_WAVE_SPREAD = 0.3
_CODES_START = 0.3

Parameters = dict[str, Tensor]


@dataclass(frozen=True)
class Metric:
    """The shape of a metric; its parameters are given with every call.

    Fields:
        kind: one of `METRICS`.
        numbers: how many columns of numbers.
        sizes: how many codes each category has.
        outputs: how many values a row has.
        trend: "none", "linear" or "network": what moves the values.
        width: of a key, for `low_rank` and `network`.
        hidden, layers: of the network.
        shares: whether values are shares of classes, which have one bandwidth.
    """

    kind: str
    numbers: int
    sizes: tuple[int, ...]
    outputs: int
    trend: str
    width: int
    hidden: int
    layers: int
    shares: bool = False

    @property
    def deep(self) -> bool:
        """Whether there is a network."""
        return self.kind == "network" or self.trend == "network"

    @property
    def plain_width(self) -> int:
        """The numbers, and the codes as 0 and 1."""
        return self.numbers + sum(self.sizes)

    @property
    def input_width(self) -> int:
        """Of e."""
        return self.plain_width + self.numbers * _WAVE_WIDTH if self.deep else self.plain_width

    @property
    def key_width(self) -> int:
        """Of a key."""
        return self.width if self.kind in ("low_rank", "network") else self.plain_width

    def start(self, members: int, generator: torch.Generator) -> Parameters:
        """Drawn parameters: distances begin as those of the standardised features, the trend near 0."""

        def drawn(*shape: int, spread: float) -> Tensor:
            return torch.randn(members, *shape, generator=generator) * spread

        into, hidden, keys = self.input_width, self.hidden, self.key_width
        start: Parameters = {"log_bandwidth": torch.zeros(members, self.bandwidths)}
        if self.deep:
            start["scale"] = torch.ones(members, 1, into)
            # Two rows of another category are not far from each other before anything was learned.
            start["scale"][..., into - sum(self.sizes) :] = _CODES_START
            start["wave"] = drawn(self.numbers, _WAVES, spread=_WAVE_SPREAD)
            start["phase"] = (torch.rand(members, self.numbers, _WAVES, generator=generator) * 2 - 1) * math.pi
            start["Wave"] = drawn(self.numbers, _WAVES, _WAVE_WIDTH, spread=_WAVES**-0.5)
            for layer in range(self.layers):
                rows = hidden if layer else into
                start[f"W{layer}"] = drawn(rows, hidden, spread=rows**-0.5)
                start[f"b{layer}"] = drawn(1, hidden, spread=0.1 if layer else 0.3)
        if self.kind == "diagonal":
            start["diagonal"] = torch.ones(members, 1, keys)
        elif self.kind == "linear":
            start["A"] = torch.eye(keys).repeat(members, 1, 1)
        elif self.kind in ("low_rank", "network"):
            rows = into if self.kind == "network" else self.plain_width
            start["A"] = drawn(rows, keys, spread=rows**-0.5)
        if self.kind == "network":
            start["B"] = drawn(hidden, keys, spread=0.5 * hidden**-0.5)
        if self.trend != "none":
            start["C"] = torch.zeros(members, into, self.outputs)
        if self.trend == "network":
            start["D"] = drawn(hidden, self.outputs, spread=0.1 * hidden**-0.5)
        return start

    @property
    def bandwidths(self) -> int:
        """One for each output; classes share one."""
        return 1 if self.shares else self.outputs

    @staticmethod
    def decays(name: str) -> bool:
        """Matrices are drawn towards 0 while learning; offsets, scales and bandwidths are not."""
        return name[0].isupper()

    def __call__(
        self, parameters: Parameters, numbers: Tensor, codes: Tensor, drop: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Keys `(members, rows, key_width)` and trends `(members, rows, outputs)`, if there are any.

        Args:
            parameters: as `start` gives them.
            numbers: `(members or 1, rows, numbers)`.
            codes: `(members or 1, rows, categories)`.
            drop: factors on the hidden values, `(layers, 1 or members, rows, hidden)`.
        """
        u = plain = torch.cat([numbers, *_one_hot(codes, self.sizes)], dim=-1)
        hidden = None
        if self.deep:
            members = parameters["wave"].shape[0]
            u = u.expand(members, -1, -1)
            u = torch.cat([self._waves(parameters, numbers), u], dim=-1) * parameters["scale"]
            hidden = u
            for layer in range(self.layers):
                hidden = torch.baddbmm(parameters[f"b{layer}"], hidden, parameters[f"W{layer}"])
                hidden = torch.nn.functional.silu(hidden)
                if drop is not None:
                    hidden = hidden * drop[layer]
        trend = None
        if self.trend != "none":
            trend = u @ parameters["C"]
            if self.trend == "network":
                assert hidden is not None
                trend = torch.baddbmm(trend, hidden, parameters["D"])
        if self.kind == "none":
            return plain.expand(len(parameters["log_bandwidth"]), -1, -1), trend
        if self.kind == "diagonal":
            return plain * parameters["diagonal"], trend
        keys = (u if self.kind == "network" else plain) @ parameters["A"]
        if self.kind == "network":
            assert hidden is not None
            keys = torch.baddbmm(keys, hidden, parameters["B"])
        return keys, trend

    def _waves(self, parameters: Parameters, numbers: Tensor) -> Tensor:
        angle = numbers[..., None] * (2 * math.pi * parameters["wave"][:, None]) + parameters["phase"][:, None]
        # (members, columns, rows, waves) @ (members, columns, waves, 3)
        waves = torch.cos(angle).transpose(1, 2) @ parameters["Wave"]
        return waves.transpose(1, 2).flatten(2)


def _one_hot(codes: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Codes as 0 and 1; the last code of a category, of what was never seen, is all 0."""
    if not sizes:
        return []
    starts = torch.tensor([sum(sizes[:place]) for place in range(len(sizes))])
    flags = torch.zeros(*codes.shape[:-1], sum(sizes))
    flags.scatter_(-1, codes.long() + starts, 1.0)
    for start, size in zip(starts.tolist(), sizes, strict=True):
        flags[..., start + size - 1] = 0.0
    return [flags]
