"""Seeing attention: answers and regressions, heatmaps, weights through several layers, the widget."""

from qkv.look.answer_plot import answer
from qkv.look.heatmaps import alignment, attention, heads, heatmaps
from qkv.look.query_plot import draw, save
from qkv.look.regression_plot import regression
from qkv.look.rollout import flow, gradient_weighted, norm_weighted, rollout
from qkv.look.views import TokenAxis, View
from qkv.look.widget import widget

__all__ = [
    "TokenAxis",
    "View",
    "alignment",
    "answer",
    "attention",
    "gradient_weighted",
    "norm_weighted",
    "draw",
    "flow",
    "heads",
    "heatmaps",
    "regression",
    "rollout",
    "save",
    "widget",
]
