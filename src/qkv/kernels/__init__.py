"""Kernels: ways to run the equation. `KERNELS` is all of them; on a tie the planner takes the first."""

from qkv.kernels.dense import DenseKernel
from qkv.kernels.fused import FusedKernel
from qkv.kernels.scan import ScanKernel
from qkv.kernels.streamed import StreamedKernel
from qkv.kernels.strip import StripKernel
from qkv.kernels.tiled import TiledKernel
from qkv.plan import Kernel

__all__ = [
    "DenseKernel",
    "FusedKernel",
    "KERNELS",
    "ScanKernel",
    "StreamedKernel",
    "StripKernel",
    "TiledKernel",
]

KERNELS: tuple[Kernel, ...] = (
    FusedKernel(),
    DenseKernel(),
    TiledKernel(),
    StripKernel(),
    StreamedKernel(),
    ScanKernel(),
)
