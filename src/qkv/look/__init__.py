"""Seeing attention: answers and regressions, heatmaps, weights through several layers, the widget."""

from qkv.look.answered import answer
from qkv.look.heatmaps import alignment, attention, heads, heatmaps
from qkv.look.picture import draw, save
from qkv.look.regression import regression
from qkv.look.through import by_gradient, by_value_norm, flow, rollout
from qkv.look.views import Side, View
from qkv.look.widget import widget

__all__ = [
    "Side",
    "View",
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
    "widget",
]
