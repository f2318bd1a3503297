"""Functions that check the values of options, and describe values that are not allowed for error messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import signature
from numbers import Integral
from typing import TypeGuard

from qkv.errors import KindError, OptionError


def check_choice(name: str, given: object, choices: Iterable[object]) -> None:
    """Check that the value `given` of the option `name` is one of `choices`.

    Raises:
        OptionError: `given` is not one of `choices`.

    Example:
        >>> check_choice("loss", "each", ("each", "mass"))
    """
    choices = tuple(choices)
    if given not in choices:
        known = ", ".join(map(str, choices))
        raise OptionError(f"{name} must be one of {known}, got {given!r}. Pass, for example, {choices[0]!r}.")


def check_integers(minimum: int = 1, **numbers: object) -> None:
    """Check that each keyword argument is None or an integer of at least `minimum`.

    Raises:
        OptionError: a number is neither None nor an integer of at least `minimum`.

    Example:
        >>> check_integers(width=16, hidden=None)
    """
    for name, n in numbers.items():
        if n is not None and (isinstance(n, bool) or not isinstance(n, Integral) or n < minimum):
            raise OptionError(f"{name} must be an integer of at least {minimum}, got {n!r}. Pass {minimum} or more.")


def check_probability(dropout: float) -> float:
    """Check that a dropout probability is in [0, 1), and return it as a float.

    Raises:
        OptionError: `dropout` is not in [0, 1).
    """
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise OptionError(f"dropout must be a number in [0, 1), got {dropout!r}. Pass dropout=0 to disable dropout.")
    return float(dropout)


def describe(x: object) -> str:
    """Return a phrase for an object in error messages: a short text or number itself, otherwise its name or type.

    Example:
        >>> describe("softmax"), describe(int), describe(max), describe([])
        ("'softmax'", 'the class int, not an instance', 'the function max', 'an object of type list')
    """
    if x is None or (isinstance(x, (str, int, float)) and len(repr(x)) <= 40):
        return repr(x)
    if isinstance(x, type):
        return f"the class {x.__name__}, not an instance"
    name = getattr(x, "__name__", None) if callable(x) else None
    return f"an object of type {type(x).__name__}" if name is None else f"the function {name}"


def wrong_part(name: str, kind: str, example: str, given: object) -> KindError:
    """Return the error that `given` is no part.

    Args:
        name: name of the argument.
        kind: class of the part, such as "Score".
        example: expression of a part.
        given: what was passed.

    Example:
        >>> print(wrong_part("mask", "Mask", "Causal()", max))
        mask must be a Mask, got the function max. Wrap the function as masks.Custom(function).
    """
    module = f"{kind.lower()}s"
    advice = f"Pass an instance of a class in qkv.{module}, such as {example}."
    if type(given).__module__.startswith("qkv.nn."):
        advice = f"Pass the {kind.lower()} that the module returns, {name}(), or pass the module to nn.Attention."
    elif callable(given) and not isinstance(given, type):
        advice = f"Wrap the function as {module}.Custom(function)."
    return KindError(f"{name} must be a {kind}, got {describe(given)}. {advice}")


def takes_arguments(function: Callable[..., object], *positional: object, **named: object) -> bool:
    """Return whether the signature of `function` accepts the arguments; False if it has no signature.

    Example:
        >>> takes_arguments(lambda query, key: 0, 1, 2), takes_arguments(lambda query: 0, 1, 2)
        (True, False)
    """
    try:
        signature(function).bind(*positional, **named)
    except (TypeError, ValueError):
        return False
    return True


def is_int(value: object) -> TypeGuard[int]:
    """Return whether `value` is an `int` other than True and False.

    Example:
        >>> is_int(1), is_int(True), is_int(1.0)
        (True, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool)
