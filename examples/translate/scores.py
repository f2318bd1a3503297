"""Scores by name, the values of `--score`."""

from collections.abc import Callable
from typing import Any

from qkv import nn, scores

__all__ = ["SCORES"]


def _additive(query_width: int, key_width: int, heads: int | None = None) -> Any:
    # With half as many hidden units as the width, the score costs about as much as a GRU step.
    return nn.Additive(query_width, key_width, hidden=max(1, query_width // 2), heads=heads)


SCORES: dict[str, Callable[..., Any]] = {
    "additive": _additive,
    "scaled-dot": lambda query_width, key_width, heads=None: scores.ScaledDot(),
    "bilinear": nn.Bilinear,
    "gated": nn.Gated,
    "gaussian": nn.Gaussian,
}
"""Functions that create a score and its parameters from the widths of query and key and the number of heads."""
