"""Check the axes of annotations while the tests run: an import hook that applies jaxtyping and beartype to arrays.

Only functions that annotate an array with its axes are decorated, and of their annotations only those of arrays
are checked: mypy checks the others, and arguments of a wrong kind raise the errors of the library.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import sys
from collections import Counter
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType
from typing import Any

__all__ = ["check_shapes", "checked"]

_AXES = re.compile(r"\b(Bool|Float|Int|Num|Shaped)\[")
LEFT_OUT = ("qkv.interop.keras", "qkv.kernels.compiled", "qkv.nn", "qkv.engine", "qkv.testing", "qkv.core.typing")
"""Modules without checks: torch.compile and Keras trace some of them, and a decorator would break the graph; the
engine checks its arguments itself; pytest rewrites the suites."""
AT_MOST = 20
"""Checked calls per function and test module; a check takes some 100 µs, and kernels call functions per tile."""
CALLS: Counter[Any] = Counter()
"""Checked calls of each function since the test module began."""


def check_shapes() -> None:
    """Check every annotated function of qkv that is imported after this call."""
    # Set while the types are created, but not for processes that tests start.
    os.environ["QKV_CHECK_SHAPES"] = "1"
    try:
        import qkv.core.typing  # noqa: F401
    finally:
        del os.environ["QKV_CHECK_SHAPES"]
    sys.meta_path.insert(0, _Finder())


def checked(function: Any) -> Any:
    """Return `function` with its array annotations checked at its first calls in each test module."""
    from beartype import BeartypeConf, beartype
    from jaxtyping import jaxtyped

    hints = {name: hint for name, hint in function.__annotations__.items() if _AXES.search(hint)}
    function.__annotations__ = {name: _evaluated(hint, function) for name, hint in hints.items()}
    # As for mypy, an int is a float.
    with_checks = jaxtyped(function, typechecker=beartype(conf=BeartypeConf(is_pep484_tower=True)))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        torch = sys.modules.get("torch")
        # A tracer would record the checks and the lengths that they compare.
        if CALLS[function] >= AT_MOST or (torch is not None and torch.compiler.is_compiling()):
            return function(*args, **kwargs)
        CALLS[function] += 1
        return with_checks(*args, **kwargs)

    return call


def _evaluated(hint: str, function: Any) -> Any:
    try:
        return eval(hint, function.__globals__)
    except NameError:  # a name that only mypy imports
        return object


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not name.startswith("qkv.") or name.startswith(LEFT_OUT):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        # Compile from source, because the bytecode cache has no decorators.
        tree = ast.parse(self.get_data(self.path), self.path)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and _annotates_axes(node):
                where = ast.parse("__import__('tests.shapes').shapes.checked", mode="eval").body
                # The innermost decorator, since properties and static methods wrap the function.
                node.decorator_list.append(ast.copy_location(where, node))
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)


def _annotates_axes(node: ast.FunctionDef) -> bool:
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
    hints = [argument.annotation for argument in arguments if argument is not None] + [node.returns]
    return any(hint is not None and _AXES.search(ast.unparse(hint)) for hint in hints)
