"""Base class `Kernel`, whose subclasses state what they support, and the memory and work of a problem, and run it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import ClassVar, cast

from qkv.core.equation import BoundCall
from qkv.core.typing import Array, Num, ReadoutResult
from qkv.masks import Mask
from qkv.normalizers import Normalizer
from qkv.plan.problem import Problem
from qkv.plan.time_model import amounts_of_work
from qkv.scores import Score


# Not frozen: a frozen class takes three times as long to construct, and every call constructs one.
@dataclass(slots=True)
class Result:
    """Output and readouts that a kernel computed, and the guards on data that it took.

    Attributes:
        output: output `(*batch, q, value_width)`.
        readouts: one result for each readout of the problem.
        guards: one phrase for each guard on the data, which tells whether its fast path was taken.
    """

    output: Num[Array, "*batch q value_width"]
    readouts: tuple[ReadoutResult, ...] = ()
    guards: tuple[str, ...] = ()


PreparedCall = Callable[[Array, Array, Array, Score, Normalizer, Mask | None], Result | None]
"""Function of query, key, value, score, normalizer and mask that runs a call whose other arguments are fixed.

It returns None if it does not support the data; the call must then be run by `Kernel.run`.
"""


class Elsewhere(str):
    """A reason why a kernel cannot run a problem: it is for arrays of other libraries, or on other processors."""

    __slots__ = ()


class Kernel(ABC):
    """Base class of kernels, which are algorithms that compute the output and the readouts of a call.

    Attributes:
        name: name by which the argument `kernel` selects the kernel.
        libraries: array libraries that the kernel supports.
        guards: descriptions of the conditions on data that the kernel checks at run time, as "if … else …".
        casts_tiles: whether the kernel casts inputs to the dtype of accumulation tile by tile, and not at once.
        traceable: whether the kernel supports arrays without data, as in `torch.func.vmap` and `torch.export`.
        saves_statistics: whether backward in the operator of `torch.compile` does not run the forward pass again.
        checks_distances: whether the function of `prepare` returns None for a `Gaussian` whose products lose digits.
        runs_on_gpu: whether the kernel runs on GPUs.
        prepares_all_lengths: whether the function of `prepare` runs calls of any number of keys, if neither score nor
            mask depends on positions.
    """

    name: ClassVar[str]
    libraries: ClassVar[tuple[str, ...]]
    guards: ClassVar[tuple[str, ...]] = ()
    casts_tiles: ClassVar[bool] = False
    traceable: ClassVar[bool] = False
    saves_statistics: ClassVar[bool] = False
    checks_distances: ClassVar[bool] = False
    runs_on_gpu: ClassVar[bool] = False
    prepares_all_lengths: ClassVar[bool] = False

    def refuse(self, problem: Problem) -> str | None:
        """Return the reason why this kernel cannot run a problem, or None if it can."""
        if problem.library not in self.libraries:
            return _other_library(self.libraries, problem)
        if problem.device.is_gpu and not self.runs_on_gpu:
            return Elsewhere("it is written for the caches and threads of CPUs")
        return next(iter(self.limits(problem)), None)

    def limits(self, problem: Problem) -> Iterable[str]:
        """Yield a reason for each limit of the kernel that a problem exceeds; `refuse` uses only the first.

        The library of the problem is already checked. By default there are no limits.
        """
        return ()

    @abstractmethod
    def scratch(self, problem: Problem) -> float:
        """Return the peak number of bytes in memory besides inputs, output, gradients and results of readouts."""

    def work(self, problem: Problem) -> Mapping[str, float]:
        """Return the amounts of work of a problem by the names in `time_model.WORK`, by default those of all pairs."""
        return amounts_of_work(problem, problem.axes.pairs)

    def guards_of(self, problem: Problem) -> tuple[str, ...]:
        """Return descriptions of the conditions on data that the kernel checks for a problem, by default `guards`."""
        return self.guards

    def keeps_dtype(self, problem: Problem) -> bool:
        """Return whether arrays of half precision reach the kernel as they are, not cast to the dtype of accumulation.

        By default this is `casts_tiles`.
        """
        return self.casts_tiles

    def unsuited(self, problem: Problem) -> str | None:
        """Return why the planner does not choose this kernel for a problem that it can run, or None if it may."""
        return None

    @abstractmethod
    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Run a bound call and return its result.

        Args:
            call: the call.
            problem: the problem of the call, which `refuse` accepted.
        """

    def prepare(self, problem: Problem) -> PreparedCall | None:
        """Return a function that runs calls with little overhead, or None if the kernel offers none.

        The function is stored in the plan cache, so this method can precompute everything that does not depend on
        data. It is called only for problems whose inputs and arrays of parts need no cast, and which use no random
        numbers. The problem's arrays have the right shapes, but ones in place of their numbers: the function gets
        each call's parts.
        """
        return None

    def describe(self, problem: Problem) -> str:
        """Return a short description of how the kernel would run a problem, which `print(plan)` shows."""
        return ""


@dataclass(frozen=True)
class LazyKernel:
    """A kernel by its name, whose module is imported for the first problem with arrays that the kernel supports.

    Attributes:
        name: name of the kernel.
        libraries: array libraries that the kernel supports.
        module: its module, relative to `qkv.kernels`.
        class_name: its class.
    """

    name: str
    libraries: tuple[str, ...]
    module: str
    class_name: str

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel."""
        return cast("Kernel", getattr(import_module(f"qkv.kernels.{self.module}"), self.class_name)())

    def refuse(self, problem: Problem) -> str | None:
        """Return the reason why the kernel cannot run a problem, or None if it can."""
        if problem.library not in self.libraries:
            return _other_library(self.libraries, problem)
        return self.kernel.refuse(problem)


def _other_library(libraries: tuple[str, ...], problem: Problem) -> Elsewhere:
    return Elsewhere(f"it supports {' and '.join(libraries)} arrays, not {problem.library} arrays")
