"""Contract test suites to inherit for your own scores, normalizers, masks, readouts and kernels."""

from qkv.errors import MissingPackageError

try:
    # Imported here, so that their absence raises an error with advice.
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401
except ImportError as error:
    raise MissingPackageError(
        f'qkv.testing needs pytest and hypothesis ({error.name} is missing): pip install "qkv[test]"'
    ) from None

from qkv.testing.examples import At, Draw, RowAt
from qkv.testing.kernels import KernelContract
from qkv.testing.libraries import LIBRARIES, Setting, assert_close
from qkv.testing.masks import MaskContract
from qkv.testing.normalizers import NormalizerContract
from qkv.testing.parts import PartContract
from qkv.testing.readouts import ReadoutContract
from qkv.testing.scores import ScoreContract

__all__ = [
    "At",
    "Draw",
    "KernelContract",
    "LIBRARIES",
    "MaskContract",
    "NormalizerContract",
    "PartContract",
    "ReadoutContract",
    "RowAt",
    "ScoreContract",
    "Setting",
    "assert_close",
]
