"""How many cases a test runs: a part of them in `make test`, all in `make test-long`."""

import itertools
import os
import zlib
from collections.abc import Iterable
from typing import Any

import pytest

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"


def cases(most: int) -> int:
    """`most` in the long profile, otherwise a twelfth of it, at least 4."""
    return most if LONG else min(most, max(4, most // 12))


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


def _axes(item: Any) -> list[tuple[int, ...]]:
    """Return the value of each list of parameters of a test case, by the identity of its objects."""
    left = dict(item.callspec.params)
    axes = []
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0] if isinstance(mark.args[0], str) else ",".join(mark.args[0])
        axes.append(tuple(id(left.pop(name.strip())) for name in names.split(",")))
    return axes + [(id(value),) for value in left.values()]


def remaining(lengths: list[int]) -> set[tuple[int, ...]]:
    """Return the cases of a thinned test: of two lists a diagonal, of more all pairs of elements of the longest two."""
    order = sorted(range(len(lengths)), key=lambda axis: -lengths[axis])
    longest, second, *others = order
    if others:
        pairs = list(itertools.product(range(lengths[longest]), range(lengths[second])))
    else:
        pairs = [(n, n % lengths[second]) for n in range(lengths[longest])]
    chosen = [{longest: x, second: y} | {axis: x + n * y for n, axis in enumerate(others, 1)} for x, y in pairs]
    return {tuple(case[axis] % length for axis, length in enumerate(lengths)) for case in chosen}


def thin(items: list[pytest.Item]) -> None:
    """Mark as long the cases that tests with the mark `thinned` leave out."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("thinned") and not item.get_closest_marker("long"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        axes = [list(dict.fromkeys(axis)) for axis in zip(*map(_axes, cases), strict=True)]
        few = remaining([len(axis) for axis in axes])
        for case in cases:
            if tuple(axis.index(value) for axis, value in zip(axes, _axes(case), strict=True)) not in few:
                case.add_marker("long")


EVERY = {"reader": 4, "half": 3, "jax": 4}
"""Of so many cases of a contract one runs: kernels of a readout, half precisions, and JAX, which compiles."""


def take_turns(items: list[pytest.Item]) -> None:
    """Mark as long the cases of contracts among those of `EVERY` whose turn it is not.

    Classes and tests take turns: a test with fewer cases than its number in `EVERY` runs with one in some classes.
    """
    tests: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        library, _, dtype = str(params.get("setting", "")).partition("-")
        alike = "reader" if "reader" in params else "half" if dtype in ("float16", "bfloat16") else library
        if alike in EVERY and not item.get_closest_marker("long"):
            tests.setdefault((item.nodeid.partition("[")[0], alike), []).append(item)
    for (name, alike), cases in tests.items():
        for number, case in enumerate(cases, zlib.crc32(name.encode())):
            if number % EVERY[alike]:
                case.add_marker("long")
