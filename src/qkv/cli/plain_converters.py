"""A quick start: parameters of the command line are converted here, where Typer would load pydantic to do it.

Typer from 0.2x on builds a pydantic adapter for every parameter, which takes a third of the time of a small
answer. This module gives those parameters a conversion of their own. It leaves a Typer that works otherwise
as it is.
"""

from typing import Any, get_args

import typer

from qkv.errors import OptionError

__all__ = ["use_plain_converters"]


def use_plain_converters(group: Any, help_names: tuple[str, ...]) -> Any:
    """The command group, its parameters converted by `int`, `float` and `str`; `help_names` ask for help.

    Raises:
        OptionError: later, for an option that is no number, or less than its `min`.
    """
    try:
        from typer._coercion import RuntimeParam
    except ImportError:
        return group

    class Converted(RuntimeParam):
        """A value as its annotation says."""

        def _coerce_value(self, value: Any, param: Any, ctx: Any) -> Any:
            kind = _plain_kind(self.annotation)
            if kind is list:
                return [str(item) for item in value]
            name, least = max(param.opts, key=len), self.parameter_info.min
            try:
                number = kind(value)
            except ValueError:
                wanted = "a whole number" if kind is int else "a number"
                raise OptionError(f"{name} is {value!r}, and {wanted} is wanted.") from None
            if least is not None and kind in (int, float) and number < least:
                raise OptionError(f"{name} is {value}, and {least} or more is wanted.")
            return number

    # A context makes each command build its --help, which is a parameter too.
    context = typer.Context(group, help_option_names=list(help_names))
    below = [each for command in group.commands.values() for each in getattr(command, "commands", {}).values()]
    for command in (group, *group.commands.values(), *below):
        for parameter in command.get_params(context):
            descriptor: Any = getattr(parameter, "type_descriptor", None)
            if parameter.param_type_name == "argument" and hasattr(parameter, "display_type_rich"):
                # `QUERY <list[str]>` in the help says nothing to those who write no Python.
                parameter.display_type_rich = lambda ctx: None
            if hasattr(parameter, "_runtime_param") and _plain_kind(getattr(descriptor, "annotation", None)):
                parameter._runtime_param = Converted(descriptor.parameter_info, descriptor.annotation)
    return group


def _plain_kind(annotation: Any) -> Any:
    """The one plain type in an annotation, None beside it or not; None where there is no such type."""
    kinds = [kind for kind in (get_args(annotation) or (annotation,)) if kind is not type(None)]
    if annotation is not None and getattr(annotation, "__origin__", None) is list:
        return list
    if len(kinds) != 1:
        return None
    kind = kinds[0]
    if getattr(kind, "__origin__", None) is list:
        return list
    return kind if kind in (int, float, str, bool) else None
