"""Partial results of queries over fragments of a table, which any engine computes apart and merges in any order."""

from qkv.database.partials.functions import finalize, merge, partial

__all__ = ["finalize", "merge", "partial"]
