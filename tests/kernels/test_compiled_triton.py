"""The Triton programs, compiled for kinds of GPU that this machine need not have."""

import json
from functools import cache

import pytest

from tests.kernels.compile_triton import ADDITIVE, PRODUCT_PROGRAMS, PRODUCTS, READOUTS, ROUNDED
from tests.processes import run_python

pytest.importorskip("triton")

AMPERE = {"attend_queries": (28, 29), "differentiate_queries": (48, 40), "differentiate_keys": (24, 20)}
SPECIAL_FUNCTIONS = {
    80: AMPERE,
    86: AMPERE,
    89: AMPERE,
    90: {"attend_queries": (50, 51), "differentiate_queries": (96, 80), "differentiate_keys": (24, 20)},
    100: {"attend_queries": (49, 50), "differentiate_queries": (96, 80), "differentiate_keys": (96, 80)},
}
"""Reciprocals and exponentials of each program, which hold 4 to 16 pairs in a thread and two or four loops over units.

One division for two units, and two in the loop for units far from 0, are 3 for each pair forward, and 6 backward.
"""


@cache
def _counts(*arguments: str) -> dict[str, dict[str, int]]:
    return _printed("tests.kernels.compile_triton", *arguments)


def _printed(module: str, *arguments: str) -> dict[str, dict[str, int]]:
    return json.loads(run_python("-m", module, *arguments, TRITON_INTERPRET="0"))


def check(architecture: int, name: str, counts: dict[str, int]) -> None:
    assert counts["spills"] <= 2, (architecture, name)
    assert counts["atomics"] == 0, (architecture, name)
    assert counts["shared bytes"] <= 99 * 1024, (architecture, name)
    most = SPECIAL_FUNCTIONS[architecture][name]
    assert counts["reciprocals"] <= most[0], (architecture, name)
    assert counts["exponentials"] <= most[1], (architecture, name)
    loops = 1 if name == "attend_queries" else 2
    assert counts["reciprocals"] <= 3 * loops * counts["pairs of a thread"] + 4, (architecture, name)


def test_the_forward_program_for_ampere_stores_hardly_any_registers_and_shares_divisions() -> None:
    check(80, "attend_queries", _counts("80", "attend_queries")["80 attend_queries"])


@pytest.mark.long
@pytest.mark.parametrize("architecture", SPECIAL_FUNCTIONS)
def test_no_program_stores_more_than_two_registers_or_divides_once_for_each_unit(architecture: int) -> None:
    found = _counts(str(architecture))
    for name in ADDITIVE:
        check(architecture, name, found[f"{architecture} {name}"])


@pytest.mark.long
@pytest.mark.parametrize("architecture", SPECIAL_FUNCTIONS)
def test_programs_with_one_product_of_tf32_store_no_registers(architecture: int) -> None:
    for name, counts in _counts(str(architecture), *ROUNDED).items():
        assert counts["spills"] == counts["atomics"] == 0, (name, counts)
        assert counts["shared bytes"] <= 99 * 1024, (name, counts)
        loops = 1 if "attend" in name else 2
        assert counts["reciprocals"] <= 3 * loops * counts["pairs of a thread"] + 4, (name, counts)
        assert counts["exponentials"] <= (53 if "attend" in name else 80), (name, counts)


@pytest.mark.long
@pytest.mark.parametrize("architecture", SPECIAL_FUNCTIONS)
@pytest.mark.parametrize("kind", PRODUCTS)
def test_programs_for_products_store_hardly_any_registers(kind: str, architecture: int) -> None:
    names = [name for name in PRODUCT_PROGRAMS if name.split()[0] == kind]
    for name, counts in _counts(str(architecture), *names).items():
        assert counts["spills"] <= 4, (name, counts)
        assert counts["atomics"] == 0, (name, counts)
        assert counts["shared bytes"] <= 99 * 1024, (name, counts)
        # One exponential for each of 4 pairs of a thread; a gate takes one more and a reciprocal, in each of two loops.
        assert counts["exponentials"] <= (20 if kind == "gated" else 8), (name, counts)
        assert counts["reciprocals"] <= 12, (name, counts)


@pytest.mark.long
@pytest.mark.parametrize("architecture", SPECIAL_FUNCTIONS)
def test_programs_for_readouts_store_hardly_any_registers(architecture: int) -> None:
    for name, counts in _counts(str(architecture), *READOUTS).items():
        assert counts["spills"] <= 4, (name, counts)
        assert counts["atomics"] == 0, (name, counts)
        assert counts["shared bytes"] <= 99 * 1024, (name, counts)
        # One exponential for each pair, two for additive pairs far from 0, and those of the running maximum.
        assert counts["exponentials"] <= 36, (name, counts)


@pytest.mark.long
def test_calls_of_100_lengths_compile_each_program_at_most_twice_and_maps_once_for_each_size_of_cells() -> None:
    """Triton compiles again where a length becomes a multiple of 16; a cell takes 1 to 64 queries and keys."""
    for kind, programs in _printed("tests.kernels.specializations", "100").items():
        for name, count in programs.items():
            assert count <= (12 if kind == "readouts" else 2), (kind, name, count)
