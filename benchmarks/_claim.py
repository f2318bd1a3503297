"""Claims: a sentence, a goal, named peers, and a function that measures rows."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

__all__ = ["CLAIMS", "AtLeast", "AtMost", "Claim", "Goal", "MissingError", "Row", "Setting", "WrongError", "load"]

Item = TypeVar("Item")

CLAIMS = {
    "scaled_dot": "Scaled dot products of long sequences",
    "scaled_dot_small": "Scaled dot products of short sequences",
    "overhead": "Calls of a few microseconds",
    "short": "Calls of 16 to 1,024 tokens",
    "short_parts": "Short calls with sparse weights and masks",
    "readouts": "Readouts of short calls",
    "routes": "Scaled dot products with any mask of pairs",
    "random_calls": "Random calls on four libraries",
    "cores": "The gain of several cores",
    "lifted": "Training with bilinear, Gaussian, cosine and other scores",
    "additive": "Additive attention",
    "additive_long": "Additive attention over 64,000 tokens",
    "flex": "Soft caps, ALiBi, bias tables and windows",
    "sparse": "Sparsemax and entmax",
    "top_k": "The 32 best keys of every query",
    "pooled_map": "A small map of the weights",
    "kernel_regression": "Kernel regression",
    "retrieval": "Soft retrieval from a million vectors",
    "nearest": "The ten nearest of 500,000 vectors",
    "certified": "Answers from codes of the keys, with a proof",
    "linear_memory": "Memory at 16,384 tokens",
    "explain": "The memory that a plan predicts",
    "planner": "The choice of a kernel",
    "start_up": "The start of the command",
    "first_answer": "The first answer to a table",
    "model": "Training of a small transformer",
    "decode": "Decoding with a key-value cache",
    "decode_plain": "Decoding without a cache of qkv",
    "linear_attention": "Linear attention",
    "stored": "Questions to ten million rows on disk",
    "scaling": "Growth with tokens and rows",
    "look": "The page of attention weights",
}
"""The titles of all claims by the names of their files, in the order of the pages."""

SECTIONS = {
    "scaled_dot": "Calls",
    "linear_memory": "Memory and plans",
    "start_up": "First answers",
    "model": "Models",
    "stored": "Stores",
    "look": "Look",
}
"""Headings above claims in the list of all claims."""


class MissingError(Exception):
    """A data set or a peer that the measurement needs is missing."""


class WrongError(AssertionError):
    """A result differs from that of the reference or of the peer, so nothing is timed."""


@dataclass(frozen=True)
class Goal:
    """A limit, as an upper or a lower bound."""

    sense: str
    limit: float

    def met(self, number: float) -> bool:
        """Return whether the number is within the limit."""
        return number <= self.limit if self.sense == "at most" else number >= self.limit

    def __str__(self) -> str:
        return f"{self.sense} {self.limit:g}"


def AtMost(limit: float) -> Goal:
    """Return an upper bound."""
    return Goal("at most", limit)


def AtLeast(limit: float) -> Goal:
    """Return a lower bound."""
    return Goal("at least", limit)


@dataclass
class Row:
    """One measured number.

    Attributes:
        case: shape and direction, such as "4k, forward".
        measure: what the number is, such as "qkv / SDPA, CPU time".
        number: the measurement.
        unit: "×", "MB", ….
        goal: its limit; None if it is recorded without a goal.
        spread: lowest and highest ratio within a round.
        seconds: median CPU seconds of each implementation.
        wall: median wall seconds of each implementation.
        megabytes: peak memory by implementation, in 10⁶ bytes.
        errors: differences from the results of the peer and of the float64 reference, checked before timing.
        kernel: the kernel that qkv chose.
        plan: the text of the plan.
        note: a remark for the reader.
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
        """Whether the goal is met; None without a goal."""
        return None if self.goal is None else self.goal.met(self.number)


@dataclass(frozen=True)
class Setting:
    """Options of a measurement.

    Attributes:
        quick: use small shapes and three rounds, to check that the file runs.
        repeats: number of rounds; at least five unless `quick`.
        say: called with a message before a long step.
    """

    quick: bool = False
    repeats: int = 5
    say: Callable[[str], None] = print

    def some(self, items: Sequence[Item], every: int) -> Sequence[Item]:
        """Return all items, or every n-th item in a quick run."""
        return items[::every] if self.quick else items

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return 3 if self.quick else max(5, self.repeats)


@dataclass(frozen=True)
class Claim:
    """A sentence that a measurement can refute.

    Attributes:
        says: the claim in words.
        goal: the goals in words.
        peers: libraries that do the same work; "none" if the limit is absolute.
        rows: function that measures and yields each row as soon as it is complete.
    """

    says: str
    goal: str
    peers: tuple[str, ...]
    rows: Callable[[Setting], Iterator[Row]]


def load(name: str) -> Claim:
    """Return the claim that a file defines."""
    claim = importlib.import_module(f"benchmarks.{name}").CLAIM
    assert isinstance(claim, Claim)
    return claim
