"""Run each kernel once on this machine: is it right, and how long does it take."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import numpy as np

from qkv import normalizers, scores
from qkv.core.progress import Progress, track
from qkv.core.typing import ArrayLike, Num
from qkv.engine import attend
from qkv.errors import RefusedError
from qkv.kernels import KERNELS
from qkv.normalizers import Normalizer
from qkv.plan import Kernel
from qkv.scores import Score

_MODULES = {"numpy": "numpy", "torch": "torch", "jax": "jax.numpy", "tensorflow": "tensorflow"}
_SHAPE = (4, 512, 64)
_REPEATS = 5
_TOLERANCE = 1e-5


@dataclass(frozen=True)
class KernelCheck:
    """Result of running a kernel with the arrays of a library.

    Attributes:
        kernel: name of the kernel.
        library: name of the array library.
        milliseconds: median wall time of a call; None if the call was not run.
        error: largest difference from the equation in float64, relative to the largest value of the output.
        problem: why the kernel did not run or is wrong, as a sentence; empty if it is right.
        wrong: whether it failed or its output is wrong, rather than not being meant for this machine.
    """

    kernel: str
    library: str
    milliseconds: float | None
    error: float | None
    problem: str = ""
    wrong: bool = False


_ON_GPUS = ("triton", "flex", "triton_products", "triton_readouts", "triton_traced")
"""Names of the kernels that run only on GPUs."""


def installed_libraries() -> list[str]:
    """Return the names of the array libraries that are installed and that kernels support; none is imported."""
    return [name for name, module in _MODULES.items() if find_spec(module.partition(".")[0])]


def check_kernels(libraries: Iterable[str], progress: Progress | None = None) -> list[KernelCheck]:
    """Run a call on each kernel with the arrays of each library, and compare its output with the equation in float64.

    The call has 4 heads of 512 queries and keys of width 64 in float32: softmax of scaled dot products, or, for the
    kernel `linear`, the sum of inner products of features. Kernels for GPUs are run if there is one.

    Args:
        libraries: names from `installed_libraries`.
        progress: callback for progress.

    Returns:
        One result for each kernel and library that it supports, in the order of the kernels.
    """
    pairs = [(kernel, library) for kernel in KERNELS for library in libraries if library in kernel.libraries]
    return [_check(kernel, library) for kernel, library in track(pairs, "running the kernels", progress)]


def _check(kernel: Kernel, library: str) -> KernelCheck:
    features = kernel.name == "linear"
    score: Score = scores.Features("relu") if features else scores.ScaledDot()
    normalizer: Normalizer = normalizers.Sum() if features else normalizers.Softmax()
    draw = np.random.default_rng(0)
    sides = [np.abs(draw.normal(size=_SHAPE)).astype(np.float32) for _ in range(3)]
    try:
        arrays = [_array(side, library, kernel.name in _ON_GPUS) for side in sides]
        times = []
        for _ in range(_REPEATS + 1):  # the first call compiles
            start = time.perf_counter()
            output = np.asarray(_to_numpy(attend(*arrays, score=score, normalizer=normalizer, kernel=kernel.name)))
            times.append(time.perf_counter() - start)
    except RefusedError as error:
        reason = str(error).partition("this call: ")[2].partition(". ")[0]
        return KernelCheck(kernel.name, library, None, None, f"not run: {reason or error}")
    except Exception as error:  # a broken installation fails with any error, which the report states
        return KernelCheck(kernel.name, library, None, None, f"it failed: {type(error).__name__}: {error}", True)
    expected = _equation(sides, softmax=not features)
    difference = float(np.abs(output - expected).max() / np.abs(expected).max())
    wrong = not difference < _TOLERANCE
    problem = f"its output differs from the equation by {difference:.1e}" if wrong else ""
    return KernelCheck(kernel.name, library, 1e3 * float(np.median(times[1:])), difference, problem, wrong)


def _array(side: Num[np.ndarray, "*shape"], library: str, on_gpu: bool) -> ArrayLike:
    with _quiet():
        module = import_module(_MODULES[library])
    if library == "numpy":
        return side
    if library == "torch":
        return module.as_tensor(side, device="cuda" if on_gpu and module.cuda.is_available() else "cpu")
    return module.asarray(side) if library == "jax" else module.constant(side)


@contextmanager
def _quiet() -> Iterator[None]:
    """Discard what is written to stderr: TensorFlow writes lines while it is imported, whatever its settings."""
    sys.stderr.flush()
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


def _to_numpy(output: ArrayLike) -> ArrayLike:
    return output.cpu().numpy() if "torch" in type(output).__module__ else output


def _equation(sides: Iterable[Num[np.ndarray, "h n d"]], softmax: bool) -> Num[np.ndarray, "h q v"]:
    """Return the output in float64 with NumPy alone."""
    query, key, value = (side.astype(np.float64) for side in sides)
    logits = query @ key.swapaxes(-1, -2)
    if softmax:
        weights = np.exp((logits - logits.max(axis=-1, keepdims=True)) / np.sqrt(query.shape[-1]))
    else:
        weights = logits
    result: Num[np.ndarray, "h q v"] = weights / weights.sum(axis=-1, keepdims=True) @ value
    return result
