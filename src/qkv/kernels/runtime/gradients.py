"""Computation of the gradients of tiles in PyTorch, and their addition to the gradients of the call's inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from qkv.core.equation import TorchCall
from qkv.core.tile import take_range
from qkv.core.typing import Array, Float, Num, PairTensor, Shaped, Tensor
from qkv.kernels.runtime.tile_loop import Limits
from qkv.normalizers.base import Normalizer
from qkv.scores.base import Score


class _CallArrays(Protocol):
    """Protocol of objects that hold the arrays of a call, or the gradients of these arrays under the same names."""

    @property
    def query(self) -> Num[Tensor, "*#batch q query_width"]:
        """The queries, or their gradient."""

    @property
    def key(self) -> Num[Tensor, "*#batch k key_width"]:
        """The keys, or their gradient."""

    @property
    def value(self) -> Float[Tensor, "*#batch k value_width"]:
        """The values, or their gradient."""

    @property
    def score(self) -> Score:
        """The score with its arrays, or with the gradients of its arrays in their place."""

    @property
    def normalizer(self) -> Normalizer:
        """The normalizer with its arrays, or with the gradients of its arrays in their place."""


def call_tensors(call: _CallArrays) -> list[Shaped[Tensor, "*_"]]:
    """Return a list of the query, the key, the value and the arrays of score and normalizer of a call."""
    arrays = cast("tuple[Tensor, ...]", (*call.score.arrays(), *call.normalizer.arrays()))
    return [call.query, call.key, call.value, *arrays]


def block_tensors(call: _CallArrays, rows: Limits, cols: Limits) -> list[Shaped[Tensor, "*_"]]:
    """Return a list of query, key, value and the arrays of score and normalizer, restricted to a tile."""
    score = call.score.slice(slice(*rows), slice(*cols))
    arrays = cast("tuple[Tensor, ...]", (*score.arrays(), *call.normalizer.arrays()))
    return [take_range(call.query, rows), take_range(call.key, cols), take_range(call.value, cols), *arrays]


def traced_logits(
    call: TorchCall, rows: Limits, cols: Limits, tensors: Sequence[Shaped[Tensor, "*_"]]
) -> tuple[PairTensor | None, Normalizer]:
    """Return the logits of a tile and the normalizer, with `tensors` in place of the tensors of the call.

    Args:
        rows: range of the queries.
        cols: range of the keys.
        tensors: tensors in the order of `block_tensors`.

    Returns:
        The logits, None if the mask excludes every pair of the tile, and the normalizer.
    """
    query, key, _, *arrays = tensors
    count = len(call.score.arrays())
    score = call.score.slice(slice(*rows), slice(*cols)).replace_arrays(arrays[:count])
    return call.logits(rows, cols, query, key, score), call.normalizer.replace_arrays(arrays[count:])


def leaves_of(
    arrays: Sequence[Shaped[Array, "*_"]], requires_grad: Sequence[bool] | None = None
) -> list[Shaped[Tensor, "*_"]]:
    """Return detached tensors, of which the floating-point tensors require a gradient.

    `requires_grad` states for each tensor whether it does; None stands for all.
    """
    tensors = cast("Sequence[Tensor]", arrays)
    flags = [True] * len(tensors) if requires_grad is None else requires_grad
    return [x.detach().requires_grad_(x.is_floating_point() and flag) for x, flag in zip(tensors, flags, strict=True)]


def gradients_of(
    outputs: Sequence[Num[Tensor, "*_"]],
    output_gradients: Sequence[Num[Tensor, "*_"] | None],
    inputs: Sequence[Shaped[Tensor, "*_"]],
    create_graph: bool = False,
) -> list[Num[Tensor, "*_"] | None]:
    """Return the gradient of each input, or None for an input that requires none or does not affect an output.

    Args:
        outputs: outputs of a computation on the inputs.
        output_gradients: gradient of each output; None for 0.
        create_graph: whether the gradients are differentiable.
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
    outputs: Sequence[Num[Tensor, "*_"]],
    output_gradients: Sequence[Num[Tensor, "*_"]],
    leaves: Sequence[Shaped[Tensor, "*_"]],
    sums: Sequence[Shaped[Tensor, "*_"]],
) -> None:
    """Compute the gradients of `leaves` and add each to the tensor at the same index of `sums`, in place."""
    for gradient, total in zip(gradients_of(outputs, output_gradients, leaves), sums, strict=True):
        if gradient is not None:
            total.add_(gradient)
