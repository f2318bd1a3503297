"""Set a context variable within a `with` statement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

__all__ = ["set_context"]

Value = TypeVar("Value")


@contextmanager
def set_context(variable: ContextVar[Value | None], value: Value) -> Iterator[Value]:
    """Set a context variable, and restore its previous value at the end of the `with` statement."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
