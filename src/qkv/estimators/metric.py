"""Distance metrics between rows of a table, defined as distances between keys that are computed from the features.

    none        k(x) = u                                      u: the numbers and the one-hot encoded codes
    diagonal    k(x) = a ∘ u
    linear      k(x) = u A                 low_rank: A has `width` columns
    network     k(x) = e A + h B,          h = silu(… silu(e W + b) …),
                e = [s ∘ z, cos(2π z f + c) L, codes]         periodic features of each number z, then the codes

With a trend, t(x) = e C + h D + x S as well, where S is fitted in closed form (see `linear_part`) and x are the numbers
in their own units. All parameters have a leading axis of ensemble members, so that an ensemble
is evaluated at once. They are plain tensors in a dictionary, so that an estimator need not store PyTorch modules.

Source of the periodic features: Gorishniy, Rubachev and Babenko (2022), On embeddings for numerical features in
tabular deep learning, https://arxiv.org/abs/2203.05556; of keys from a network: Ye et al. (2025), Revisiting
nearest neighbor for tabular data, https://arxiv.org/abs/2407.03257.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.core.typing import Float, Int

METRICS = ("none", "diagonal", "linear", "low_rank", "network")
_FREQUENCIES = 16
_PERIODIC_WIDTH = 3
_FREQUENCY_STD = 0.3
_CODES_SCALE = 0.3

Parameters = dict[str, Float[Tensor, " members *_"]]


@dataclass(frozen=True)
class Metric:
    """Function that maps the features of rows to keys and trends, with parameters that are passed to every call.

    Attributes:
        kind: one of `METRICS`.
        numbers: number of numeric features.
        sizes: number of codes of each categorical feature.
        outputs: number of values per row.
        trend: "none", "linear" or "network".
        width: width of a key, for `low_rank` and `network`.
        hidden: hidden units per layer of the network.
        layers: layers of the network.
        classification: whether values are class indicators, which share one bandwidth.
        linear: number of further numeric features, which only the trend depends on, with constant slopes.
    """

    kind: str
    numbers: int
    sizes: tuple[int, ...]
    outputs: int
    trend: str
    width: int
    hidden: int
    layers: int
    classification: bool = False
    linear: int = 0

    @property
    def has_network(self) -> bool:
        """Whether the keys or the trend are computed by a neural network."""
        return self.kind == "network" or self.trend == "network"

    @property
    def encoded_width(self) -> int:
        """The number of encoded features of a row, which are its numbers and its one-hot encoded codes."""
        return self.numbers + sum(self.sizes)

    @property
    def input_width(self) -> int:
        """The number of inputs of the network, which are the encoded features and periodic features of the numbers.

        Without a network, it is the number of encoded features.
        """
        return self.encoded_width + self.numbers * _PERIODIC_WIDTH if self.has_network else self.encoded_width

    @property
    def key_width(self) -> int:
        """The number of elements of a key."""
        return self.width if self.kind in ("low_rank", "network") else self.encoded_width

    def initial_parameters(self, members: int, generator: torch.Generator) -> Parameters:
        """Return random initial parameters by name, for all members of an ensemble.

        Initial distances are those of the standardized features, and the initial trend is near 0.
        """

        def draw(*shape: int, std: float) -> Float[Tensor, " members *shape"]:
            return torch.randn(members, *shape, generator=generator, dtype=torch.float32) * std

        inputs, hidden, keys = self.input_width, self.hidden, self.key_width
        initial: Parameters = {"log_bandwidth": torch.zeros(members, self.bandwidths, dtype=torch.float32)}
        if self.has_network:
            initial["scale"] = torch.ones(members, 1, inputs, dtype=torch.float32)
            # Rows of different categories should not be far apart before anything is learned.
            initial["scale"][..., inputs - sum(self.sizes) :] = _CODES_SCALE
            initial["wave"] = draw(self.numbers, _FREQUENCIES, std=_FREQUENCY_STD)
            phase = torch.rand(members, self.numbers, _FREQUENCIES, generator=generator, dtype=torch.float32)
            initial["phase"] = (phase * 2 - 1) * math.pi
            initial["Wave"] = draw(self.numbers, _FREQUENCIES, _PERIODIC_WIDTH, std=_FREQUENCIES**-0.5)
            for layer in range(self.layers):
                rows = hidden if layer else inputs
                initial[f"W{layer}"] = draw(rows, hidden, std=rows**-0.5)
                initial[f"b{layer}"] = draw(1, hidden, std=0.1 if layer else 0.3)
        if self.kind == "diagonal":
            initial["diagonal"] = torch.ones(members, 1, keys, dtype=torch.float32)
        elif self.kind == "linear":
            initial["A"] = torch.eye(keys, dtype=torch.float32).repeat(members, 1, 1)
        elif self.kind in ("low_rank", "network"):
            rows = inputs if self.kind == "network" else self.encoded_width
            initial["A"] = draw(rows, keys, std=rows**-0.5)
        if self.kind == "network":
            initial["B"] = draw(hidden, keys, std=0.5 * hidden**-0.5)
        if self.trend != "none":
            initial["C"] = torch.zeros(members, inputs, self.outputs, dtype=torch.float32)
        if self.trend != "none" and self.linear:
            initial["slopes"] = torch.zeros(members, self.linear, self.outputs, dtype=torch.float32)
        if self.trend == "network":
            initial["D"] = draw(hidden, self.outputs, std=0.1 * hidden**-0.5)
        return initial

    @property
    def bandwidths(self) -> int:
        """The number of bandwidths per ensemble member: one per output, or a single bandwidth for classification."""
        return 1 if self.classification else self.outputs

    @staticmethod
    def decays(name: str) -> bool:
        """Return whether weight decay applies to the parameter `name`. It applies to matrices only."""
        return name[0].isupper()

    def __call__(
        self,
        parameters: Parameters,
        numbers: Float[Tensor, "#members rows numbers"],
        codes: Int[Tensor, "#members rows categories"],
        dropout_mask: Float[Tensor, " layers #members rows hidden"] | None = None,
    ) -> tuple[Float[Tensor, "members rows key_width"], Float[Tensor, "members rows outputs"] | None]:
        """Return the keys and the trends of rows. The trends are None if the metric has no trend."""
        numbers, unlimited = numbers[..., : self.numbers], numbers[..., self.numbers :]
        u = hidden = plain = torch.cat([numbers, *_one_hot(codes, self.sizes)], dim=-1)
        if self.has_network:
            members = parameters["wave"].shape[0]
            u = u.expand(members, -1, -1)
            u = hidden = torch.cat([self._periodic_features(parameters, numbers), u], dim=-1) * parameters["scale"]
            for layer in range(self.layers):
                hidden = torch.baddbmm(parameters[f"b{layer}"], hidden, parameters[f"W{layer}"])
                hidden = torch.nn.functional.silu(hidden)
                if dropout_mask is not None:
                    hidden = hidden * dropout_mask[layer]
        trend = None
        if self.trend != "none":
            trend = u @ parameters["C"]
            if self.trend == "network":
                trend = torch.baddbmm(trend, hidden, parameters["D"])
            if "slopes" in parameters:
                trend = trend + unlimited @ parameters["slopes"]
        if self.kind == "none":
            return plain.expand(len(parameters["log_bandwidth"]), -1, -1), trend
        if self.kind == "diagonal":
            return plain * parameters["diagonal"], trend
        keys = (u if self.kind == "network" else plain) @ parameters["A"]
        if self.kind == "network":
            keys = torch.baddbmm(keys, hidden, parameters["B"])
        return keys, trend

    def _periodic_features(
        self, parameters: Parameters, numbers: Float[Tensor, "#members rows numbers"]
    ) -> Float[Tensor, "members rows periodic"]:
        angle = numbers[..., None] * (2 * math.pi * parameters["wave"][:, None]) + parameters["phase"][:, None]
        # (members, columns, rows, frequencies) @ (members, columns, frequencies, 3)
        periodic = torch.cos(angle).transpose(1, 2) @ parameters["Wave"]
        return periodic.transpose(1, 2).flatten(2)


def _one_hot(
    codes: Int[Tensor, "#members rows categories"], sizes: Sequence[int]
) -> list[Float[Tensor, "#members rows flags"]]:
    """Return a list with the one-hot encoding of the codes as one tensor, or an empty list if there are no codes.

    The last code of each feature, which stands for unknown categories, is encoded as zeros.
    """
    if not sizes:
        return []
    starts = torch.tensor([sum(sizes[:n]) for n in range(len(sizes))])
    flags = torch.zeros(*codes.shape[:-1], sum(sizes), dtype=torch.float32)
    flags.scatter_(-1, codes.long() + starts, 1.0)
    for start, size in zip(starts.tolist(), sizes, strict=True):
        flags[..., start + size - 1] = 0.0
    return [flags]
