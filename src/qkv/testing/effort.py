"""Define how many cases the contract tests run: a part of them in short runs, and all in long runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["LONG", "turn"]

T = TypeVar("T")

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
"""Whether the contract tests run all cases, as in `make test-long`."""


def turn(items: Sequence[T], number: int, every: int) -> list[T]:
    """Return all items in long runs, otherwise one of each `every`: those whose turn it is in test `number`.

    The tests with `every` consecutive numbers together run each item once.
    """
    return list(items) if LONG else list(items[-number % every :: every])
