"""The dense kernel."""

from qkv.kernels import DenseKernel
from qkv.testing.kernels import KernelContract


class TestDense(KernelContract):
    kernel = DenseKernel()
    quadratic = True
