"""The NumPy block kernel."""

from qkv.kernels import NumpyBlocksKernel
from qkv.testing.kernels import KernelContract


class TestNumpyBlocks(KernelContract):
    kernel = NumpyBlocksKernel(budget=12, row_block_budget=3000)
