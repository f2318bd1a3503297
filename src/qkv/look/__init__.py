"""Seeing attention: pictures of answers and regressions, heatmaps, and weights through several layers."""

from qkv.look.answered import answer
from qkv.look.heatmaps import alignment, attention, heads, heatmaps
from qkv.look.picture import draw, save
from qkv.look.regression import regression
from qkv.look.through import by_gradient, by_value_norm, flow, rollout

__all__ = [
    "alignment",
    "answer",
    "attention",
    "by_gradient",
    "by_value_norm",
    "draw",
    "flow",
    "heads",
    "heatmaps",
    "regression",
    "rollout",
    "save",
]
