"""Plots of answers, regressions and attention weights, attention rollout and flow, and interactive attention maps."""

from qkv.look.answer_plot import plot_answer
from qkv.look.heatmaps import alignment, attention, heads, heatmaps
from qkv.look.model_views import model
from qkv.look.query_plot import plot_query, save_query_plot
from qkv.look.regression_plot import plot_regression
from qkv.look.rollout import flow, gradient_weighted, norm_weighted, rollout
from qkv.look.views import TokenAxis, View
from qkv.look.widget import widget

__all__ = [
    "TokenAxis",
    "View",
    "alignment",
    "attention",
    "flow",
    "gradient_weighted",
    "heads",
    "heatmaps",
    "model",
    "norm_weighted",
    "plot_answer",
    "plot_query",
    "plot_regression",
    "rollout",
    "save_query_plot",
    "widget",
]
