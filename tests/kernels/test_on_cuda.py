"""The contract suites of the kernels that run on GPUs, on tensors of a GPU; skipped on machines without one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from qkv.kernels import KERNELS
from qkv.testing.kernels import KernelContract

if not torch.cuda.is_available():
    pytest.skip("PyTorch finds no CUDA device", allow_module_level=True)


class OnCuda(KernelContract):
    @pytest.fixture(autouse=True)
    def _tensors_on_the_gpu(self) -> Iterator[None]:
        torch.set_default_device("cuda")
        yield
        torch.set_default_device(None)

    def test_runs_scaled_dot_product_attention(self, setting: object) -> None:
        """The kernels for other scores refuse it."""
        if self.kernel.name in ("fused", "flex", "dense", "tiled", "row_blocks"):
            super().test_runs_scaled_dot_product_attention(setting)


for _kernel in KERNELS:
    if _kernel.runs_on_gpu:
        _twice = _kernel.name in ("dense", "tiled", "row_blocks", "linear")
        _facts = {"kernel": _kernel, "twice": _twice, "quadratic": _kernel.name == "dense"}
        globals()[f"Test_{_kernel.name}"] = type(f"Test_{_kernel.name}", (OnCuda,), _facts)
