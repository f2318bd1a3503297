"""Algorithms that run a call, called kernels. The planner takes the first of them if costs are equal.

The module of a kernel is imported for the first call with arrays that the kernel supports.
"""

from qkv.core.extras import lazy_attributes
from qkv.plan.kernel_protocol import Kernel, LazyKernel

__all__ = ["KERNELS", "LAZY_KERNELS"]

KERNELS: tuple[Kernel, ...]
"""All kernels; their modules are imported with this name."""

_TORCH = ("torch",)
LAZY_KERNELS = (
    LazyKernel("fused", _TORCH, "fused.kernel", "FusedKernel"),
    LazyKernel("linear", ("numpy", "torch", "jax"), "linear.kernel", "LinearKernel"),
    LazyKernel("dense", ("numpy", "torch", "jax", "tensorflow"), "dense.kernel", "DenseKernel"),
    LazyKernel("batched", _TORCH, "batched.kernel", "BatchedKernel"),
    LazyKernel("tiled", _TORCH, "tiled.kernel", "TiledKernel"),
    LazyKernel("row_blocks", _TORCH, "row_blocks.kernel", "RowBlocksKernel"),
    LazyKernel("numpy_blocks", ("numpy",), "numpy_blocks.kernel", "NumpyBlocksKernel"),
    LazyKernel("jax_loops", ("jax",), "jax_loops.kernel", "JaxLoopsKernel"),
    LazyKernel("tensorflow_blocks", ("tensorflow",), "tensorflow_blocks.kernel", "TensorflowBlocksKernel"),
    LazyKernel("triton", _TORCH, "triton.kernel", "TritonKernel"),
    LazyKernel("flex", _TORCH, "flex.kernel", "FlexKernel"),
    LazyKernel("triton_products", _TORCH, "triton.product_kernel", "TritonProductsKernel"),
    LazyKernel("triton_readouts", _TORCH, "triton.readout_kernel", "TritonReadoutsKernel"),
    LazyKernel("triton_traced", _TORCH, "triton.traced.kernel", "TracedScoreKernel"),
    LazyKernel("jax_fused", ("jax",), "jax_fused.kernel", "JaxFusedKernel"),
)
"""All kernels in the order of preference, by name, libraries, module and class."""

_load = lazy_attributes(__name__, {each.class_name: each.module for each in LAZY_KERNELS})


def __getattr__(name: str) -> object:
    return tuple(each.kernel for each in LAZY_KERNELS) if name == "KERNELS" else _load(name)
