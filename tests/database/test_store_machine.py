"""Random operations on databases on disk equal those on a plain list, and planted faults are noticed."""

import pytest
from hypothesis.stateful import run_state_machine_as_test

from qkv.database.execute import aggregates
from qkv.store import arrow

from .store_machine import store_machine


@pytest.mark.parametrize("backend", ["arrow", "lance"])
def test_any_sequence_of_operations_leaves_the_rows_of_a_plain_list(backend):
    if backend == "lance":
        pytest.importorskip("lance")
    run(backend)


def run(backend):
    machine = store_machine(backend)
    run_state_machine_as_test(machine, settings=machine.TestCase.settings)


def delete_twice():
    machine = store_machine("arrow")()
    machine.append([(0, "a")] * 6)
    machine.delete(2, 0)
    machine.delete(3, 0)
    machine.rows_are_those_of_the_list()


def ask_with_a_tie_across_blocks():
    machine = store_machine("arrow")()
    machine.append([(1, "a"), (0, "b")])
    machine.append([(0, "a")])
    machine.ask(0)


def test_a_deletion_that_forgets_earlier_deletions_is_noticed(monkeypatch):
    delete_twice()
    monkeypatch.setattr(arrow, "_present_after", lambda block, chosen: ~chosen if chosen.any() else None)
    with pytest.raises(AssertionError):
        delete_twice()


def test_a_streamed_tie_of_votes_that_goes_to_another_row_than_in_memory_is_noticed(monkeypatch):
    ask_with_a_tie_across_blocks()
    add = aggregates.VoteSums.add

    def without_earlier_rows(self, weights, values, first):
        return add(self, weights, values, 0)

    monkeypatch.setattr(aggregates.VoteSums, "add", without_earlier_rows)
    with pytest.raises(AssertionError, match="memory 1"):
        ask_with_a_tie_across_blocks()
