"""Plots of answers, regressions and attention weights, attention rollout and flow, and interactive attention maps."""

from typing import TYPE_CHECKING

from qkv.core.extras import lazy_attributes
from qkv.look.answer_plot import plot_answer
from qkv.look.axis import Axis
from qkv.look.difference import difference
from qkv.look.inline_map import map_image as _map_image  # noqa: F401 (the picture of views in notebooks)
from qkv.look.model_views import model
from qkv.look.query_plot import plot_query, save_query_plot
from qkv.look.regression_plot import plot_regression
from qkv.look.rollout import flow, gradient_weighted, norm_weighted, rollout
from qkv.look.search import search
from qkv.look.view_plot import alignment, attention, heads, heatmaps, plot_view
from qkv.look.views import View
from qkv.look.widget import widget

if TYPE_CHECKING:
    from qkv.look.answers import explorer

__all__ = [
    "Axis",
    "View",
    "alignment",
    "attention",
    "difference",
    "explorer",
    "flow",
    "gradient_weighted",
    "heads",
    "heatmaps",
    "model",
    "norm_weighted",
    "plot_answer",
    "plot_query",
    "plot_regression",
    "plot_view",
    "rollout",
    "save_query_plot",
    "search",
    "widget",
]

# Imported on first use, because the page of answers imports the packages of tables.
__getattr__ = lazy_attributes(__name__, {"explorer": "answers"}, "qkv.look.explorer needs", "ask", "pyarrow", "duckdb")
