"""Settings for pytest at the root: array annotations are checked, and plans are the same on every machine.

The checks take some seconds for each process. Of those of a short run only the first one makes them, and it starts
with the tests of the packages that annotate most arrays.

Modules of Keras load it and its backend, which takes many seconds; their tests run in processes of their own.
"""

import atexit
import gc
import os
import sys
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import tests.shapes
from tests.effort import LONG, take_turns, thin

CHECKS_SHAPES = LONG or os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0"
FIRST = {"core", "scores", "normalizers", "masks", "readouts", "kernels", "nn"}
"""Folders with whose tests the first process starts."""
TENSORFLOW = ("tensorflow", "test_magnitudes", "[libraries.md", "[every-library.md")
"""Parts of the names of tests that import TensorFlow, which takes seconds: only the first process runs them."""

collect_ignore_glob = ["src/qkv/interop/keras/*"]
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before the first import of Triton
if find_spec("triton") is None:
    collect_ignore_glob.append("src/qkv/kernels/triton/*_programs.py")

_module: list[object] = [None]
_frozen = [0]
"""Number of modules that were imported when the objects of imports were last left out of searches for cycles."""


def pytest_configure(config: pytest.Config) -> None:
    """Import what must come first, but not in the process that only hands out tests."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    if CHECKS_SHAPES:
        tests.shapes.check_shapes()
    if find_spec("triton") is not None:  # after TensorFlow, whose LLVM is another, importing it ends the process
        import triton  # noqa: F401


@pytest.fixture(scope="session", autouse=True)
def _machine_of_4_gibibytes() -> Iterator[None]:
    """Make the default memory budget, and with it all plans, the same on every machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qkv.plan.budget.machine_memory", lambda: 2**32)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without searching for cycles, and leave what collection creates out of later searches: it stays."""
    gc.disable()
    atexit.register(gc.unfreeze)  # extension modules report objects that are never freed
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(100_000, 20, 20)
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return the scheduler of `--dist worksteal`, with the first half of the tests for the first process."""
    from xdist.scheduler import WorkStealingScheduling

    class Scheduler(WorkStealingScheduling):
        def schedule(self) -> None:
            self.node2pending = dict(sorted(self.node2pending.items(), key=lambda pair: pair[0].gateway.id))
            super().schedule()

    return Scheduler(config, log) if config.getoption("dist") == "worksteal" else None


@pytest.hookimpl(tryfirst=True)  # before those that are marked are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out cases in short runs, and start with the test of the checks, and the tests of `FIRST`."""
    thin(items)
    if os.environ.get("TRITON_INTERPRET") != "0":  # on a GPU, each precision has programs of its own
        take_turns(items)

    def order(item: pytest.Item) -> tuple[bool, ...]:
        rest = not any(name in item.nodeid for name in TENSORFLOW)
        return item.path.name != "test_shapes.py", rest, FIRST.isdisjoint(item.path.parts)

    items.sort(key=order)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Draw the same random numbers whatever ran before, and check the first calls of every function in each module."""
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(0)
    if _module[0] != item.path:
        _module[0] = item.path
        tests.shapes.CALLS.clear()
        if len(sys.modules) > _frozen[0] + 200:  # with those of all libraries, one search takes more than a second
            gc.freeze()
            _frozen[0] = len(sys.modules)
