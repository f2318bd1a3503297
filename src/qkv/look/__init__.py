"""Seeing attention: pictures of answers, heatmaps of weights, weights through several layers, the widget."""

from qkv.look.heatmaps import alignment, attention, heads, heatmaps
from qkv.look.picture import draw, save
from qkv.look.through import by_gradient, by_value_norm, flow, rollout
from qkv.look.views import Side, View
from qkv.look.widget import widget

__all__ = [
    "Side",
    "View",
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
    "widget",
]
