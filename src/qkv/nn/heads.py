"""The maps of one head, by name: views of the module's weights, not copies."""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["Head", "rows_of_head"]

Tensor = torch.Tensor


class Head(NamedTuple):
    """W_Q, W_K, W_V and W_O of one head, and their biases; None where there is no such map.

    They share memory with the module: what is written into one is the module's at once.

    Attributes:
        query_map: W_Q `(head_width, width)`
        key_map: W_K `(head_width, key_width)`; that of the query where the map is shared.
        value_map: W_V `(head_value_width, value_width)`
        output_map: W_O `(width, head_value_width)`
        query_bias, key_bias: `(head_width,)`
        value_bias: `(head_value_width,)`
    """

    query_map: Tensor | None
    key_map: Tensor | None
    value_map: Tensor | None
    output_map: Tensor | None
    query_bias: Tensor | None
    key_bias: Tensor | None
    value_bias: Tensor | None


def rows_of_head(linear: torch.nn.Module | None, head: int, heads: int) -> tuple[Tensor | None, Tensor | None]:
    """The rows of a map's weight that belong to one head, and of its bias."""
    if linear is None:
        return None, None
    weight, bias = linear.weight, linear.bias
    assert isinstance(weight, torch.Tensor)
    width = weight.shape[0] // heads
    rows = slice(head * width, (head + 1) * width)
    return weight[rows], bias[rows] if isinstance(bias, torch.Tensor) else None
