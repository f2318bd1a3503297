"""Seeing attention: pictures of answers, heatmaps of weights, and weights through several layers."""

from qkv.look.heatmaps import alignment, attention, heads, heatmaps
from qkv.look.picture import draw, save
from qkv.look.through import by_gradient, by_value_norm, flow, rollout

__all__ = [
    "alignment",
    "attention",
    "by_gradient",
    "by_value_norm",
    "draw",
    "flow",
    "heads",
    "heatmaps",
    "rollout",
    "save",
]
