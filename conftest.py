"""Settings for pytest at the root: array annotations are checked, and some modules hold no doctests.

Modules of Keras load it and its backend, which takes many seconds; their tests run in processes of their own.
"""

import pytest
import tests.shapes

tests.shapes.check_shapes()

collect_ignore_glob = ["src/qkv/interop/keras/*"]

_module: list[object] = [None]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check the first calls of every function anew in each test module."""
    if _module[0] != item.path:
        _module[0] = item.path
        tests.shapes.CALLS.clear()
