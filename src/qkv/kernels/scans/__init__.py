"""Loops that JAX compiles: tiles that are folded, and strips of whole rows."""
