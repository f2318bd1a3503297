"""Kernels as they run on a GPU, on tensors of the CPU, and a check that nothing waits for the results of a GPU."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from unittest import mock

import torch
import torch.nn.attention.bias
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.core.equation import BoundCall
from qkv.kernels import FusedKernel
from qkv.plan import Kernel, Problem
from qkv.plan.devices import DEFAULT_GPU

__all__ = ["fused_on_gpu", "no_synchronization", "on_gpu"]

READS = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "unique", "is_nonzero", "allclose")
"""Operators whose results the host needs, in parts of their names: on a GPU they wait for all earlier operations."""


class _RefuseReads(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.name().removeprefix("aten::").partition(".")[0]
        if name in READS or name.startswith("_unique"):
            raise AssertionError(f"{name} waits for the GPU")
        return func(*args, **(kwargs or {}))


def _refuse(*_: object, **__: object) -> None:
    raise AssertionError("an array is copied to the host")


@contextmanager
def no_synchronization() -> Iterator[None]:
    """Raise an `AssertionError` wherever a GPU would have to finish before Python can go on."""
    refused = (mock.patch.object(torch.Tensor, name, _refuse) for name in ("tolist", "numpy"))
    # PyTorch cannot create this tensor subclass while operators are intercepted.
    lower = mock.patch.object(torch.nn.attention.bias, "causal_lower_right", _lower_right)
    with ExitStack() as stack:
        for context in (*refused, lower, _RefuseReads()):
            stack.enter_context(context)
        yield


def _lower_right(q: int, k: int) -> torch.Tensor:
    return torch.ones(q, k, dtype=torch.bool).tril(k - q)


def on_gpu(problem: Problem) -> Problem:
    """Return a problem as if its arrays were on a GPU."""
    return replace(problem, device=DEFAULT_GPU)


@dataclass(frozen=True)
class _FusedOnGpu(FusedKernel):
    def limits(self, problem):  # type: ignore[no-untyped-def]
        return super().limits(on_gpu(problem))

    def scratch(self, problem):  # type: ignore[no-untyped-def]
        return super().scratch(on_gpu(problem))

    def keeps_dtype(self, problem):  # type: ignore[no-untyped-def]
        return super().keeps_dtype(on_gpu(problem))

    def prepare(self, problem):  # type: ignore[no-untyped-def]
        return super().prepare(on_gpu(problem))

    def run(self, call: BoundCall, problem: Problem):  # type: ignore[no-untyped-def]
        with no_synchronization():
            return super().run(call, on_gpu(problem))


def fused_on_gpu() -> Kernel:
    """Return the fused kernel, which runs tensors of a CPU as it runs those of a GPU, without reading results back."""
    return _FusedOnGpu()
