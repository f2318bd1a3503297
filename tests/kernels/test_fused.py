"""The fused kernel."""

from qkv.kernels import FusedKernel
from qkv.testing.kernels import KernelContract


class TestFused(KernelContract):
    kernel = FusedKernel()
    twice = False
