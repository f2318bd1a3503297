"""Checks of options; each error names the option, its condition and the given value."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral

from qkv.errors import OptionError

__all__ = ["check_choice", "check_integers"]


def check_choice(name: str, given: object, choices: Iterable[object]) -> None:
    """Check that an option is one of the choices.

    Raises:
        OptionError: `given` is not one of `choices`.

    Example:
        >>> check_choice("loss", "each", ("each", "mass"))
    """
    choices = tuple(choices)
    if given not in choices:
        raise OptionError(f"{name} must be one of {', '.join(map(str, choices))}, got {given!r}.")


def check_integers(minimum: int = 1, **numbers: object) -> None:
    """Check that each number is an integer of at least `minimum`, or None.

    Raises:
        OptionError: a number is neither None nor an integer of at least `minimum`.

    Example:
        >>> check_integers(width=16, hidden=None)
    """
    for name, n in numbers.items():
        if n is not None and (isinstance(n, bool) or not isinstance(n, Integral) or n < minimum):
            raise OptionError(f"{name} must be an integer of at least {minimum}, got {n!r}.")
