"""Fingerprint of a score: everything that determines which operators it calls, without the elements of its arrays."""

from __future__ import annotations

from collections.abc import Hashable
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from qkv.core.arrays import dtype_name, is_array, is_floating
from qkv.core.parts import Part

__all__ = ["fingerprint"]

_OWN = "qkv."
_DEPTH = 6
"""Depth up to which functions that a function calls are part of its fingerprint."""


def fingerprint(value: Any, depth: int = _DEPTH) -> Hashable:
    """Return a key that two values share only if a recording of one is a recording of the other.

    Arrays of parts count by shape. Functions count by their code, their defaults, the variables that they close over
    and the global numbers, tensors and functions that they name; other objects count by identity.

    Args:
        value: a part, or the value of a field or variable.
        depth: how many more levels of functions to follow.
    """
    if isinstance(value, Part):
        own = type(value).__module__.startswith(_OWN)
        methods = () if own else tuple(_methods(type(value), depth))
        fields = tuple((name, _field(x, depth)) for name, x in sorted(vars(value).items()))
        return type(value), methods, fields
    if isinstance(value, FunctionType):
        return _function(value, depth)
    if isinstance(value, MethodType):
        called = value.__func__
        return _function(called, depth) if isinstance(called, FunctionType) else called, id(value.__self__)
    if is_array(value):
        return "array", id(value)
    if isinstance(value, (tuple, list)):
        return type(value), tuple(fingerprint(x, depth) for x in value)
    if isinstance(value, (int, float, str, bool, bytes)) or value is None:
        return type(value), value
    return "object", id(value)


def _field(value: Any, depth: int) -> Hashable:
    """Return the fingerprint of a field of a part, whose arrays are arguments of the recording."""
    if is_array(value):
        return "field", tuple(value.shape), "float" if is_floating(value) else dtype_name(value)
    if isinstance(value, tuple):
        return tuple(_field(x, depth) for x in value)
    return fingerprint(value, depth)


def _methods(cls: type, depth: int) -> list[Hashable]:
    found = [
        (name, x) for base in cls.__mro__ if not base.__module__.startswith(_OWN) for name, x in vars(base).items()
    ]
    return [(name, _function(x, depth)) for name, x in found if isinstance(x, FunctionType) and name != "__init__"]


def _function(function: FunctionType, depth: int) -> Hashable:
    if depth == 0 or function.__module__ is None or function.__module__.split(".")[0] in ("torch", "qkv"):
        return function
    cells: list[Hashable] = []
    for cell in function.__closure__ or ():
        try:
            cells.append(fingerprint(cell.cell_contents, depth - 1))
        except ValueError:  # an empty cell
            cells.append(None)
    defaults = *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()
    named = [
        (name, fingerprint(function.__globals__[name], depth - 1))
        for name in sorted(_names(function.__code__))
        if name in function.__globals__ and not isinstance(function.__globals__[name], (ModuleType, type))
    ]
    return function.__code__, tuple(cells), tuple(fingerprint(x, depth - 1) for x in defaults), tuple(named)


def _names(code: CodeType) -> set[str]:
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return found
