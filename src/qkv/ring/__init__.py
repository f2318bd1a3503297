"""Attention over keys and values that are distributed over the ranks of a group, as a ring of partial results."""
