"""Algorithms that run a call, called kernels. The planner takes the first kernel of `KERNELS` if costs are equal."""

from qkv.kernels.batched.kernel import BatchedKernel
from qkv.kernels.dense.kernel import DenseKernel
from qkv.kernels.flex.kernel import FlexKernel
from qkv.kernels.fused.kernel import FusedKernel
from qkv.kernels.jax_fused.kernel import JaxFusedKernel
from qkv.kernels.jax_loops.kernel import JaxLoopsKernel
from qkv.kernels.linear.kernel import LinearKernel
from qkv.kernels.numpy_blocks.kernel import NumpyBlocksKernel
from qkv.kernels.row_blocks.kernel import RowBlocksKernel
from qkv.kernels.tensorflow_blocks.kernel import TensorflowBlocksKernel
from qkv.kernels.tiled.kernel import TiledKernel
from qkv.kernels.triton.kernel import TritonKernel
from qkv.kernels.triton.product_kernel import TritonProductsKernel
from qkv.kernels.triton.readout_kernel import TritonReadoutsKernel
from qkv.kernels.triton.traced.kernel import TracedScoreKernel
from qkv.plan import Kernel

__all__ = ["KERNELS"]

KERNELS: tuple[Kernel, ...] = (
    FusedKernel(),
    LinearKernel(),
    DenseKernel(),
    BatchedKernel(),
    TiledKernel(),
    RowBlocksKernel(),
    NumpyBlocksKernel(),
    JaxLoopsKernel(),
    TensorflowBlocksKernel(),
    TritonKernel(),
    FlexKernel(),
    TritonProductsKernel(),
    TritonReadoutsKernel(),
    TracedScoreKernel(),
    JaxFusedKernel(),
)
