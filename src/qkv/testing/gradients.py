"""Compare PyTorch gradients with finite differences, and JAX gradients with PyTorch gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qkv.core.typing import ArrayLike, Float, Tensor
from qkv.testing.libraries import LIBRARIES, Setting, assert_close, to_float64


def assert_numerical(function: Callable[..., ArrayLike], inputs: list[ArrayLike], second: bool) -> None:
    """Assert that PyTorch's gradients of a function agree with finite differences.

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


def torch_gradients(function: Callable[..., ArrayLike], inputs: list[ArrayLike]) -> tuple[ArrayLike, list[ArrayLike]]:
    """Return the value and the gradients of a scalar function in PyTorch, given float64 NumPy arrays.

    The gradient of an input on which the function does not depend is 0.
    """
    import torch

    leaves = [torch.tensor(x) for x in inputs]
    value, found = in_torch(lambda leaves: function(*leaves), leaves, torch.ones_like)
    return to_float64(value), [to_float64(gradient) for gradient in found]


def in_torch(
    function: Callable[[list[Tensor]], Float[Tensor, "*shape"]],
    leaves: list[Float[Tensor, "*_"]],
    factors: Callable[[Float[Tensor, "*shape"]], Float[Tensor, "*shape"]],
) -> tuple[Float[Tensor, "*shape"], Sequence[Float[Tensor, "*_"]]]:
    """Return the output of a PyTorch function and the gradient of each of its arguments.

    Args:
        function: function of the leaves.
        leaves: tensors, which are made to require a gradient. The gradient of an unused leaf is 0.
        factors: function that returns the gradient of the output, given the output.
    """
    import torch

    leaves = [leaf.requires_grad_() for leaf in leaves]
    output = function(leaves)
    if not output.requires_grad:
        return output, [torch.zeros_like(leaf) for leaf in leaves]
    return output, torch.autograd.grad(output, leaves, factors(output), allow_unused=True, materialize_grads=True)


def assert_jax_agrees(function: Callable[..., ArrayLike], inputs: list[ArrayLike], tolerance: float = 1e-10) -> None:
    """Assert that `jax.jit(jax.grad(function))` gives the gradients of PyTorch.

    Nothing is checked unless both libraries are installed.
    """
    if not {"torch", "jax"} <= set(LIBRARIES):
        return
    import jax

    _, expected = torch_gradients(function, inputs)
    setting = Setting("jax", "float64")
    with setting.active():
        arrays = [setting.array(x) for x in inputs]
        got = jax.jit(jax.grad(function, argnums=tuple(range(len(arrays)))))(*arrays)
        for n, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
            assert_close(mine, theirs, tolerance, message=f"gradient of input {n}:", min_scale=1.0)
