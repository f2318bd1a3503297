"""Errors for arguments that have the names of PyTorch's attention functions and modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import signature
from typing import TypeVar, cast

from qkv.errors import KindError

F = TypeVar("F", bound=Callable[..., object])


def explain_torch_names(remedies: Mapping[str, str]) -> Callable[[F], F]:
    """Return a decorator that raises an error with a remedy if a function is called with one of PyTorch's names.

    Args:
        remedies: for each name of PyTorch what to do instead, as a sentence. The function's own names are not refused.

    Raises:
        KindError: by the decorated function, if it is called with one of the names.

    Example:
        >>> @explain_torch_names({"embed_dim": "Pass width."})
        ... def build(width): ...
        >>> build(embed_dim=8)
        Traceback (most recent call last):
        ...
        qkv.errors.KindError: arguments of build must have names of qkv, got PyTorch's 'embed_dim'. Pass width.
    """

    def decorate(function: F) -> F:
        refused = {name: remedy for name, remedy in remedies.items() if name not in signature(function).parameters}
        path = function.__qualname__.split(".")
        method = len(path) > 1 and path[-2] != "<locals>"

        @wraps(function)
        def call(*args: object, **named: object) -> object:
            for name in named:
                if name in refused:
                    refuse_torch_names(type(args[0]).__name__ if method and args else path[-1], named, refused)
            return function(*args, **named)

        return cast("F", call)

    return decorate


def refuse_torch_names(owner: str, named: Iterable[str], remedies: Mapping[str, str]) -> None:
    """Raise an error with a remedy if the name of an argument is one of PyTorch's.

    Args:
        owner: name of the function in the error message.
        named: names of the arguments.
        remedies: for each name of PyTorch what to do instead, as a sentence.

    Raises:
        KindError: a name is in `remedies`.
    """
    for name in named:
        if name in remedies:
            raise KindError(f"arguments of {owner} must have names of qkv, got PyTorch's {name!r}. {remedies[name]}")
