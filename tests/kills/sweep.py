"""Interrupt operations at random points, and check what they leave: each point is a process that is forked."""

import collections
import contextlib
import gc
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path

from .interruptions import Counter, Interruption, draw_interruption
from .operations import OPERATIONS, Operation

__all__ = ["Sweep", "sweep"]

_POINTS = 25
"""Number of points of one scenario, which is prepared once."""

_SECONDS = 60


@dataclass
class Sweep:
    """What the points of an operation left.

    Attributes:
        outcomes: number of points that left the state before the interrupted step, or the one after it; and of those
            that came too late.
        failures: descriptions of points that left anything else.
    """

    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Child:
    """How a forked process ended: its exit code, negative for a signal, the bytes that it wrote, and its result."""

    code: int
    steps: int
    result: object
    error: str


def sweep(name: str, points: int, seed: int, place: Path) -> Sweep:
    """Interrupt an operation at random points, and check after each that nothing is lost and that it can be repeated.

    Args:
        name: a name in `OPERATIONS`.
        points: number of points.
        seed: chooses the scenarios and the points.
        place: an empty folder.
    """
    found = Sweep()
    for scenario in range(-(-points // _POINTS)):
        draw = random.Random(f"{seed} {name} {scenario}")
        number = draw.randrange(2**31)
        base = place / "base"
        base.mkdir(parents=True)
        _finished(_fork(partial(_prepare, OPERATIONS[name], base, number)))
        states, calls, seconds = _uninterrupted(OPERATIONS[name], base, place / "work", number)
        for _ in range(min(_POINTS, points - scenario * _POINTS)):
            interruption = draw_interruption(draw, calls, seconds)
            shutil.copytree(base, place / "work")
            try:
                outcome = _check_point(OPERATIONS[name], place / "work", number, states, interruption)
                found.outcomes[outcome] += 1
            except AssertionError as error:
                found.failures.append(f"{name} {number}, {interruption}: {error}")
            shutil.rmtree(place / "work")
        shutil.rmtree(base)
    return found


def _uninterrupted(operation: Operation, base: Path, work: Path, number: int) -> tuple[list[object], int, float]:
    """Return the states before the operation and after each step, the number of its calls, and its time."""
    shutil.copytree(base, work)

    def run(acknowledge: Callable[[], None]) -> object:
        states = [operation.read(work)]
        for step in operation.steps(work, number):
            step()
            states.append(operation.read(work))
        return [states, sorted(sys.modules)]

    states, modules = _finished(_fork(run))  # type: ignore[misc]
    _import(modules)
    shutil.rmtree(work)
    shutil.copytree(base, work)

    def count(acknowledge: Callable[[], None]) -> object:
        counter, started = Counter(work), time.perf_counter()
        for step in operation.steps(work, number):
            step()
        return [counter.calls, time.perf_counter() - started]

    calls, seconds = _finished(_fork(count))  # type: ignore[misc]
    shutil.rmtree(work)
    return states, calls, seconds  # type: ignore[return-value]


def _check_point(
    operation: Operation, work: Path, number: int, states: list[object], interruption: Interruption
) -> str:
    """Run an operation until it is interrupted, check what is left, and repeat it."""

    def run(acknowledge: Callable[[], None]) -> object:
        Counter(work, interruption)
        for step in operation.steps(work, number):
            step()
            acknowledge()
        signal.setitimer(signal.ITIMER_REAL, 0)
        return None

    child = _fork(run)
    ended = {0, -signal.SIGKILL, -signal.SIGALRM, 130}
    assert child.code in ended, f"exit code {child.code}: {child.error}"
    allowed = states[child.steps : child.steps + 2]

    def repeat(acknowledge: Callable[[], None]) -> object:
        found = json.loads(_as_json(operation.read(work)))
        if found not in allowed:
            return [found]
        acknowledge()
        for step in operation.steps(work, number)[child.steps + allowed.index(found) :]:
            step()
        operation.check(work)
        return [found, operation.read(work)]

    # One process, as each needs time to map what it shares with its parent.
    after = _fork(repeat)
    assert after.code == 0, f"{'repeating' if after.steps else 'reading'}: exit code {after.code}: {after.error}"
    found, *last = after.result  # type: ignore[misc]
    assert last, f"after {child.steps} steps: {str(found)[:500]} in place of {str(allowed)[:500]}"
    assert last == states[-1:], f"repeated: {str(last)[:500]} in place of {str(states[-1:])[:500]}"
    if child.code == 0:
        return "too late"
    return "before" if found == allowed[0] else "after"


def _import(modules: list[str]) -> None:
    """Import modules that the forked processes need, so that each of them need not.

    The threads of DuckDB and Lance start with the first query, not with the import.
    """
    for name in modules:
        if name not in sys.modules:
            with contextlib.suppress(Exception):
                import_module(name)
    gc.freeze()  # the forked processes share the pages


def _prepare(operation: Operation, base: Path, number: int, acknowledge: Callable[[], None]) -> None:
    operation.prepare(base, number)


def _fork(work: Callable[[Callable[[], None]], object]) -> _Child:
    """Run a function in a forked process, which no thread of a library has survived, and return how it ended."""
    steps, wrote_step = os.pipe()
    results, wrote_result = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 130  # a second Ctrl-C may follow at any time
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            result = work(lambda: os.write(wrote_step, b"."))  # type: ignore[arg-type,return-value]
            _write(wrote_result, _as_json(result))
            code = 0
        except KeyboardInterrupt:
            code = 130
        except BaseException:
            code = 1
            _write(wrote_result, traceback.format_exc().encode())
        finally:
            os._exit(code)
    os.close(wrote_step)
    os.close(wrote_result)
    with os.fdopen(steps, "rb") as done, os.fdopen(results, "rb") as result:
        text = result.read()
        count = len(done.read())
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    loaded = json.loads(text) if status == 0 else None
    return _Child(status, count, loaded, "" if status == 0 else text.decode()[-1500:])


def _as_json(value: object) -> bytes:
    return json.dumps(value, default=str).encode()


def _write(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]


def _finished(child: _Child) -> object:
    assert child.code == 0, f"exit code {child.code}: {child.error}"
    return child.result
