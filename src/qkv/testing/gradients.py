"""Checks of gradients against finite differences in PyTorch, and of JAX against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qkv.core.typing import ArrayLike
from qkv.testing.libraries import LIBRARIES, Setting, assert_close, to_float64

__all__ = ["assert_jax_agrees", "assert_numerical", "torch_gradients"]


def assert_numerical(function: Callable[..., ArrayLike], inputs: list[ArrayLike], second: bool) -> None:
    """Assert that PyTorch's gradients agree with finite differences.

    Args:
        function: function of the inputs with finite results.
        inputs: float64 NumPy arrays.
        second: whether to check second derivatives too.
    """
    import torch

    leaves = [torch.tensor(x, requires_grad=True) for x in inputs]
    assert torch.autograd.gradcheck(function, leaves, fast_mode=True)
    if second:
        assert torch.autograd.gradgradcheck(function, leaves, fast_mode=True)


def torch_gradients(function: Callable[..., ArrayLike], inputs: list[ArrayLike]) -> tuple[Any, list[ArrayLike]]:
    """Return the value and the gradients, 0 by default, of a scalar function of float64 NumPy arrays."""
    import torch

    leaves = [torch.tensor(x, requires_grad=True) for x in inputs]
    value = function(*leaves)
    if not value.requires_grad:
        return to_float64(value), [np.zeros(x.shape) for x in leaves]
    found = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
    return to_float64(value), [to_float64(gradient) for gradient in found]


def assert_jax_agrees(function: Callable[..., ArrayLike], inputs: list[ArrayLike], tolerance: float = 1e-10) -> None:
    """Assert that `jax.jit(jax.grad(function))` agrees with PyTorch."""
    if not {"torch", "jax"} <= set(LIBRARIES):
        return
    import jax

    _, wanted = torch_gradients(function, inputs)
    setting = Setting("jax", "float64")
    with setting.active():
        arrays = [setting.array(x) for x in inputs]
        got = jax.jit(jax.grad(function, argnums=tuple(range(len(arrays)))))(*arrays)
        for n, (mine, theirs) in enumerate(zip(got, wanted, strict=True)):
            assert_close(mine, theirs, tolerance, message=f"gradient of input {n}:", min_scale=1.0)
