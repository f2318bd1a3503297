"""Test suites from which tests of new scores, normalizers, masks, readouts and kernels are derived."""

from qkv.core.extras import require_packages

require_packages("qkv.testing needs", "test", "pytest", "hypothesis")

from qkv.testing.cases import Draw, PairIndex, WeightRow
from qkv.testing.kernels import KernelContract
from qkv.testing.libraries import LIBRARIES, Setting, assert_close
from qkv.testing.masks import MaskContract
from qkv.testing.normalizers import NormalizerContract
from qkv.testing.parts import PartContract
from qkv.testing.readouts import ReadoutContract
from qkv.testing.scores import ScoreContract

__all__ = [
    "PairIndex",
    "Draw",
    "KernelContract",
    "LIBRARIES",
    "MaskContract",
    "NormalizerContract",
    "PartContract",
    "ReadoutContract",
    "WeightRow",
    "ScoreContract",
    "Setting",
    "assert_close",
]
