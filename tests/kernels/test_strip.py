"""The strip kernel."""

from qkv.kernels import StripKernel
from qkv.testing.kernels import KernelContract


class TestStrip(KernelContract):
    kernel = StripKernel(budget=3000)
