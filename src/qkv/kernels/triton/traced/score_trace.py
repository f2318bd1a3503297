"""Trace of a score: the recording of its operators, its graph, and the source of its programs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from threading import Lock
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import cast

from qkv.core.arrays import dtype_name, is_array, is_floating
from qkv.core.parts import Part
from qkv.core.tile import Tile
from qkv.core.typing import Array, Shaped, Tensor
from qkv.kernels.triton.traced.recording import KEYS, QUERIES, Recording, TraceError, record
from qkv.kernels.triton.traced.source import Source, program_source
from qkv.kernels.triton.traced.translation import Translation, translate
from qkv.normalizers import Normalizer
from qkv.scores import Score

_OWN = "qkv."
_DEPTH = 6
"""Depth up to which functions that a function calls are part of its fingerprint."""


def fingerprint(value: object, depth: int = _DEPTH) -> Hashable:
    """Return a key that two values share only if a recording of one is a recording of the other.

    Arrays of parts count by shape. Functions count by their code, their defaults, the variables that they close over
    and the global numbers, tensors and functions that they name; other objects count by identity.
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


def _field(value: object, depth: int) -> Hashable:
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


_MAX_TRACES = 128
"""Largest number of traces that are kept; the oldest is dropped first."""
_TRACES: OrderedDict[Hashable, ScoreTrace | TraceError] = OrderedDict()
_LOCK = Lock()


@dataclass(frozen=True, eq=False)
class ScoreTrace:
    """Recording of a score, its translation to a graph, and the programs written from it.

    Attributes:
        recording: the operators that the score and the temperature of the normalizer call.
        translation: the graph of a logit.
        source: the programs.
        parts: score and normalizer without data, which keep alive what the key of the trace identifies.
    """

    recording: Recording
    translation: Translation
    source: Source
    parts: tuple[Score, Normalizer]

    def description(self) -> str:
        """Return a short description of the operators of a pair, for the printed plan."""
        return ", ".join(self.translation.operators)


def trace_score(score: Score, normalizer: Normalizer, widths: tuple[int, int], batch: tuple[int, ...]) -> ScoreTrace:
    """Return the trace of the logits of a score, divided by the temperature of a normalizer.

    Raises:
        TraceError: the score cannot be traced; the message says why.
    """
    key = fingerprint(score), fingerprint(normalizer), widths, batch
    with _LOCK:
        found = _TRACES.get(key)
    if found is None:
        parts = cast("Score", _without_data(score)), cast("Normalizer", _without_data(normalizer))
        try:
            found = _traced(*parts, widths, batch)
        except TraceError as error:
            found = error.with_traceback(None)
        with _LOCK:
            _TRACES[key] = found
            if len(_TRACES) > _MAX_TRACES:
                _TRACES.popitem(last=False)
    if isinstance(found, TraceError):
        raise TraceError(str(found))
    return found


def _traced(score: Score, normalizer: Normalizer, widths: tuple[int, int], batch: tuple[int, ...]) -> ScoreTrace:
    import torch

    arrays = cast("tuple[Tensor, ...]", (*score.arrays(), *normalizer.arrays()))
    count, tile = len(score.arrays()), Tile.whole(QUERIES, KEYS, batch)
    query, key = (
        torch.empty((*batch, n, width), dtype=torch.float32, device="meta")
        for n, width in zip((QUERIES, KEYS), widths, strict=True)
    )

    def logits(
        query: Shaped[Tensor, "*_"], key: Shaped[Tensor, "*_"], *arrays: Shaped[Tensor, "*_"]
    ) -> Shaped[Tensor, "*_"]:
        own = score.replace_arrays(arrays[:count]) if count else score
        scale = normalizer.replace_arrays(arrays[count:]) if len(arrays) > count else normalizer
        return cast("Tensor", scale.prepare(own.logits(query, key, tile)))

    recording = record(logits, [query, key, *arrays])
    translation = translate(recording, batch)
    return ScoreTrace(recording, translation, program_source(translation), (score, normalizer))


def _without_data(part: Part) -> Part:
    """Return a part whose arrays are tensors without data, in single precision if they are floating-point numbers."""
    import torch

    def empty(x: Shaped[Array, "*shape"]) -> Shaped[Array, "*shape"]:
        dtype = torch.float32 if is_floating(x) else getattr(torch, dtype_name(x))
        return torch.empty(tuple(x.shape), dtype=dtype, device="meta")

    return part.map_arrays(empty)
