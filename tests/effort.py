"""How many cases a test runs: a part of them in `make test`, all in `make test-long`."""

import os
from collections.abc import Iterable

import pytest

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"


def cases(most: int) -> int:
    """`most` in the long profile, otherwise an eighth of it, at least 6."""
    return most if LONG else min(most, max(6, most // 8))


def seeds(count: int, first: int = 2) -> list[object]:
    """The numbers 0 to count − 1 as parameters; those from `first` on belong to `make test-long`."""
    return [*range(min(first, count)), *(pytest.param(i, marks=pytest.mark.long) for i in range(first, count))]


def sample(items: Iterable[object], every: int) -> list[object]:
    """Each `every`-th of a list of parameters; the others belong to `make test-long`."""
    return [
        item
        if n % every == 0
        else pytest.param(*item, marks=pytest.mark.long)
        if isinstance(item, tuple)
        else pytest.param(item, marks=pytest.mark.long)
        for n, item in enumerate(items)
    ]
