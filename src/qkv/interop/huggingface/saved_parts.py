"""Scores and normalizers as JSON, for the configuration file that transformers saves with a model.

    part            {"part": "Gaussian", "fields": {"bandwidth": 1.5}}
    learned score   {"learned": "Additive", "options": {"hidden": 16}}
    parameter       {"parameter": [1.5, 1.5]}
    other           {"code": "layer_score"}

Only names of qkv's own classes are looked up, so reading a file never runs code from it. Of parameters, the initial
values are written; the weights of the model contain the trained ones. Functions and other arrays cannot be written;
their description only states that they exist, and they must be registered again by code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TypeVar, Union, cast

import torch

from qkv import nn, normalizers, scores
from qkv.core.parts import Part
from qkv.errors import DataError

Json = Union[None, bool, int, float, str, list["Json"], dict[str, "Json"]]  # noqa: UP007 -- recursive
"""A value that JSON can express."""

T = TypeVar("T")

_MAX_ELEMENTS = 1024
"""Largest number of elements of a parameter that is written to a configuration."""


class _CodeError(Exception):
    """A value that JSON cannot express, such as a function."""


def is_learned(option: object) -> bool:
    """Return whether an option of `register` is a learned score, its class, or a `functools.partial` of its class."""
    option = option.func if isinstance(option, functools.partial) else option
    return isinstance(option, nn.LearnedScore) or (isinstance(option, type) and issubclass(option, nn.LearnedScore))


def describe_part(option: object) -> Json:
    """Return a description of a score or normalizer, or of the function that builds one, as JSON.

    Example:
        >>> describe_part(normalizers.TopK(3))["fields"]["k"], describe_part(functools.partial(nn.Additive, hidden=8))
        (3, {'learned': 'Additive', 'options': {'hidden': 8}})
        >>> describe_part(lambda layer: scores.Gaussian(2.0))
        {'code': '<lambda>'}
    """
    try:
        return _describe(option)
    except _CodeError:
        return {"code": getattr(option, "__name__", type(option).__name__)}


def build_part(description: Json) -> object:
    """Return the score, normalizer, class of a learned score, or partial of such a class that was described.

    Raises:
        DataError: if the description names no class of qkv, or describes a function or arrays.

    Example:
        >>> build_part({"part": "Gaussian", "fields": {"bandwidth": 1.5}})
        Gaussian(bandwidth=1.5)
    """
    if isinstance(description, list):
        return tuple([build_part(item) for item in description])
    if not isinstance(description, dict):
        return description
    if "parameter" in description:
        return _build_parameter(description["parameter"])
    if "code" in description:
        raise DataError(
            f"the saved score or normalizer must be made of classes of qkv, numbers and strings, got code: "
            f"{description['code']}. Register it by code under the saved name before the model is loaded."
        )
    name = description.get("learned") or description.get("part")
    found = _learned_classes() if "learned" in description else _part_classes()
    values = description.get("options" if "learned" in description else "fields")
    if name not in found or not isinstance(values, dict):
        raise DataError(
            f"the saved score or normalizer must be a class of qkv.scores, qkv.normalizers or qkv.nn, got "
            f"{description!r}. Load the model with the version of qkv that saved it."
        )
    kind = cast(Callable[..., object], found[cast(str, name)])
    built = {key: build_part(value) for key, value in values.items()}
    if "part" in description:
        return kind(**built)
    return functools.partial(kind, **built) if built else kind


def _build_parameter(values: Json) -> torch.nn.Parameter:
    try:
        return torch.nn.Parameter(torch.tensor(values, dtype=torch.float32))
    except (TypeError, ValueError):
        raise DataError(
            f"a saved parameter must be a number or nested lists of numbers, got {values!r}. Load the model with the "
            "version of qkv that saved it."
        ) from None


def _describe(value: object) -> Json:
    if isinstance(value, torch.nn.Parameter) and value.is_floating_point() and value.numel() <= _MAX_ELEMENTS:
        return {"parameter": value.detach().float().tolist()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [_describe(item) for item in value]
    if isinstance(value, Part):
        if _part_classes().get(type(value).__name__) is not type(value):
            raise _CodeError
        return {"part": type(value).__name__, "fields": {n: _describe(getattr(value, n)) for n in value.__match_args__}}
    kind, options = _split(value)
    if kind is None:
        raise _CodeError
    name = kind.__name__
    if _learned_classes().get(name) is kind:
        return {"learned": name, "options": {key: _describe(x) for key, x in options.items()}}
    if _part_classes().get(name) is kind and not options:
        return _describe(cast("Callable[[], Part]", kind)())
    raise _CodeError


def _split(value: object) -> tuple[type | None, Mapping[str, object]]:
    """Return the class that an option builds, or None, and the arguments of the class."""
    if isinstance(value, functools.partial):
        return (value.func if isinstance(value.func, type) and not value.args else None), value.keywords
    if isinstance(value, nn.LearnedScore):
        return type(value), {"heads": value.heads, **value.options}
    return (value if isinstance(value, type) else None), {}


def _part_classes() -> dict[str, type[Part]]:
    return {**_classes(scores, Part), **_classes(normalizers, Part)}


def _learned_classes() -> dict[str, type[torch.nn.Module]]:
    return cast("dict[str, type[torch.nn.Module]]", _classes(nn, nn.LearnedScore))


def _classes(package: object, base: type[T]) -> dict[str, type[T]]:
    public = {name: getattr(package, name) for name in package.__all__}  # type: ignore[attr-defined]
    return {name: x for name, x in public.items() if isinstance(x, type) and issubclass(x, base)}
