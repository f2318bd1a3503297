"""What a kernel is: one way to run the equation. It says what it cannot do, what it would cost, and runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from qkv.core.arrays import Array
from qkv.core.equation import BoundCall
from qkv.plan.cost import Cost
from qkv.plan.problem import Problem

__all__ = ["Kernel", "Result"]


@dataclass(frozen=True)
class Result:
    """What a kernel gives.

    Attributes:
        output: `(*batch, q, value_width)`.
        readouts: one result for each readout asked for.
        guards: which way each named guard on the data went.
    """

    output: Array
    readouts: tuple[Any, ...] = ()
    guards: tuple[str, ...] = ()


class Kernel(ABC):
    """One way to run the equation.

    Attributes:
        name: by which a call can ask for it.
        libraries: whose arrays it takes.
        guards: what it looks for in the data, as sentences "if … else …".
        casts_tiles: it takes inputs in the dtype they came in, and casts them tile by tile.
        traceable: it runs on arrays that show no data, as in `torch.func.vmap` and `torch.export`.
    """

    name: ClassVar[str]
    libraries: ClassVar[tuple[str, ...]]
    guards: ClassVar[tuple[str, ...]] = ()
    casts_tiles: ClassVar[bool] = False
    traceable: ClassVar[bool] = False

    @abstractmethod
    def refuse(self, problem: Problem) -> str | None:
        """Why this kernel cannot run it, as a sentence; None where it can."""

    @abstractmethod
    def cost(self, problem: Problem) -> Cost:
        """What it would spend."""

    @abstractmethod
    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Run. The problem is one that was not refused."""

    def shortcut(self, problem: Problem) -> Callable[[Array, Array, Array], Result | None] | None:
        """A shorter way to run a problem whose parts hold no arrays, from query, key and value to the result.

        It is kept with the plan, so what facts decide is decided here. It gives None where `run` must do it.
        """
        return None

    def describe(self, problem: Problem) -> str:
        """How it would run, in a few words, for EXPLAIN."""
        return ""

    def refuse_library(self, problem: Problem) -> str | None:
        """The sentence for arrays of another library."""
        if problem.library in self.libraries:
            return None
        return f"it runs on {' and '.join(self.libraries)} arrays, these are {problem.library}"
