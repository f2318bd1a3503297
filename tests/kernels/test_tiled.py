"""The tiled kernel."""

from qkv.kernels import TiledKernel
from qkv.testing.kernels import KernelContract


class TestTiled(KernelContract):
    kernel = TiledKernel(budget=12, strip_budget=3000)
