"""Scores, which compare queries with keys and compute a logit for each pair."""

from qkv.core.extras import alias_modules
from qkv.scores import biased, distance, dot, gated, position_bias, text
from qkv.scores.additive import Additive
from qkv.scores.base import GeneralScore, InnerProductScore, Score
from qkv.scores.biased import *
from qkv.scores.bilinear import Bilinear
from qkv.scores.by_column import ByColumn
from qkv.scores.constant import Constant
from qkv.scores.cosine import Cosine
from qkv.scores.custom import Custom
from qkv.scores.decay import Decay
from qkv.scores.distance import *
from qkv.scores.dot import *
from qkv.scores.exact import Exact
from qkv.scores.features import Features
from qkv.scores.gated import *
from qkv.scores.gaussian import Gaussian
from qkv.scores.names import Names
from qkv.scores.position_bias import *
from qkv.scores.projected import Projected
from qkv.scores.softcap import Softcap
from qkv.scores.sum_of import SumOf
from qkv.scores.text import *
from qkv.scores.wrapper import PointwiseScore

__all__ = [
    "Score",
    "InnerProductScore",
    "PointwiseScore",
    "GeneralScore",
    "Bilinear",
    "Additive",
    "Cosine",
    "Features",
    "Projected",
    "SumOf",
    "Gaussian",
    "Constant",
    "Softcap",
    "Decay",
    "Exact",
    "Names",
    "ByColumn",
    "Custom",
]
__all__ += dot.__all__
__all__ += gated.__all__
__all__ += distance.__all__
__all__ += biased.__all__
__all__ += position_bias.__all__
__all__ += text.__all__

alias_modules(
    __name__,
    {
        "dot": "scaled_dot",
        "gated": "separable_gate",
        "position_bias": "alibi relative_position quadratic_position",
        "biased": "class_table",
        "text": "jaro_winkler levenshtein token_set_ratio spelling",
    },
)
