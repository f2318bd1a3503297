"""Calls in threads."""

import threading
import time

import numpy as np
import pytest

from qkv import Database
from qkv.core import threads
from qkv.core.progress import checkpoint, with_check
from qkv.core.threads import core_count, on_cores, prefetched


def test_results_come_in_order_and_the_first_before_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "core_count", lambda: 3)
    started: list[int] = []
    one = threading.Event()

    def slow(item: int) -> int:
        assert item == 0 or one.is_set()
        started.append(item)
        time.sleep(0.01 * (4 - item % 4))
        if item == 0:
            one.set()
        return item * item

    assert list(on_cores(slow, range(9))) == [n * n for n in range(9)]
    assert started[0] == 0
    assert sorted(started) == list(range(9))


def test_the_check_of_a_computation_ends_its_threads() -> None:
    def stop() -> None:
        raise TimeoutError

    def call(item: int) -> int:
        checkpoint()
        return item

    with with_check(stop), pytest.raises(TimeoutError):
        list(prefetched(call, [1, 2], 2))


@pytest.mark.parametrize(("limit", "cores"), [("1", 1), ("0", 1), ("many", None), ("", None)])
def test_the_number_of_cores_is_limited_like_that_of_matrix_products(
    limit: str, cores: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    found = core_count()
    assert found == cores if cores is not None else found >= 1


@pytest.mark.parametrize("how", [{}, {"score": "dot"}, {"score": "gaussian"}, {"aggregate": "local-linear"}], ids=str)
def test_many_queries_are_answered_on_several_cores_as_on_one(
    how: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    keys, wide, value = rng.integers(0, 400, 2000) / 4, rng.standard_normal((2000, 3)).tolist(), rng.random(2000)
    key, asked = (wide, wide[:40]) if how.get("score") == "dot" else (keys, [*keys[:30].tolist(), 1e6, -3.5])
    monkeypatch.setattr("qkv.database.execute.in_memory._MOST_WEIGHTS", 8000)
    monkeypatch.setattr("qkv.database.execute.in_memory._LARGE_TABLE", 10**9)
    found = []
    for cores in (1, 4):
        monkeypatch.setattr(threads, "core_count", lambda cores=cores: cores)
        database = Database.open({"key": key, "value": value}, key="key", value="value")
        steps: list[tuple[str, int, int]] = []
        answer = database.ask(asked, progress=lambda *step, steps=steps: steps.append(step), **how)
        found.append((answer.to_arrow().to_pydict(), answer.rows))
        done = [number for task, number, _ in steps if task == "answering"]
        assert len(done) > 4
        assert done == sorted(set(done))
    assert found[0] == found[1]
