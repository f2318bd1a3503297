"""Normalizers, which map rows of logits to weights."""

from qkv.normalizers.base import Normalizer
from qkv.normalizers.custom import Custom
from qkv.normalizers.entmax import Entmax
from qkv.normalizers.entmax15 import Entmax15
from qkv.normalizers.hard import Hard
from qkv.normalizers.identity import Identity
from qkv.normalizers.mean import Mean
from qkv.normalizers.sample import Sample
from qkv.normalizers.sigmoid import Sigmoid
from qkv.normalizers.softmax import Softmax
from qkv.normalizers.sparsemax import Sparsemax
from qkv.normalizers.sum import Sum
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
