"""What a claim is: a sentence, a goal, named peers, and a function that measures its rows."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

__all__ = ["CLAIMS", "AtLeast", "AtMost", "Claim", "Goal", "MissingError", "Row", "Setting", "load"]

Item = TypeVar("Item")

CLAIMS = (
    "scaled_dot",
    "scaled_dot_small",
    "lifted",
    "additive",
    "additive_long",
    "flex",
    "sparse",
    "top_k",
    "pooled_map",
    "kernel_regression",
    "retrieval",
    "linear_memory",
    "explain",
    "planner",
    "start_up",
    "model",
    "decode",
    "stored",
    "look",
)
"""All claims, in the order of the page. Each is a file of this name."""


class MissingError(Exception):
    """What is to be measured, or a peer, is not there; the sentence says which."""


@dataclass(frozen=True)
class Goal:
    """A limit and the side of it that is good."""

    sense: str
    limit: float

    def met(self, number: float) -> bool:
        """The number keeps the limit."""
        return number <= self.limit if self.sense == "at most" else number >= self.limit

    def __str__(self) -> str:
        return f"{self.sense} {self.limit:g}"


def AtMost(limit: float) -> Goal:
    """Good is below."""
    return Goal("at most", limit)


def AtLeast(limit: float) -> Goal:
    """Good is above."""
    return Goal("at least", limit)


@dataclass
class Row:
    """One measured number.

    Attributes:
        case: shape and direction, such as "4k, forward".
        measure: what the number is, such as "qkv / SDPA, CPU time".
        number: the measurement.
        unit: "×", "MB", ….
        goal: its limit; None: recorded without a claim.
        spread: lowest and highest ratio within a round.
        seconds: median CPU seconds of each contestant.
        wall: median wall seconds of each contestant.
        megabytes: peak memory by contestant, in 10⁶ bytes.
        errors: how far the result was from the peer's and from the float64 oracle, before timing.
        kernel: chosen by qkv.
        plan: the text of the plan.
        note: what the reader must know.
    """

    case: str
    measure: str
    number: float
    unit: str = "×"
    goal: Goal | None = None
    spread: tuple[float, float] | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    wall: dict[str, float] = field(default_factory=dict)
    megabytes: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    kernel: str = ""
    plan: str = ""
    note: str = ""

    @property
    def met(self) -> bool | None:
        """The goal is kept; None where there is none."""
        return None if self.goal is None else self.goal.met(self.number)


@dataclass(frozen=True)
class Setting:
    """How to measure.

    Attributes:
        quick: small shapes and three rounds: it shows that the file runs, and measures nothing.
        repeats: rounds; at least five where it is no quick run.
        say: called with a line before something that takes long.
    """

    quick: bool = False
    repeats: int = 5
    say: Callable[[str], None] = print

    def some(self, items: Sequence[Item], every: int) -> Sequence[Item]:
        """All of them; in a quick run one of so many."""
        return items[::every] if self.quick else items

    @property
    def rounds(self) -> int:
        """How many rounds."""
        return 3 if self.quick else max(5, self.repeats)


@dataclass(frozen=True)
class Claim:
    """A sentence that a measurement can refute.

    Attributes:
        says: the claim, in words.
        goal: the numbers, in words.
        peers: who does the same work; "none" where the limit is absolute.
        rows: measures, and gives each row when it has it.
    """

    says: str
    goal: str
    peers: tuple[str, ...]
    rows: Callable[[Setting], Iterator[Row]]


def load(name: str) -> Claim:
    """The claim of a file."""
    claim = importlib.import_module(f"benchmarks.{name}").CLAIM
    assert isinstance(claim, Claim)
    return claim
