"""Soft join (record linkage) of two tables: each row attends to the rows of another table or to "no match"."""

from qkv.core.extras import lazy_attributes

_HOMES = {"SoftJoin": "soft_join", "JoinResult": "result", "Match": "result", "Evaluation": "result"}

__all__ = ["SoftJoin", "JoinResult", "Match", "Evaluation"]

__getattr__ = lazy_attributes(__name__, _HOMES, "a join needs", "sklearn", "pyarrow", "rapidfuzz", "sklearn")
