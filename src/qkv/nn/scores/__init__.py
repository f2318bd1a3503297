"""Learned scores: modules whose parameters are the arrays of a score."""

from qkv.nn.scores.base import LearnedScore, WrapperScore
from qkv.nn.scores.learned import (
    Additive,
    Bilinear,
    Cosine,
    Custom,
    Epanechnikov,
    Gated,
    Gaussian,
    Laplace,
    SeparableGate,
    SumOf,
    Triangular,
)
from qkv.nn.scores.wrappers import (
    ALiBi,
    Biased,
    ClassTable,
    Projected,
    QuadraticPosition,
    RelativePosition,
    Softcap,
)

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
