"""Keras' own tests of its attention layers, run on ours: `python -m tests.interop.keras_suite`.

The files are those of the installed Keras. In them `layers.Attention`, `layers.AdditiveAttention` and
`layers.MultiHeadAttention` are ours, everything else is Keras' own. The backend is `KERAS_BACKEND`.
"""

import importlib
import json
import sys
import types
import unittest
from typing import Any

import pytest

DIFFERENT: dict[str, str] = {
    "test_attention_with_dropout": (
        "wants the scores that are returned to be those after dropout; ours are those before it, so that "
        "what is seen does not depend on the draw"
    )
}
"""Tests of Keras that do not apply to the layers of qkv, each with the reason."""

MODULES = {
    "attention_test": "AttentionTest",
    "additive_attention_test": "AdditiveAttentionTest",
    "multi_head_attention_test": "MultiHeadAttentionTest",
}


def suite(chosen: list[str]) -> tuple[unittest.TestSuite, list[str]]:
    """The tests that mean the same, and the names of those that do not.

    Args:
        chosen: parts of names, of which one must be in the name of a test; none: all tests.
    """
    import keras

    from qkv.interop.keras import AdditiveAttention, Attention, MultiHeadAttention

    ours = {one.__name__: one for one in (AdditiveAttention, Attention, MultiHeadAttention)}

    class Layers(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            return ours.get(name) or getattr(keras.layers, name)

    def skip(reason: str) -> None:
        raise unittest.SkipTest(reason)

    pytest.skip = skip  # type: ignore[assignment]  # which unittest takes for a failure
    found, left = unittest.TestSuite(), []
    for module_name, class_name in MODULES.items():
        module: Any = importlib.import_module(f"keras.src.layers.attention.{module_name}")
        module.layers = Layers("layers")
        for test in unittest.defaultTestLoader.loadTestsFromTestCase(getattr(module, class_name)):
            name: str = test._testMethodName  # type: ignore[attr-defined]
            if name in DIFFERENT:
                left.append(name)
            elif not chosen or any(part in test.id() for part in chosen):
                found.addTest(test)
    return found, left


def main() -> None:
    """Run them, and print a line of JSON."""
    tests, left = suite(sys.argv[1:])
    result = unittest.TextTestRunner(stream=sys.stderr, verbosity=2).run(tests)
    import keras

    print(
        json.dumps(
            {
                "backend": keras.backend.backend(),
                "run": result.testsRun,
                "skipped": [f"{test.id().split('.')[-1]}: {reason}" for test, reason in result.skipped],
                "failed": [test.id().split(".")[-1] for test, _ in [*result.failures, *result.errors]],
                "left": left,
            }
        )
    )


if __name__ == "__main__":
    main()
