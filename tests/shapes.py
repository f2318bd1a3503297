"""Check the axes of annotations while the tests run: an import hook that applies jaxtyping and beartype to arrays.

Only functions that annotate an array with its axes are decorated, and of their annotations only those of arrays
are checked: mypy checks the others, and arguments of a wrong kind raise the errors of the library.
"""

import ast
import copy
import functools
import inspect
import marshal
import os
import random
import re
import sys
import threading
from collections import Counter
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import cache_from_source, source_hash
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import beartype
import jaxtyping
from beartype._check.code import codemain

from tests.effort import LONG

__all__ = ["check_shapes", "checked", "is_checking"]

_AXES = re.compile(
    r"\b(Bool|Float|Int|Num|Shaped)\[|\b(Query|Key|Value|Output|Pair|Row|Lifted|Tile)(Arrays?|Tensor|Integers|Numbers)\b"
)
LEFT_OUT = ("qkv.testing", "qkv.core.typing")
"""Modules without checks: pytest rewrites the suites, and the types are created by the other."""
AT_MOST = 20 if LONG else 2
"""Checked calls per function and test module; a check takes some 100 µs, and kernels call functions per tile."""
CALLS: Counter[int] = Counter()
"""Checked calls of each function since the test module began."""
_unchecked: list[Any] = []
"""Functions that run again without checks, after a check failed."""
# beartype checks an item that it draws, from a generator of its own here: tests compare the state of the global one.
codemain.getrandbits = random.Random(0).getrandbits
_LOCK = threading.RLock()
_PARSING = threading.RLock()
"""Held while source is parsed: Python 3.11 counts the depth of recursion of all threads that parse together."""
_HERE = Path(__file__).read_bytes()


def check_shapes() -> None:
    """Check every annotated function of qkv that is imported after this call.

    Nothing is checked if the types exist already, without axes: pytest imports `conftest.py` of a folder that is named
    on the command line before it configures anything.
    """
    if "qkv.core.typing" in sys.modules:
        return
    # Set while the types are created, but not for processes that tests start.
    os.environ["QKV_CHECK_SHAPES"] = "1"
    try:
        import qkv.core.typing  # noqa: F401
    finally:
        del os.environ["QKV_CHECK_SHAPES"]
    sys.meta_path.insert(0, _Finder())


def is_checking() -> bool:
    """Return whether this process checks functions."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


def checked(function: Any) -> Any:
    """Return `function` with its array annotations checked at its first calls in each test module."""
    # By the code, which nested functions share: its identity, because its hash is that of each instruction.
    code = id(function.__code__)
    with_checks: Any = None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal with_checks
        if CALLS[code] >= AT_MOST or _unchecked:  # the test of nearly all calls, so the first
            return function(*args, **kwargs)
        torch = sys.modules.get("torch")
        # A tracer would record the checks and the lengths that they compare.
        if torch is not None and torch.compiler.is_compiling():
            return function(*args, **kwargs)
        CALLS[code] += 1
        with _LOCK:  # threads may call the function at the same time
            if with_checks is None:
                with_checks = _with_checks(function)
        try:
            return with_checks(*args, **kwargs)
        except jaxtyping.TypeCheckError as error:
            from qkv.errors import QkvError

            _unchecked.append(function)
            try:
                function(*args, **kwargs)
            except QkvError:  # the mistake is the caller's, and users get this error
                raise
            except Exception as other:
                raise error from other
            finally:
                _unchecked.pop()
            raise

    return call


def _with_checks(function: Any) -> Any:
    """Return `function` with its array annotations checked; called late, when every module that they name exists."""
    hints = {name: hint for name, hint in function.__annotations__.items() if _AXES.search(hint)}
    with _PARSING:
        nodes = [node for hint in hints.values() for node in ast.walk(ast.parse(hint, mode="eval"))]
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    # Only what the hints name is imported: another library, such as Keras, would take many seconds.
    lines = [line for names, line in _typing_imports(function.__module__) if names & used]
    names = {**_imported(lines, function.__module__), **function.__globals__}
    function.__annotations__ = {name: eval(hint, names) for name, hint in hints.items()}
    # As for mypy, an int is a float.
    configuration = beartype.BeartypeConf(is_pep484_tower=True)
    return jaxtyping.jaxtyped(function, typechecker=beartype.beartype(conf=configuration))


@functools.cache
def _typing_imports(module: str) -> list[tuple[set[str], ast.Import | ast.ImportFrom]]:
    """Return the lines by which a module imports for mypy only, under `if TYPE_CHECKING`, with the names of each."""
    source = inspect.getsource(sys.modules[module])
    with _PARSING:
        tree = ast.parse(source)
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    lines = [line for block in blocks for line in block.body if isinstance(line, ast.Import | ast.ImportFrom)]
    return [({(alias.asname or alias.name).split(".")[0] for alias in line.names}, line) for line in lines]


def _imported(lines: list[ast.Import | ast.ImportFrom], module: str) -> dict[str, Any]:
    """Return the names that lines of a module import."""
    names: dict[str, Any] = {}
    for line in lines:
        try:
            exec(compile(ast.Module([line], []), module, "exec"), names)
        except ModuleNotFoundError:  # axes are checked without this library, whose arrays no test has
            stand_in = SimpleNamespace(Tensor=Any) if isinstance(line, ast.Import) else Any
            names |= {alias.asname or alias.name: stand_in for alias in line.names}
    return names


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
        """Return the code with decorators, from a bytecode file of its own, because that of Python has none."""
        source = self.get_data(self.path)
        stamp = source_hash(source + _HERE)
        cached = Path(cache_from_source(self.path, optimization="axes"))
        if cached.is_file() and (data := cached.read_bytes()).startswith(stamp):
            return marshal.loads(data[len(stamp) :])
        code = self._decorated(source)
        if not sys.dont_write_bytecode:
            self.set_data(str(cached), stamp + marshal.dumps(code))
        return code

    def _decorated(self, source: bytes) -> CodeType:
        with _PARSING:
            tree = ast.parse(source, self.path)
            where = ast.parse("__import__('tests.shapes').shapes.checked", mode="eval").body
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and _annotates_axes(node):
                # The innermost decorator, since properties and static methods wrap the function.
                node.decorator_list.append(ast.copy_location(copy.deepcopy(where), node))
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)


def _annotates_axes(node: ast.FunctionDef) -> bool:
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
    hints = [argument.annotation for argument in arguments if argument is not None] + [node.returns]
    return any(hint is not None and _AXES.search(ast.unparse(hint)) for hint in hints)
