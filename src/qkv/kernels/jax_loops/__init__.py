"""Kernel of compiled JAX loops over tiles and row blocks, in memory linear in the numbers of queries and keys."""
