"""Partial results of queries over fragments of a table, which any engine computes apart and merges in any order."""

from qkv.database.partials.aggregate_functions import compute, finalize, merge

__all__ = ["compute", "finalize", "merge"]
