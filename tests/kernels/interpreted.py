"""Tests of kernels whose programs Triton's interpreter runs on tensors of the CPU; skipped where it is off."""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv import masks
from qkv.plan import Kernel
from qkv.testing.cases import SCORES
from qkv.testing.execution import oracle
from qkv.testing.kernel_harness import settings_of_kernel
from qkv.testing.kernels import KernelContract
from qkv.testing.libraries import Setting
from tests.kernels.on_gpu import no_synchronization

__all__ = ["InterpretedContract", "NoProgram", "Run", "check_nothing_is_read_back", "errors", "program_names"]

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("the interpreter of Triton is off where there is a GPU", allow_module_level=True)

from triton.runtime import interpreter

_numpy_dtype = functools.cache(interpreter._get_np_dtype)
_patched: set[str] = set()


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    if self.fn.__module__ not in _patched:
        _patched.add(self.fn.__module__)
        interpreter._patch_lang(self.fn)
    return self.rewrite()(*args, **kwargs)


# A third of its time, the interpreter patches the language anew in each call of a function of a program, or looks up
# the dtype of an element.
interpreter.InterpretedFunction.__call__ = _call
interpreter._get_np_dtype = lambda dtype: np.dtype(np.uint64) if dtype.scalar.is_ptr() else _numpy_dtype(dtype.scalar)

Run = Callable[[Kernel | str, torch.dtype], list[torch.Tensor]]
"""Function that returns the output and all gradients of a call, by a kernel and in a dtype."""


def errors(run: Run, kernel: Kernel | str, dtype: torch.dtype, least: float = 1e-12) -> np.ndarray:
    """Return the largest errors of the output and of each gradient, relative to the largest element, or to `least`."""
    pairs = zip(run(kernel, dtype), run("dense", torch.float64), strict=True)
    return np.array([float((x - y).abs().max() / (y.abs().max() + least)) for x, y in pairs])


def program_names(module: Any) -> list[str]:
    """Return the names of the programs that a module defines."""
    functions = {name: getattr(thing, "fn", None) for name, thing in vars(module).items() if not name.startswith("_")}
    return [name for name, function in functions.items() if getattr(function, "__module__", "") == module.__name__]


class NoProgram:
    """Takes the place of a program: it is launched, and does nothing."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        assert all(isinstance(n, int) for n in grid)
        return lambda *_, **__: None


def check_nothing_is_read_back(
    kernel: str, part: dict[str, Any], readouts: Sequence[qkv.readouts.Readout] = ()
) -> None:
    """Assert that a call never waits for the GPU. Its programs must be replaced: the interpreter copies tensors.

    Args:
        kernel: name of the kernel.
        part: score and normalizer of the call, for vectors of width 4.
        readouts: the readouts; without any, gradients are computed.
    """
    x = torch.randn(2, 9, 4, requires_grad=not readouts)
    some = masks.AllowedKeys(torch.arange(9) != 4)
    for mask in (None, some, masks.Causal(), masks.Causal() & some, masks.Lengths(torch.tensor([3, 9]))):
        spec = qkv.Spec(**part, mask=mask, positions=qkv.Positions("end"))
        options = {"device": "H100", "library": "torch", "kernel": kernel, "gradient": not readouts}
        prepared = qkv.prepare(spec, (x.shape,) * 3, **options, readouts=readouts)
        with no_synchronization():
            seen = prepared(x, x, x)
            if not readouts:
                seen.output.sum().backward()
        assert len(seen.readouts) == len(readouts)


class InterpretedContract(KernelContract):
    """The contract with another score in place of products, which these kernels do not compute under softmax."""

    twice = False
    in_place_of_products: str

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Without float16 in short runs, which interprets the same programs as bfloat16."""
        if "setting" not in metafunc.fixturenames:
            super().pytest_generate_tests(metafunc)
            return
        named = []
        for parameter in settings_of_kernel(self.kernel):
            (setting,) = parameter.values
            long = [pytest.mark.long] if setting.dtype == "float16" else parameter.marks
            named.append(pytest.param(setting, marks=long))
        metafunc.parametrize("setting", named, ids=str)
        if "score" in metafunc.fixturenames:
            metafunc.parametrize("score", sorted(SCORES))

    @pytest.fixture(autouse=True)
    def _other_score(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        for name in ("dot", "scaled dot"):
            monkeypatch.setitem(SCORES, name, SCORES[self.in_place_of_products])
        oracle.cache_clear()  # references of products
        yield
        oracle.cache_clear()

    def test_runs_scaled_dot_product_attention(self, setting: Setting) -> None:
        if setting.dtype != "float64":
            super().test_runs_scaled_dot_product_attention(setting)
