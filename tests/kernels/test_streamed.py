"""The streamed kernel."""

from qkv.kernels import StreamedKernel
from qkv.testing.kernels import KernelContract


class TestStreamed(KernelContract):
    kernel = StreamedKernel(budget=12, strip_budget=3000)
