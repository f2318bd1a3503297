"""Settings of a measurement on a GPU, and of a dry run on a CPU that checks the results of every row on tiny shapes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from benchmarks._calls import Call
from qkv import normalizers, scores
from qkv.kernels import FlexKernel, TritonKernel, TritonProductsKernel, TritonReadoutsKernel

__all__ = ["DTYPES", "Setting", "make_call", "prepare_cpu"]

Item = TypeVar("Item")
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_ON_CPU = {
    "triton": TritonKernel(interpreted=True, block=(16, 16)),
    "triton_products": TritonProductsKernel(interpreted=True, block=(16, 16)),
    "triton_readouts": TritonReadoutsKernel(interpreted=True, block=(16, 16)),
    "flex": FlexKernel(eager=True),
}
"""The kernels for GPUs as they run on tensors of a CPU."""


def prepare_cpu() -> None:
    """Let FlexAttention compute gradients on CPUs, which it refuses although its definition computes them."""
    from torch.nn.attention import flex_attention

    flex_attention._validate_device = lambda *_: None  # type: ignore[assignment]


@dataclass(frozen=True)
class Setting:
    """Options of a measurement.

    Attributes:
        device: "cuda", or "cpu" for a dry run: tiny shapes, in Triton's interpreter.
        rounds: number of rounds in which all implementations run.
    """

    device: str = "cuda"
    rounds: int = 5

    @property
    def on_gpu(self) -> bool:
        """Whether tensors are on a GPU."""
        return self.device == "cuda"

    @property
    def least(self) -> float:
        """Smallest number of seconds of a sample, for which short calls are repeated."""
        return 0.02 if self.on_gpu else 0.0

    def size(self, full: Item, small: Item) -> Item:
        """Return `full`, or `small` in a dry run."""
        return full if self.on_gpu else small

    def kernel(self, name: str) -> Any:
        """Return the argument `kernel`: the name, and on a CPU the kernel as the interpreter or PyTorch runs it."""
        return name if self.on_gpu else _ON_CPU.get(name, name)

    def compile(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """Compile a function; on a CPU it is traced and runs without code generation, which would take long."""
        return torch.compile(function, **(options if self.on_gpu else options | {"backend": "eager"}))

    def synchronize(self) -> None:
        """Wait until the GPU has finished."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def randn(self, *shape: int, dtype: torch.dtype = torch.float32, gradient: bool = False) -> Any:
        """Return normally distributed numbers on the device."""
        return torch.randn(shape, device=self.device).to(dtype).requires_grad_(gradient)


def make_call(
    setting: Setting,
    name: str,
    shape: tuple[int, ...],
    *,
    dtype: torch.dtype = torch.float32,
    gradient: bool = False,
    kernel: str | None = None,
    key_shape: tuple[int, ...] | None = None,
    **options: Any,
) -> Call:
    """Return a call with normally distributed inputs of a fixed seed.

    Args:
        setting: where it runs.
        name: name of the score, for "additive" and "gated" together with its trained parameters.
        shape: shape of the queries, whose last axis is also the width of the values.
        dtype: dtype of the inputs and parameters.
        gradient: whether gradients are computed.
        kernel: name of the kernel; None for the choice of the planner.
        key_shape: shape of keys and values, by default that of the queries.
        **options: further arguments of `qkv.attend`.
    """
    torch.manual_seed(0)
    draw: Callable[..., Any] = partial(setting.randn, dtype=dtype, gradient=gradient)
    key_shape = key_shape or shape
    query, key, value = draw(*shape), draw(*key_shape), draw(*key_shape)
    width, trained = shape[-1], ()
    root = 1 / math.sqrt(width)

    def weight(*sides: int) -> Any:
        return (draw(*sides).detach() * root).requires_grad_(gradient)

    if name == "additive":
        trained = weight(width, width), weight(width, width), weight(width)
        options["score"] = scores.Additive(trained[0], trained[1], None, trained[2])
    elif name == "gated":
        trained = weight(width), weight(width)
        options["score"] = scores.Gated(*trained)
    options = {"score": scores.ScaledDot(), "normalizer": normalizers.Softmax()} | options
    if kernel is not None:
        options["kernel"] = setting.kernel(kernel)
    towards = setting.randn(*query.shape[:-1], value.shape[-1], dtype=dtype) if gradient else None
    return Call(name, query, key, value, options, trained, towards)
