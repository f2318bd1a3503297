"""Gradients of tiles in PyTorch, which are added to arrays of the same shapes as those of the call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from qkv.core.equation import TorchCall, take_range
from qkv.core.typing import Array, Tensor
from qkv.kernels.runtime.tile_loop import Limits
from qkv.normalizers.base import Normalizer
from qkv.scores.base import Score

__all__ = [
    "CallArrays",
    "accumulate",
    "block_tensors",
    "call_tensors",
    "gradients_of",
    "leaves_of",
    "traced_logits",
]


class CallArrays(Protocol):
    """The arrays of a call, or their gradients in the same places."""

    @property
    def query(self) -> Tensor:
        """Queries."""

    @property
    def key(self) -> Tensor:
        """Keys."""

    @property
    def value(self) -> Tensor:
        """Values."""

    @property
    def score(self) -> Score:
        """Score, which holds arrays."""

    @property
    def normalizer(self) -> Normalizer:
        """Normalizer, which may hold arrays."""


def call_tensors(call: CallArrays) -> list[Tensor]:
    """Return query, key, value and the arrays of score and normalizer."""
    arrays = cast("tuple[Tensor, ...]", (*call.score.arrays(), *call.normalizer.arrays()))
    return [call.query, call.key, call.value, *arrays]


def block_tensors(call: CallArrays, rows: Limits, cols: Limits) -> list[Tensor]:
    """Return views of query, key, value and the arrays of score and normalizer, cut to some rows and columns."""
    score = call.score.slice(slice(*rows), slice(*cols))
    arrays = cast("tuple[Tensor, ...]", (*score.arrays(), *call.normalizer.arrays()))
    return [take_range(call.query, rows), take_range(call.key, cols), take_range(call.value, cols), *arrays]


def traced_logits(
    call: TorchCall, rows: Limits, cols: Limits, tensors: Sequence[Tensor]
) -> tuple[Tensor | None, Normalizer]:
    """Return the logits of a tile and the normalizer, both on other arrays than the call's.

    Args:
        call: the call.
        rows: range of the queries.
        cols: range of the keys.
        tensors: what `block_tensors` returns for the tile, or arrays in their place.

    Returns:
        The logits, None if the mask excludes every pair of the tile, and the normalizer.
    """
    query, key, _, *arrays = tensors
    count = len(call.score.arrays())
    score = call.score.slice(slice(*rows), slice(*cols)).replace_arrays(arrays[:count])
    return call.logits(rows, cols, query, key, score), call.normalizer.replace_arrays(arrays[count:])


def leaves_of(arrays: Sequence[Array], wanted: Sequence[bool] | None = None) -> list[Tensor]:
    """Return detached tensors; floating-point ones (where wanted) require a gradient."""
    tensors = cast("Sequence[Tensor]", arrays)
    flags = [True] * len(tensors) if wanted is None else wanted
    return [x.detach().requires_grad_(x.is_floating_point() and flag) for x, flag in zip(tensors, flags, strict=True)]


def gradients_of(
    outputs: Sequence[Tensor],
    output_gradients: Sequence[Tensor | None],
    inputs: Sequence[Tensor],
    create_graph: bool = False,
) -> list[Tensor | None]:
    """Return the gradient of each input; None if it requires none or no output depends on it.

    Args:
        outputs: results of a computation on the inputs.
        output_gradients: their gradients; None for 0.
        inputs: the inputs.
        create_graph: make the gradients differentiable.
    """
    import torch

    pairs = [(x, g) for x, g in zip(outputs, output_gradients, strict=True) if g is not None and x.requires_grad]
    trained = [x for x in inputs if x.requires_grad]
    if not (pairs and trained):
        return [None] * len(inputs)
    found = iter(
        torch.autograd.grad(
            [x for x, _ in pairs], trained, [g for _, g in pairs], allow_unused=True, create_graph=create_graph
        )
    )
    return [next(found) if x.requires_grad else None for x in inputs]


def accumulate(
    outputs: Sequence[Tensor], output_gradients: Sequence[Tensor], leaves: Sequence[Tensor], sums: Sequence[Tensor]
) -> None:
    """Add the gradient of each leaf that requires one to its sum, in place."""
    for gradient, total in zip(gradients_of(outputs, output_gradients, leaves), sums, strict=True):
        if gradient is not None:
            total.add_(gradient)
