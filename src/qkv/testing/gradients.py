"""What the suites share about gradients: numerical checks in PyTorch, and JAX beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qkv.testing.libraries import LIBRARIES, Setting, assert_close, to_float64

__all__ = ["assert_jax_agrees", "assert_numerical", "torch_gradients"]


def assert_numerical(function: Callable[..., Any], inputs: list[Any], second: bool) -> None:
    """Compare PyTorch's gradients with differences of the function; `second`: and the gradients of the
    gradients.

    Args:
        function: of the inputs; what it gives must be finite.
        inputs: float64 NumPy arrays.
        second: check second derivatives too.
    """
    import torch

    leaves = [torch.tensor(x, requires_grad=True) for x in inputs]
    assert torch.autograd.gradcheck(function, leaves, fast_mode=True)
    if second:
        assert torch.autograd.gradgradcheck(function, leaves, fast_mode=True)


def torch_gradients(function: Callable[..., Any], inputs: list[Any]) -> tuple[Any, list[Any]]:
    """Value, and gradients (0 where there is none) of a scalar function of float64 NumPy arrays."""
    import torch

    leaves = [torch.tensor(x, requires_grad=True) for x in inputs]
    value = function(*leaves)
    if not value.requires_grad:
        return to_float64(value), [np.zeros(x.shape) for x in leaves]
    found = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
    return to_float64(value), [to_float64(gradient) for gradient in found]


def assert_jax_agrees(function: Callable[..., Any], inputs: list[Any], tolerance: float = 1e-10) -> None:
    """Fail unless `jax.jit(jax.grad(function))` gives what PyTorch gives."""
    if not {"torch", "jax"} <= set(LIBRARIES):
        return
    import jax

    _, wanted = torch_gradients(function, inputs)
    setting = Setting("jax", "float64")
    with setting.active():
        arrays = [setting.array(x) for x in inputs]
        got = jax.jit(jax.grad(function, argnums=tuple(range(len(arrays)))))(*arrays)
        for n, (mine, theirs) in enumerate(zip(got, wanted, strict=True)):
            assert_close(mine, theirs, tolerance, said=f"gradient of input {n}:", least=1.0)
