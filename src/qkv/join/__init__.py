"""Soft join (record linkage) of two tables: each row attends to the rows of another table or to "no match"."""

from importlib import import_module
from typing import Any

from qkv.core.extras import require_packages

_HOMES = {"SoftJoin": "soft_join", "JoinResult": "result", "Match": "result", "Evaluation": "result"}

__all__ = ["SoftJoin", "JoinResult", "Match", "Evaluation"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_packages("a join needs", "sklearn", "pyarrow", "rapidfuzz", "sklearn")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
