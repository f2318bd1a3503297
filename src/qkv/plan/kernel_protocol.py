"""The interface of kernels: a kernel says which problems it refuses and what the others cost, and runs them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from qkv.core.equation import BoundCall
from qkv.core.typing import Array
from qkv.plan.cost import Cost
from qkv.plan.problem import Problem

__all__ = ["Kernel", "PreparedCall", "Result"]


@dataclass(frozen=True)
class Result:
    """The result of a kernel.

    Attributes:
        output: `(*batch, q, value_width)`.
        readouts: one result for each readout of the problem.
        guards: how each guard on the data was decided.
    """

    output: Array
    readouts: tuple[Any, ...] = ()
    guards: tuple[str, ...] = ()


PreparedCall = Callable[[Array, Array, Array], Result]
"""Runs a call whose other arguments are fixed on query, key and value."""


class Kernel(ABC):
    """One algorithm for the equation.

    Attributes:
        name: name by which a call can select the kernel.
        libraries: libraries of the arrays it accepts.
        guards: conditions on the data that it checks, as sentences "if … else …".
        casts_tiles: whether it takes inputs in their own dtype and casts them tile by tile.
        traceable: whether it runs on arrays without data, as in `torch.func.vmap` and `torch.export`.
    """

    name: ClassVar[str]
    libraries: ClassVar[tuple[str, ...]]
    guards: ClassVar[tuple[str, ...]] = ()
    casts_tiles: ClassVar[bool] = False
    traceable: ClassVar[bool] = False

    def refuse(self, problem: Problem) -> str | None:
        """Return why this kernel cannot run the problem, as a sentence; None if it can."""
        if problem.library not in self.libraries:
            return f"it runs on {' and '.join(self.libraries)} arrays, these are {problem.library}"
        return next((sentence for refused, sentence in self.limits(problem) if refused), None)

    def limits(self, problem: Problem) -> Iterable[tuple[bool, str]]:
        """Return whether each limit of the kernel refuses the problem, which is of its libraries, and a sentence why.

        By default there are none: the kernel runs every problem on arrays of its libraries.
        """
        return ()

    @abstractmethod
    def cost(self, problem: Problem) -> Cost:
        """Return the estimated cost of the problem."""

    @abstractmethod
    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Run a problem that was not refused."""

    def prepare(self, problem: Problem) -> PreparedCall:
        """Return a function that runs the problem on other arrays of the same shapes and dtype.

        It is stored in the plan cache, so what depends on facts alone can be computed here. The problem's parts hold no
        arrays, its arrays need no cast, and it draws nothing at random.
        """
        score, normalizer, mask, tile = problem.score, problem.normalizer, problem.spec.mask, problem.tile

        def run(query: Array, key: Array, value: Array) -> Result:
            return self.run(BoundCall(query, key, value, score, normalizer, mask, tile, 0.0, value.dtype), problem)

        return run

    def describe(self, problem: Problem) -> str:
        """Return in a few words how the problem would run, for EXPLAIN."""
        return ""
