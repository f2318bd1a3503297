"""Public methods have docstrings, which overriding methods may inherit; exported functions describe all arguments."""

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "qkv"
sys.path.append(str(ROOT / "docs"))
Method = ast.FunctionDef | ast.AsyncFunctionDef

UNDOCUMENTED = {SOURCE / "core" / "typing.py", *(SOURCE / "testing").glob("*.py")}
"""Operators of the array protocol, and contract suites, whose names are sentences."""


@functools.cache
def modules() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


@functools.cache
def classes() -> dict[str, list[tuple[Path, ast.ClassDef]]]:
    """Return the classes of all modules by name, without those in functions."""
    found: dict[str, list[tuple[Path, ast.ClassDef]]] = {}
    for path, tree in modules().items():
        queue: list[ast.stmt] = [*tree.body]
        while queue:
            node = queue.pop()
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append((path, node))
            if isinstance(node, ast.ClassDef | ast.If | ast.Try):
                queue += node.body
    return found


@functools.cache
def methods(cls: ast.ClassDef) -> dict[str, Method]:
    """Return the methods of a class by name, of a property the getter, and without the signatures of overloads."""
    found: dict[str, Method] = {}
    for each in cls.body:
        if isinstance(each, Method) and not any("overload" in ast.unparse(one) for one in each.decorator_list):
            found.setdefault(each.name, each)
    return found


def bases(cls: ast.ClassDef) -> Iterator[ast.ClassDef]:
    """Yield the classes of qkv from which a class is derived, directly or not, as far as their names tell them."""
    for base in cls.bases:
        expression = base.value if isinstance(base, ast.Subscript) else base
        name = expression.id if isinstance(expression, ast.Name) else getattr(expression, "attr", "")
        for _, other in classes().get(name, ()):
            if other is not cls:
                yield other
                yield from bases(other)


def is_documented(name: str, cls: ast.ClassDef) -> bool:
    """Return whether a class describes a method, or an attribute that a property overrides."""
    own = name in methods(cls) and ast.get_docstring(methods(cls)[name]) is not None
    attributes = (ast.get_docstring(cls) or "").partition("Attributes:")[2]
    return own or re.search(rf"^ +(\w+, )*{name}(, \w+)*: ", attributes, re.MULTILINE) is not None


def test_a_public_method_without_a_docstring_overrides_one_that_has_one() -> None:
    missing = [
        f"{path.relative_to(ROOT)}:{method.lineno} {cls.name}.{name}"
        for found in classes().values()
        for path, cls in found
        if path not in UNDOCUMENTED and not cls.name.startswith("_")
        for name, method in methods(cls).items()
        if not name.startswith("_") and not is_documented(name, cls)
        if not any(is_documented(name, base) for base in bases(cls))
    ]
    assert not missing, "\n".join(missing)


def exported_functions() -> Iterator[tuple[str, Method]]:
    """Yield the functions that the packages around their module export, and the methods of such classes."""
    from generate.reference import public_modules

    exports = {SOURCE.joinpath(*name.split(".")[1:]): names for name, names in public_modules().items()}
    for path, tree in modules().items():
        exported = set().union(*(exports.get(folder, ()) for folder in path.parents))
        for node in tree.body:
            if isinstance(node, Method) and node.name in exported:
                yield f"{path.relative_to(ROOT)} {node.name}", node
            elif isinstance(node, ast.ClassDef) and node.name in exported:
                yield from (
                    (f"{path.relative_to(ROOT)} {node.name}.{name}", each) for name, each in methods(node).items()
                )


def test_the_arguments_that_an_exported_function_describes_are_complete() -> None:
    missing = {}
    for name, function in exported_functions():
        section = re.search(r"^Args:\n((?: +.*\n|\n)*)", f"{ast.get_docstring(function)}\n", re.MULTILINE)
        if section is None or function.name.startswith("_"):
            continue
        described = set(re.findall(r"\w+", " ".join(re.findall(r"^ {4}(\S[^:(]*)[:(]", section[1], re.MULTILINE))))
        given = function.args
        arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        names = {each.arg for each in arguments if each is not None and not each.arg.startswith("_")}
        if names - {"self", "cls"} - described:
            missing[name] = sorted(names - {"self", "cls"} - described)
    assert not missing, missing


def test_every_everyday_name_has_an_example() -> None:
    from generate.reference import is_internal, public_names

    examples: dict[str, set[Path]] = {}
    for path, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef | Method):
                inside = [node, *(methods(node).values() if isinstance(node, ast.ClassDef) else ())]
                if any(">>>" in (ast.get_docstring(each) or "") for each in inside):
                    examples.setdefault(node.name, set()).add(path)
            elif isinstance(node, ast.AnnAssign):  # the page of a constant shows its value
                examples.setdefault(ast.unparse(node.target), set()).add(path)
    missing = []
    for full, home in public_names().items():
        folder = SOURCE.joinpath(*home.split(".")[1:])
        places = examples.get(full.rpartition(".")[2], set())
        if not is_internal(home) and not any(
            path.is_relative_to(folder if folder.is_dir() else folder.parent) for path in places
        ):
            missing.append(full)
    assert not missing, missing
