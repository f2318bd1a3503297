"""Arrays that a program reads: what depends on queries or keys alone, computed by PyTorch from a recording."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from qkv.core.typing import Shaped, Tensor
from qkv.kernels.triton.traced.recording import KEYS, QUERIES, Operation, Recorded, Recording
from qkv.kernels.triton.traced.translation import Input

__all__ = ["program_inputs"]


def program_inputs(
    recording: Recording,
    inputs: Sequence[Input],
    batch: tuple[int, ...],
    lengths: tuple[int, int],
    tensors: Sequence[Shaped[Tensor, "*_"]],
) -> list[Shaped[Tensor, "*_"]]:
    """Return the arrays that a program reads, in single precision and contiguous.

    Args:
        recording: the recording.
        inputs: the inputs of the program.
        batch: lengths of the batch axes of the call.
        lengths: numbers of queries and keys of the call.
        tensors: the arguments of the recorded function, of which query and key have all batch axes.
    """
    computed: dict[Recorded, Tensor] = dict(zip(recording.arguments, tensors, strict=True))
    device = tensors[0].device
    for x in recording.constants:
        assert x.constant is not None
        # PyTorch combines a number on the CPU with tensors on a GPU.
        computed[x] = x.constant.to(device, non_blocking=True) if x.shape else x.constant
    needed = _needed(recording, [x.array for x in inputs])
    for operation, results in recording.operations:
        if operation in needed:
            _run(operation, results, computed, lengths, device)
    return [_arranged(x, computed[x.array], batch, lengths).to(device, non_blocking=True) for x in inputs]


def _needed(recording: Recording, wanted: Sequence[Recorded]) -> set[Operation]:
    """Return the operations on which arrays depend."""
    found: set[Operation] = set()
    stack = list(wanted)
    while stack:
        source = stack.pop().source
        if source is not None and source not in found:
            found.add(source)
            stack += source.arrays()
    return found


def _run(
    operation: Operation,
    results: tuple[Recorded, ...],
    computed: dict[Recorded, Tensor],
    lengths: tuple[int, int],
    device: Any,
) -> None:
    import torch
    from torch.utils._pytree import tree_leaves, tree_map

    def actual(x: Any) -> Any:
        if isinstance(x, Recorded):
            return computed[x]
        if isinstance(x, torch.device):
            return device
        if type(x) is int:
            return _length(x, lengths)
        return x

    # A view of the recording may be impossible for the strides of the call.
    function = torch.reshape if operation.name in ("view", "_unsafe_view") else operation.operator
    arguments, options = tree_map(actual, (operation.arguments, operation.options))
    returned = [x for x in tree_leaves(function(*arguments, **options)) if isinstance(x, torch.Tensor)]
    computed.update(zip(results, returned, strict=True))


def _length(n: int, lengths: tuple[int, int]) -> int:
    """Return the number that stands for a number of a recording."""
    for recorded, own in zip((QUERIES, KEYS), lengths, strict=True):
        if n and n % recorded == 0:
            n = n // recorded * own
    return n


def _arranged(
    x: Input, tensor: Shaped[Tensor, "*_"], batch: tuple[int, ...], lengths: tuple[int, int]
) -> Shaped[Tensor, "*_"]:
    """Return an array with its batch axes merged, and with the axis of rows last, or that of features for products."""
    import torch

    words = [word for label in x.axes for word in label]
    sizes = {"q": lengths[0], "k": lengths[1], "f": x.features, **{f"b{n}": m for n, m in enumerate(batch)}}
    tensor = tensor.reshape([sizes[word] for word in words])
    lead = [f"b{n}" for n in range(len(batch))]
    order = [word for word in (*lead, x.rows, "f") if word in words]
    tensor = tensor.permute([words.index(word) for word in order])
    if x.batched:
        tensor = tensor.reshape(
            [*(sizes[n] if n in words else 1 for n in lead), *tensor.shape[len(set(lead) & set(words)) :]]
        )
        tensor = tensor.expand(*batch, *tensor.shape[len(batch) :])
        tensor = tensor.reshape(math.prod(batch), *tensor.shape[len(batch) :])
    else:
        tensor = tensor[None]
    if x.product and "f" not in words:
        tensor = tensor[..., None]
    elif x.rows and x.features and not x.product:
        tensor = tensor.mT
    return tensor.to(torch.float32).contiguous()
