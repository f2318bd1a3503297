"""Learned scores: modules whose parameters are the arrays of a score. One per file."""

from qkv.nn.scores.additive import Additive
from qkv.nn.scores.alibi import ALiBi
from qkv.nn.scores.base import LearnedScore, WrapperScore
from qkv.nn.scores.biased import Biased
from qkv.nn.scores.bilinear import Bilinear
from qkv.nn.scores.class_table import ClassTable
from qkv.nn.scores.cosine import Cosine
from qkv.nn.scores.custom import Custom
from qkv.nn.scores.distances import Epanechnikov, Gaussian, Laplace, Triangular
from qkv.nn.scores.gated import Gated
from qkv.nn.scores.projected import Projected
from qkv.nn.scores.quadratic_position import QuadraticPosition
from qkv.nn.scores.relative_position import RelativePosition
from qkv.nn.scores.separable_gate import SeparableGate
from qkv.nn.scores.softcap import Softcap
from qkv.nn.scores.sum_of import SumOf

__all__ = [
    "LearnedScore",
    "WrapperScore",
    "Additive",
    "Bilinear",
    "Gated",
    "SeparableGate",
    "Cosine",
    "Projected",
    "SumOf",
    "Gaussian",
    "Laplace",
    "Epanechnikov",
    "Triangular",
    "Softcap",
    "Biased",
    "ALiBi",
    "RelativePosition",
    "QuadraticPosition",
    "ClassTable",
    "Custom",
]
