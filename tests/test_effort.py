"""The cases that short runs leave out: each element of each list of parameters is in one of the others."""

import itertools

import pytest

from tests.effort import remaining


@pytest.mark.parametrize("lengths", [[5, 4], [4, 5], [2, 2], [3, 1]], ids=str)
def test_of_two_lists_each_element_remains_and_no_more_cases_than_the_longer_list_has(lengths):
    cases = remaining(lengths)
    assert len(cases) == max(lengths)
    assert [set(column) for column in zip(*cases, strict=True)] == [set(range(length)) for length in lengths]


@pytest.mark.parametrize("lengths", [[2, 3, 3, 3], [8, 3, 7], [2, 5, 2, 2], [3, 3, 8]], ids=str)
def test_of_more_lists_each_pair_of_elements_of_the_longest_two_remains(lengths):
    cases = remaining(lengths)
    one, two = sorted(range(len(lengths)), key=lambda axis: -lengths[axis])[:2]
    wanted = set(itertools.product(range(lengths[one]), range(lengths[two])))
    assert {(case[one], case[two]) for case in cases} == wanted
    assert len(cases) == len(wanted)
    assert [set(column) for column in zip(*cases, strict=True)] == [set(range(length)) for length in lengths]
