"""Soft join (record linkage) of two tables, in which each left row attends to the right rows and to "no match"."""

from qkv.core.extras import lazy_attributes

_HOMES = {"SoftJoin": "soft_join", "JoinResult": "result", "Match": "result", "Evaluation": "result"}

__all__ = ["SoftJoin", "JoinResult", "Match", "Evaluation"]

__getattr__ = lazy_attributes(__name__, _HOMES, "a join needs", "search", "pyarrow", "rapidfuzz", "sklearn")
