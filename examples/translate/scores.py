"""Scores by name, as `--score` chooses them."""

from collections.abc import Callable
from typing import Any

from qkv import nn, scores

__all__ = ["SCORES"]


def _additive(query_width: int, key_width: int, heads: int | None = None) -> Any:
    # Half as many hidden units as the width: the score then costs about what the GRU's step does.
    return nn.Additive(query_width, key_width, hidden=max(1, query_width // 2), heads=heads)


SCORES: dict[str, Callable[..., Any]] = {
    "additive": _additive,
    "scaled-dot": lambda query_width, key_width, heads=None: scores.ScaledDot(),
    "bilinear": nn.Bilinear,
    "gated": nn.Gated,
    "gaussian": nn.Gaussian,
}
"""What makes a score, with its parameters, of the widths of query and key and the number of heads."""
