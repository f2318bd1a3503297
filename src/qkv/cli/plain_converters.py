"""Convert command-line parameters to `int`, `float` and `str` faster than Typer does with pydantic.

Typer 0.2x builds a pydantic adapter for every parameter, which takes a third of the time of a small query. This module
replaces the conversion of plain types; it does not change other versions of Typer.
"""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import typer

from qkv.errors import OptionError

__all__ = ["use_plain_converters"]


def use_plain_converters(group: Any, help_names: tuple[str, ...]) -> Any:
    """Make the commands of a group convert their parameters by `int`, `float` and `str` instead of by pydantic.

    Args:
        group: the click group of a Typer application.
        help_names: names of the help option.

    Returns:
        The group. Parsing raises an `OptionError` for an option that is not a number or is less than its `min`.
    """
    try:
        from typer._coercion import RuntimeParam
    except ImportError:
        return group

    class Converted(RuntimeParam):
        """A Typer parameter that converts its value by calling the type of its annotation, such as `int`."""

        def _coerce_value(self, value: Any, param: Any, ctx: object) -> object:
            kind = _plain_kind(self.annotation)
            if kind is list:
                return [str(item) for item in value]
            name, least = max(param.opts, key=len), self.parameter_info.min
            try:
                number = kind(value)
            except ValueError:
                noun = "an integer" if kind is int else "a number"
                raise OptionError(f"{name} must be {noun}, got {value!r}. See --help.") from None
            if least is not None and kind in (int, float) and number < least:
                raise OptionError(f"{name} must be at least {least}, got {value}. See --help.")
            return number

    # With a context, the parameters of each command include --help.
    context = typer.Context(group, help_option_names=list(help_names))
    subcommands = [each for command in group.commands.values() for each in getattr(command, "commands", {}).values()]
    for command in (group, *group.commands.values(), *subcommands):
        for parameter in command.get_params(context):
            descriptor: Any = getattr(parameter, "type_descriptor", None)
            if parameter.param_type_name == "argument" and hasattr(parameter, "display_type_rich"):
                # Hide `<list[str]>` after an argument, because the help is not only for Python programmers.
                parameter.display_type_rich = lambda ctx: None
            if hasattr(parameter, "_runtime_param") and _plain_kind(getattr(descriptor, "annotation", None)):
                parameter._runtime_param = Converted(descriptor.parameter_info, descriptor.annotation)
    return group


def _plain_kind(annotation: object) -> Any:
    """Return the type that an annotation names, or None unless it is one of int, float, str, bool and list.

    An optional annotation, such as `int | None`, counts as the type without None.
    """
    options = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kinds = [get_origin(option) or option for option in options if option is not NoneType]
    return kinds[0] if len(kinds) == 1 and kinds[0] in (int, float, str, bool, list) else None
