"""Functions of JAX, compiled for a platform that this machine need not have."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

__all__ = ["lowered", "with_cudnn"]

TARGETS = ("__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward", "triton_kernel_call", "__gpu$xla.gpu.triton")
"""Calls of libraries for which JAX promises no compatibility of a saved program."""


def lowered(function: Callable[..., Any], shapes: Sequence[tuple[int, ...]], dtype: str, platform: str) -> str:
    """Return the program of a function for arrays of some shapes, before the compiler of the platform optimizes it."""
    import jax
    from jax import export

    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    checks = [export.DisabledSafetyCheck.custom_call(name) for name in TARGETS]
    run = export.export(jax.jit(function), platforms=(platform,), disabled_checks=checks)
    return str(run(*arguments).mlir_module())


@contextmanager
def with_cudnn() -> Iterator[None]:
    """Make JAX believe that cuDNN is installed, and the GPU a Hopper."""
    from jax._src.cudnn import fused_attention_stablehlo as fused

    version = mock.patch.object(fused, "check_cudnn_version", return_value=91000)
    with version, mock.patch.object(fused, "check_compute_capability", return_value=True):
        yield
