"""Kernel of linear attention, in time and memory linear in the numbers of queries and keys."""
