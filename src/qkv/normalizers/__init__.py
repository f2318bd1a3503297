"""Normalizers, which map rows of logits to weights."""

from qkv.core.extras import alias_modules
from qkv.normalizers.base import Normalizer
from qkv.normalizers.custom import Custom
from qkv.normalizers.entmax import Entmax, Entmax15, Sparsemax
from qkv.normalizers.hard import Hard, Sample
from qkv.normalizers.linear import Identity, Mean, Sigmoid, Sum
from qkv.normalizers.softmax import Softmax
from qkv.normalizers.topk import TopK

__all__ = [
    "Normalizer",
    "Softmax",
    "Sum",
    "Mean",
    "Identity",
    "Sigmoid",
    "Hard",
    "TopK",
    "Sparsemax",
    "Entmax15",
    "Entmax",
    "Sample",
    "Custom",
    "NORMALIZERS",
]

NORMALIZERS: dict[str, type[Normalizer]] = {
    "softmax": Softmax,
    "sum": Sum,
    "mean": Mean,
    "identity": Identity,
    "sigmoid": Sigmoid,
    "hard": Hard,
    "topk": TopK,
    "sparsemax": Sparsemax,
    "entmax15": Entmax15,
    "entmax": Entmax,
    "sample": Sample,
}
"""Normalizer classes by the names that `Score.default_normalizer` and the command line use."""

alias_modules(__name__, {"linear": "sum mean identity sigmoid", "entmax": "sparsemax entmax15", "hard": "sample"})
